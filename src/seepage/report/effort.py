"""How hard an audit looked, and whether more steps of a search would still find more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from seepage.audit.record import Record
from seepage.core.construct import Component
from seepage.report.intervals import Interval, mean_interval
from seepage.report.words import Setup, count_noun, label_setups, list_words, short_names

# A gain of less than this from twice the steps counts as none, in dB.
GAIN = 0.5
# Beyond this a PSNR only says that the guess is the input up to rounding.
_HIGHEST = 60.0

Scene = tuple[str, str, Component | None, Setup]
Person = tuple[str, int]


@dataclass(frozen=True, eq=False)
class _EffortCurve:
    """One attack on the same people with several numbers of steps.

    Scores are the PSNR of each person by number of steps, ascending; the best of all seeds.
    """

    attack: Component
    scene: Scene
    scores: Mapping[int, Mapping[Person, float]]
    updates: Mapping[Person, tuple[int, ...]]

    @property
    def medians(self) -> list[tuple[int, float]]:
        """Number of steps and median PSNR over people."""
        return [(steps, median(found.values())) for steps, found in self.scores.items()]

    @property
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

    def covers(self, record: Record) -> bool:
        """Whether a case is part of the curve."""
        return _curve_key(record) == (self.attack, self.scene)

    def words(self) -> str:
        """One sentence about the end of the curve."""
        (fewer, _), (more, _) = self.medians[-2:]
        gain = self.gain
        state = "may still rise" if self.rising else "has reached a plateau"
        return (
            f"{self.attack.name} {state}: from {fewer:,} to {more:,} steps, doubling them gains "
            f"{gain.middle:+.1f} dB ({gain.low:+.1f} to {gain.high:+.1f})"
        )


def effort_curves(records: Sequence[Record]) -> list[_EffortCurve]:
    """Every attack that a setup was attacked with at several numbers of steps.

    For images and signals: PSNR says little about tables and texts.
    """
    groups: dict[tuple[Component, Scene], dict[int, dict[Person, float]]] = {}
    updates: dict[tuple[Component, Scene], dict[Person, tuple[int, ...]]] = {}
    for record in records:
        key = _curve_key(record)
        if key is None:
            continue
        found = groups.setdefault(key, {}).setdefault(int(record.attack.arguments["steps"]), {})
        for person, value in zip(record.people, record.scores["psnr"], strict=True):
            if value is not None:
                updates.setdefault(key, {})[record.data, person] = record.people
                score = min(max(value, 0.0), _HIGHEST)
                found[record.data, person] = max(score, found.get((record.data, person), 0.0))
    curves = [
        _EffortCurve(*key, dict(sorted(found.items())), updates.get(key, {}))
        for key, found in groups.items()
    ]
    return [curve for curve in curves if _is_comparable(curve)]


def _is_comparable(curve: _EffortCurve) -> bool:
    """Whether the last two numbers of steps have anybody in common."""
    last = list(curve.scores.values())[-2:]
    return len(last) == 2 and bool(last[0].keys() & last[1].keys())


def _curve_key(record: Record) -> tuple[Component, Scene] | None:
    """The attack without its steps, and what it attacked; None if it belongs to no curve."""
    steps, scores = record.attack.arguments.get("steps"), record.scores
    shares = {"feature_accuracy", "token_accuracy"} & scores.keys()
    if type(steps) is not int or steps < 1 or "psnr" not in scores or shares:
        return None
    others = {name: v for name, v in record.attack.arguments.items() if name != "steps"}
    scene = record.data, record.model, record.threat, Setup.of(record)
    return replace(record.attack, arguments=others), scene


def tell_effort(records: Sequence[Record]) -> list[str]:
    """Whether more steps would find more, of attacks that ran with several numbers of steps."""
    curves = effort_curves(records)
    rising = sorted((c for c in curves if c.rising), key=lambda c: -c.gain.high)
    labels = label_setups(curve.scene[-1] for curve in curves)
    told = f"Effort: {len(rising)} of {count_noun(len(curves), 'curve')} may still rise"
    if rising:
        return [f"{told}. With {labels[rising[0].scene[-1]]}, {rising[0].words()}."]
    return [f"{told}: doubling the steps gains little."] if curves else []


def describe_effort(records: Sequence[Record]) -> str:
    """Attacks, cases, steps and time of these records, in words."""
    done = [record for record in records if record.error is None]
    attacks = short_names(record.attack for record in records)
    steps = sum(int(r.effort.get("steps", 0)) * int(r.effort.get("restarts", 0)) for r in done)
    hours = _duration(sum(float(record.effort.get("seconds", 0)) for record in done))
    devices = list_words(list(dict.fromkeys(str(r.effort.get("device")) for r in done)))
    searched = f", {steps:,} search steps" if steps else ""
    return (
        f"{list_words(list(attacks.values()))}: {count_noun(len(done), 'case')}{searched}, {hours} "
        f"on {devices}"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 1 else "under a second"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
