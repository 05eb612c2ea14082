"""Parts of a search that hold something of one case, beside those of other cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

_Part = TypeVar("_Part")


@runtime_checkable
class PerCase(Protocol):
    """A part of a search that holds tensors of its own case, such as recovered features.

    Cases that run together share one such part. A term is called row by row, under `vmap`, and
    is given what is the row's; an optimiser and a generator are called with all rows, and are
    given the tensors of all, with the rows in front.
    """

    @property
    def held(self) -> dict[str, Tensor]:
        """The tensors, by name; empty if there are none."""

    def holding(self, held: Mapping[str, Tensor]) -> Self:
        """The same part with other tensors, which are not looked at: rows may be traced."""


def stacked(parts: Sequence[object], *, restarts: int) -> dict[str, Tensor]:
    """What the same part of several cases holds, `(R, ...)`, by case and then by restart.

    Args:
        parts: One for each case.
        restarts: Rows of each case.
    """
    held = [part.held for part in parts if isinstance(part, PerCase)]
    return {
        name: torch.stack([one[name] for one in held]).repeat_interleave(restarts, 0)
        for name in (held[0] if held else ())
    }


def joined(parts: Sequence[_Part], *, restarts: int) -> _Part:
    """One part for the rows of all cases, of a kind that is called with all rows.

    Args:
        parts: One for each case, which differ in nothing but what they hold.
        restarts: Rows of each case.
    """
    first = parts[0]
    if len(parts) == 1 or not isinstance(first, PerCase):
        return first
    together: _Part = first.holding(stacked(parts, restarts=restarts))
    return together
