"""What bounds allow and what attacks reached, person by person, in one unit and in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from seepage.audit._record import Ceiling, Record
from seepage.audit._words import (
    NO_DEFENSE,
    Setup,
    count_noun,
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
from seepage.report.wording import Kind

# Reasons that are told why a bound says nothing of some people.
_REASONS = 3
# Errors that can be told as a PSNR: a value and the width of the range to dB.
DECIBELS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "rmse": lambda value, peak: _decibels(value / peak),
        "mse": lambda value, peak: _decibels(math.sqrt(value) / peak),
    }
)


class Scene(NamedTuple):
    """What an attack and a bound must share to be compared."""

    data: str
    model: str
    setup: Setup
    mode: str


def _find_scene(record: Record) -> Scene:
    known = record.threat and record.threat.arguments.get("batchnorm")
    # A client uses the broadcast statistics unless the threat says otherwise.
    own = "train" if known in ("exact", "unknown") else "eval"
    mode = record.bound.mode if record.bound else own
    return Scene(record.data, record.model, Setup.of(record), mode)


@dataclass(frozen=True)
class Standing:
    """A bound on one person, and the attacks on that person.

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
        """Whether an attack came closer than the number, whether or not it is covered."""
        closest = self.closest
        lower = self.bound.side == "lower"
        return lower and closest is not None and closest.psnr > self.ceiling

    @property
    def looser_than_guess(self) -> bool:
        """Whether a guess without any update is closer, so that the bound means nothing."""
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
        from seepage.bounds._bound import UNBIASED

        return UNBIASED in self.bound.assumptions

    def words(self) -> str:
        """What the bound says of this person."""
        sign = "at most" if self.bound.side == "lower" else "at least"
        return f"{sign} {decibels(self.ceiling)} (error {error_words(self.rmse)})"


@dataclass(frozen=True)
class Headroom:
    """One bound on all people of one scene, and the attacks on them.

    Args:
        scene: Data, network, setup and mode.
        bound: The bound.
        people: Those of whom it limits the error, in the order of the audit.
        tried: Every attack on people of the scene.
        assumptions: Under which it holds.
        remarks: Why it says nothing of the others, or failed.
        silent: How many others there are.
        odds: How often any attack can identify each person, where that is what it bounds.
    """

    scene: Scene
    bound: Component
    people: tuple[Standing, ...]
    tried: tuple[Result, ...]
    assumptions: tuple[str, ...]
    remarks: tuple[str, ...]
    silent: int = 0
    odds: tuple[float, ...] = ()

    @property
    def informative(self) -> bool:
        """Whether the bound says something of anybody."""
        return bool(self.people or self.odds)

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
    # On a network that the server planted, other bounds hold than on the honest one.
    honest = [row for row in tried if not row.record.vetted and row.psnr > -math.inf]
    attacks = group_by(honest, lambda row: (_find_scene(row.record), row.victim))
    groups = group_by(bounds, lambda record: (_find_scene(record), record.attack))
    found = [_compare(*key, group, attacks) for key, group in groups.items()]
    return sorted(found, key=lambda headroom: headroom.scene.setup.defense != NO_DEFENSE)


def scenes(found: Iterable[Headroom]) -> dict[Scene, list[Headroom]]:
    """The bounds of each scene."""
    return group_by(found, lambda headroom: headroom.scene)


def reached(found: Iterable[Headroom]) -> Results:
    """The strongest attack on each person of a scene, the worst-off person first."""
    # A person met by several bounds is attacked no more often for it.
    tried = {(row.number, row.index): row for headroom in found for row in headroom.tried}
    return Results(tried.values()).strongest()


def _compare(
    scene: Scene,
    bound: Component,
    records: Sequence[Record],
    attacks: Mapping[tuple[Scene, Person], list[Result]],
) -> Headroom:
    from seepage.bounds._dp_limits import IDENTIFIED

    people, odds, remarks = list[Standing](), list[float](), list[str]()
    assumptions, tried, silent = list[str](), list[Result](), 0
    for record in records:
        found = record.bound
        assert found is not None
        mine = [tuple(attacks.get((scene, (record.data, one)), ())) for one in record.people]
        tried += chain.from_iterable(mine)
        assumptions += found.assumptions
        why = record.error or found.remark
        if not why and found.metric == IDENTIFIED:
            odds += found.values
        elif why or (why := _unit(found)):
            remarks.append(why)
            silent += record.batch_size
        else:
            for person, value, rows in zip(record.people, found.values, mine, strict=True):
                ceiling = DECIBELS[found.metric](value, found.peak)
                rmse = 10 ** (-ceiling / 20) * found.peak
                people.append(Standing((record.data, person), ceiling, rmse, found, rows))
    return Headroom(
        scene,
        bound,
        tuple(people),
        tuple(tried),
        tuple(dict.fromkeys(assumptions)),
        tuple(dict.fromkeys(remarks)),
        silent,
        tuple(odds),
    )


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
    """Why some bounds say nothing: a sentence for each bound and its reasons."""
    labels = label_setups(headroom.scene.setup for headroom in found)
    short = short_names(headroom.bound for headroom in found)
    silent = (headroom for headroom in found if headroom.remarks)
    groups = group_by(silent, lambda headroom: (headroom.bound, headroom.remarks))
    told = []
    for (bound, remarks), group in groups.items():
        setups = list_words([*dict.fromkeys(labels[headroom.scene.setup] for headroom in group)])
        left = len(remarks) - _REASONS
        reasons = [*remarks[:_REASONS], *[f"and {count_noun(left, 'more reason')}"] * (left > 0)]
        told.append(f"{short[bound]} says nothing behind {setups}: {'; '.join(reasons)}.")
    return told


# The titles of what `tabulate_headrooms` writes.
COLUMNS = ("network", "defense", "bound", "error at least", "PSNR at most", "closest attack", "")


def tabulate_headrooms(found: Sequence[Headroom]) -> list[list[str]]:
    """One row per scene and bound, as text under `COLUMNS`."""
    short = short_names(headroom.bound for headroom in found)
    labels = label_setups(headroom.scene.setup for headroom in found)
    return [
        [
            headroom.scene.model,
            labels[headroom.scene.setup],
            short[headroom.bound],
            error_words(headroom.middle.rmse) if headroom.people else "-",
            decibels(headroom.middle.ceiling) if headroom.people else "-",
            closest_words([headroom]),
            read_headroom(headroom),
        ]
        for headroom in found
    ]


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
