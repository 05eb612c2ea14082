"""Whether more steps of a search would still find more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

from seepage.audit._record import Record
from seepage.audit._words import Setup
from seepage.audit.results._amount import SATURATED, headline
from seepage.audit.results._columns import read_columns, read_search
from seepage.audit.results._intervals import Interval, mean_interval
from seepage.core._construct import Component
from seepage.core._grouping import group_by

# A gain of less than this from twice the steps counts as none, in dB.
GAIN = 0.5

_Person = tuple[str, int]


@dataclass(frozen=True, eq=False)
class EffortCurve:
    """One attack on the same people with several numbers of steps.

    Args:
        attack: The attack, without its steps.
        data: Name of the data set.
        model: The network.
        setup: Defense, local computation and batch size.
        scores: The PSNR of each person by number of steps, ascending; the best of all seeds.
        updates: The people of the update that each person is in.
        cases: Positions of the cases in the audit.
    """

    attack: Component
    data: str
    model: str
    setup: Setup
    scores: Mapping[int, Mapping[_Person, float]]
    updates: Mapping[_Person, tuple[int, ...]]
    cases: frozenset[int]

    @property
    def medians(self) -> list[tuple[int, float]]:
        """Number of steps and median PSNR over people."""
        return [(steps, median(found.values())) for steps, found in self.scores.items()]

    @cached_property
    def gain(self) -> Interval:
        """What doubling the steps gains at the end of the curve, in dB: a mean over people."""
        (fewer, before), (more, after) = list(self.scores.items())[-2:]
        doublings = math.log2(more / fewer)
        both = [person for person in after if person in before]
        gains = [(after[person] - before[person]) / doublings for person in both]
        return mean_interval(gains, [self.updates[person] for person in both])

    @property
    def rising(self) -> bool:
        """Whether a gain cannot be ruled out: its 95 % interval reaches `GAIN`."""
        return self.gain.high >= GAIN


def effort_curves(records: Sequence[Record]) -> list[EffortCurve]:
    """Every attack that ran on a setup with several numbers of steps.

    For images and signals: PSNR says little about tables and texts.
    """
    key = read_columns("search", "data", "model", "threat", "setup")
    asked = [number for number, record in enumerate(records) if _has_curve(record)]
    groups = group_by(asked, lambda number: key(records[number]))
    curves = (_make_curve(numbers, records) for numbers in groups.values())
    return [curve for curve in curves if curve is not None]


def _has_curve(record: Record) -> bool:
    steps, scores = record.attack.arguments.get("steps"), record.scores
    return type(steps) is int and steps >= 1 and "psnr" in scores and headline(scores) == "psnr"


def _make_curve(cases: Sequence[int], records: Sequence[Record]) -> EffortCurve | None:
    """The curve of these cases; None if the last two numbers of steps have nobody in common."""
    first = records[cases[0]]
    data = first.data
    scores: dict[int, dict[_Person, float]] = {}
    updates: dict[_Person, tuple[int, ...]] = {}
    for number in cases:
        record = records[number]
        found = scores.setdefault(int(record.attack.arguments["steps"]), {})
        for person, value in zip(record.people, record.scores["psnr"], strict=True):
            if value is not None:
                updates[data, person] = record.people
                score = min(max(value, 0.0), SATURATED)
                found[data, person] = max(score, found.get((data, person), 0.0))
    scores = dict(sorted(scores.items()))
    last = list(scores.values())[-2:]
    if len(last) < 2 or not last[0].keys() & last[1].keys():
        return None
    attack = read_search(first)
    setup = Setup.of(first)
    return EffortCurve(attack, data, first.model, setup, scores, updates, frozenset(cases))
