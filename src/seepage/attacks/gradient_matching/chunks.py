"""Rows that run together, as many as fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """Rows that run together: some restarts of some cases."""

    cases: range
    restarts: range

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.cases) * len(self.restarts)

    def halved(self) -> tuple[Chunk, Chunk] | None:
        """The same rows in two chunks; None for a single row."""
        if len(self.cases) > 1:
            middle = len(self.cases) // 2
            return Chunk(self.cases[:middle], self.restarts), Chunk(
                self.cases[middle:], self.restarts
            )
        if len(self.restarts) > 1:
            middle = len(self.restarts) // 2
            return Chunk(self.cases, self.restarts[:middle]), Chunk(
                self.cases, self.restarts[middle:]
            )
        return None


def chunks(cases: int, restarts: int, together: int) -> Iterator[Chunk]:
    """Cut the grid of cases and restarts into chunks of at most `together` rows."""
    if together >= restarts:
        width = max(1, together // restarts)
        for first in range(0, cases, width):
            yield Chunk(range(first, min(first + width, cases)), range(restarts))
        return
    for case in range(cases):
        for first in range(0, restarts, together):
            yield Chunk(range(case, case + 1), range(first, min(first + together, restarts)))
