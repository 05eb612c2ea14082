"""How hard `auto` tries: its steps, and into which rounds of a race they are divided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from seepage.core._progress import Pace

EffortName = Literal["quick", "standard", "thorough"]
# Fewer steps than this say too little of how a search would end.
_SHORTEST = 100


@dataclass(frozen=True)
class Rung:
    """One round of a race: so many contenders, each on so many batches, for so many steps."""

    contenders: int
    batches: int
    steps: int


@dataclass(frozen=True)
class Effort:
    """How hard `auto` tries.

    Args:
        steps: All steps of one attack together, at most half of them for the rounds of the
            rehearsal. A step is one gradient of the network and one step of the search, for a
            whole batch.
        contenders: How many race in each round of the rehearsal.
        people: How many people each of them attacks in each round, at least one batch of them.
        chosen: At most so many of the last round attack the update; they share the other steps.
    """

    steps: int
    contenders: tuple[int, ...]
    people: tuple[int, ...]
    chosen: int = 2

    def plan(self, batch_size: int = 1) -> tuple[tuple[Rung, ...], int]:
        """The rounds of the rehearsal, and the least steps for the update.

        Every round has twice the steps of the one before. If the steps do not suffice, there are
        fewer batches, contenders and rounds: too short a search says nothing about a long one.
        """
        half = self.steps // 2
        batches = (math.ceil(people / batch_size) for people in self.people)
        rounds = list(zip(self.contenders, batches, strict=True))
        while rounds and (first := half // _cost(rounds)) < _SHORTEST:
            rounds = _shrink(rounds)
        if not rounds:
            return (), max(1, self.steps)
        return tuple(Rung(c, b, first * 2**i) for i, (c, b) in enumerate(rounds)), half

    def fit(self, pace: Pace, seconds: float, batch_size: int = 1) -> Effort:
        """The same with as many of its steps as fit into a time.

        Args:
            pace: Of one search.
            seconds: The time.
            batch_size: People in an update.
        """
        rungs, steps = self.plan(batch_size)
        # Two more tell the pace.
        searches = 3 + sum(rung.contenders * rung.batches for rung in rungs)
        steps += sum(rung.contenders * rung.batches * rung.steps for rung in rungs)
        needed = searches * pace.start + steps * pace.each
        if needed <= seconds or self.steps == 1:
            return self
        share = min(0.98, seconds / needed)
        return replace(self, steps=max(1, int(share * self.steps))).fit(pace, seconds, batch_size)


def _cost(rounds: Sequence[tuple[int, int]]) -> int:
    """Steps of all rounds if the first one has one step."""
    return sum(contenders * batches * 2**i for i, (contenders, batches) in enumerate(rounds))


def _shrink(rounds: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Leave out a batch; with one batch a contender; where none is left to beat, the last round."""
    racing, most = rounds[0][0] - 1, max(batches for _, batches in rounds)
    if most > 1:
        return [(contenders, min(batches, most - 1)) for contenders, batches in rounds]
    if racing >> len(rounds) - 1 > 1:
        return [(min(held, racing >> i), 1) for i, (held, _) in enumerate(rounds)]
    return list(rounds[:-1])


EFFORTS: dict[str, Effort] = {
    "quick": Effort(3_000, (8, 3), (2, 2)),
    "standard": Effort(24_000, (12, 4, 2), (2, 2, 3)),
    "thorough": Effort(240_000, (24, 8, 3), (3, 4, 4), chosen=3),
}
