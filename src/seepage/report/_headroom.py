"""Bounds beside what attacks reached, person by person, in one unit and in words.

Where the assumptions of a bound do not cover an attack, that is said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from types import MappingProxyType

from seepage.audit._record import Ceiling, Record
from seepage.audit._words import (
    NO_DEFENSE,
    Setup,
    decibels,
    label_setups,
    list_words,
    short_names,
)
from seepage.audit.results import Result, Results
from seepage.audit.results._result import Person
from seepage.core._construct import Component
from seepage.core._grouping import group_by
from seepage.report._contradiction import contradictions
from seepage.report._finding import Finding, find
from seepage.report._wording import Kind

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# Errors that can be told as a PSNR: a value and the width of the range to dB.
DECIBELS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "rmse": lambda value, peak: _decibels(value / peak),
        "mse": lambda value, peak: _decibels(math.sqrt(value) / peak),
    }
)


@dataclass(frozen=True)
class _Scene:
    """What an attack and a bound must share to be compared."""

    data: str
    model: str
    setup: Setup
    mode: str

    @classmethod
    def of(cls, record: Record) -> _Scene:
        known = record.threat and record.threat.arguments.get("batchnorm")
        # A client uses the broadcast statistics unless the threat says otherwise.
        own = "train" if known in ("exact", "unknown") else "eval"
        mode = record.bound.mode if record.bound else own
        return cls(record.data, record.model, Setup.of(record), mode)


@dataclass(frozen=True)
class Standing:
    """A bound on one person, beside the attacks on that person.

    The ceiling, in dB of PSNR, is what no attack exceeds, or what some attack reaches.
    """

    victim: Person
    ceiling: float
    rmse: float
    bound: Ceiling
    tried: tuple[Result, ...]

    @property
    def closest(self) -> Result | None:
        """The attack with the smallest error."""
        return max(self.tried, key=lambda row: row.psnr, default=None)

    @property
    def passed(self) -> bool:
        """Whether an attack came closer than the number, whatever it assumes."""
        closest = self.closest
        lower = self.bound.side == "lower"
        return lower and closest is not None and closest.psnr > self.ceiling

    @property
    def looser_than_guess(self) -> bool:
        """Whether a guess without any update is closer, so that the bound holds back nobody."""
        guesses = [a.baseline for a in self.tried if a.baseline is not None]
        return self.bound.side == "lower" and bool(guesses) and max(guesses) > self.ceiling

    @property
    def covers_every_attack(self) -> bool:
        """Whether the bound holds for searches too."""
        from seepage.bounds._bound import EVERY_ATTACK

        return EVERY_ATTACK in self.bound.assumptions

    @property
    def covers_unbiased_attacks_only(self) -> bool:
        """Whether the bound says nothing of searches."""
        return any(p.startswith("the attack is unbiased") for p in self.bound.assumptions)

    def words(self) -> str:
        """What the bound says of this person."""
        sign = "at most" if self.bound.side == "lower" else "at least"
        return f"{sign} {decibels(self.ceiling)} (error {error_words(self.rmse)})"


@dataclass(frozen=True)
class Headroom:
    """One bound on everybody in one scene.

    Args:
        scene: Network, data and setup.
        bound: The bound.
        people: In the order of the audit; empty where it says nothing.
        tried: Every attack on them, whether the bound speaks or not.
        assumptions: Under which it holds.
        remarks: Why it says nothing, or failed, of those it is silent about.
        silent: How many they are.
        odds: How often any attack can identify each person, where that is what it bounds.
    """

    scene: _Scene
    bound: Component
    people: tuple[Standing, ...]
    tried: tuple[Result, ...]
    assumptions: tuple[str, ...]
    remarks: tuple[str, ...]
    silent: int = 0
    odds: tuple[float, ...] = ()

    @cached_property
    def middle(self) -> Standing:
        """The person in the middle, by ceiling."""
        ranked = sorted(self.people, key=lambda person: person.ceiling)
        return ranked[len(ranked) // 2]

    @cached_property
    def standing(self) -> Finding:
        """How the closest attacks stand to the bound."""
        if self.odds:
            return find(Kind.bound_on_people, share=max(self.odds))
        if not self.people:
            return find(Kind.bound_silent)
        tried = [person for person in self.people if person.tried]
        passed = [person for person in tried if person.passed]
        if contradictions([self]):
            kind = Kind.bound_contradicted
        elif not tried:
            kind = Kind.bound_without_attack
        elif not passed:
            kind = Kind.bound_holds
        elif all(person.looser_than_guess for person in passed):
            kind = Kind.bound_looser_than_guess
        elif self.middle.covers_every_attack:
            kind = Kind.bound_passed_by_luck
        elif self.middle.covers_unbiased_attacks_only:
            kind = Kind.bound_passed_by_bias
        else:
            kind = Kind.bound_passed_by_prior
        counts = {"passed": len(passed), "tried": len(tried), "silent": self.silent}
        return find(kind, gap=self.gap, **counts)

    @property
    def gap(self) -> float | None:
        """Median over people of what is between the closest attack and the ceiling, in dB."""
        gaps = [p.ceiling - p.closest.psnr for p in self.people if p.closest is not None]
        return median(gaps) if gaps else None


def headrooms(tried: Sequence[Result], bounds: Iterable[Record]) -> list[Headroom]:
    """Every bound in every scene, no defense first, then as the audit names them."""
    attacks: dict[tuple[_Scene, Person], list[Result]] = {}
    for row in tried:
        # On a network that the server planted, other bounds hold than on the honest one.
        if row.record.vetted or row.psnr == -math.inf:
            continue
        attacks.setdefault((_Scene.of(row.record), row.victim), []).append(row)
    groups = group_by(bounds, lambda record: (_Scene.of(record), record.attack))
    found = [_headroom(*key, group, attacks) for key, group in groups.items()]
    return sorted(found, key=lambda headroom: headroom.scene.setup.defense != NO_DEFENSE)


def scenes(found: Iterable[Headroom]) -> dict[_Scene, list[Headroom]]:
    """The bounds of each scene."""
    return group_by(found, lambda headroom: headroom.scene)


def reached(found: Iterable[Headroom]) -> Results:
    """The strongest attack on each person of a scene, the worst-off person first."""
    # A person met by several bounds is attacked no more often for it.
    tried = {(row.number, row.index): row for headroom in found for row in headroom.tried}
    return Results(tried.values()).strongest()


def _headroom(
    scene: _Scene,
    name: Component,
    group: Sequence[Record],
    attacks: Mapping[tuple[_Scene, Person], list[Result]],
) -> Headroom:
    from seepage.bounds._dp_limits import IDENTIFIED

    people, phrases, remarks = list[Standing](), dict[str, None](), dict[str, None]()
    odds = list[float]()
    tried = [a for r in group for p in r.people for a in attacks.get((scene, (r.data, p)), ())]
    silent = 0
    for record in group:
        assert record.bound is not None
        phrases |= dict.fromkeys(record.bound.assumptions)
        why = record.error or record.bound.remark
        if not why and record.bound.metric == IDENTIFIED:
            odds.extend(record.bound.values)
            continue
        why = why or _unit(record.bound)
        if why:
            remarks[why] = None
            silent += record.batch_size
        else:
            people.extend(_standings(record, record.bound, scene, attacks))
    return Headroom(
        scene,
        name,
        tuple(people),
        tuple(tried),
        tuple(phrases),
        tuple(remarks),
        silent,
        tuple(odds),
    )


def _standings(
    record: Record,
    bound: Ceiling,
    scene: _Scene,
    attacks: Mapping[tuple[_Scene, Person], list[Result]],
) -> Iterator[Standing]:
    for person, value in zip(record.people, bound.values, strict=True):
        victim = record.data, person
        ceiling = DECIBELS[bound.metric](value, bound.peak)
        rmse = 10 ** (-ceiling / 20) * bound.peak
        yield Standing(victim, ceiling, rmse, bound, tuple(attacks.get((scene, victim), ())))


def _unit(bound: Ceiling) -> str:
    known = bound.metric in DECIBELS
    return "" if known else f"it bounds {bound.metric}, which is no error per entry"


def _decibels(share: float) -> float:
    if share == 0:
        return math.inf
    return -math.inf if share == math.inf else -20 * math.log10(share)


def read_headroom(headroom: Headroom) -> str:
    """How the closest attacks stand to the bound, in words."""
    return str(headroom.standing)


def explain_silence(found: Sequence[Headroom]) -> list[str]:
    """Why some bounds say nothing, one sentence for each reason.

    Reasons that differ in numbers alone are told once, with the range of the numbers.
    """
    labels = label_setups(headroom.scene.setup for headroom in found)
    short = short_names(headroom.bound for headroom in found)
    reasons: dict[tuple[str, str], list[str]] = {}
    places: dict[tuple[str, str], dict[str, None]] = {}
    for headroom in found:
        for remark in headroom.remarks:
            key = short[headroom.bound], _NUMBER.sub("#", remark)
            reasons.setdefault(key, []).append(remark)
            places.setdefault(key, {})[labels[headroom.scene.setup]] = None
    return [
        f"{bound} says nothing behind {list_words(list(places[bound, pattern]))}: "
        f"{_merge_remarks(remarks)}."
        for (bound, pattern), remarks in reasons.items()
    ]


def _merge_remarks(remarks: Sequence[str]) -> str:
    """Remarks of one pattern as one.

    Example:
        >>> _merge_remarks(["2 of 9 are open", "4 of 9 are open"])
        '2 to 4 of 9 are open'
    """
    columns = zip(*(_NUMBER.findall(remark) for remark in remarks), strict=True)
    spans = iter([sorted(set(column), key=float) for column in columns])

    def span(_: re.Match[str]) -> str:
        values = next(spans)
        return values[0] if len(values) == 1 else f"{values[0]} to {values[-1]}"

    return _NUMBER.sub(span, remarks[0])


def closest_words(found: Sequence[Headroom]) -> str:
    """The attack that came closest to anybody."""
    people = reached(found)
    if not people:
        return "-"
    best = max(people, key=lambda row: row.psnr)
    return f"{decibels(best.psnr)} by {best.record.attack.name}"


def error_words(rmse: float) -> str:
    """An error per entry, in a few characters.

    Example:
        >>> error_words(0.01234), error_words(math.inf)
        ('0.0123', 'any')
    """
    return "any" if math.isinf(rmse) else f"{rmse:.3g}"
