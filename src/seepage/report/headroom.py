"""Bounds beside what attacks reached, person by person, in one unit, and both in words.

A bound is on the mean over the noise. Some bounds cover every attack, searches included, if inputs
are as hard to guess as the bound assumes; others cover unbiased attacks only, and a search is none.
An attack that the assumptions cover and that comes closer than luck explains raises an alarm.
Where they do not cover it, the report says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from types import MappingProxyType

from seepage.audit.record import Ceiling, Record
from seepage.core.construct import Component
from seepage.report.leak import Attempt, Victim, strongest
from seepage.report.words import (
    NO_DEFENSE,
    Setup,
    count_noun,
    decibels,
    defense_words,
    label_setups,
    list_words,
    percent,
    short_names,
)

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
        """The scene of an attack or a bound."""
        mode = record.bound.mode if record.bound else _mode_of(record)
        return cls(record.data, record.model, Setup.of(record), mode)


def _batchnorm(record: Record) -> object:
    return None if record.threat is None else record.threat.arguments.get("batchnorm")


def _mode_of(record: Record) -> str:
    """The client's mode: it uses the broadcast statistics unless the threat says otherwise."""
    return "train" if _batchnorm(record) in ("exact", "unknown") else "eval"


@dataclass(frozen=True)
class Standing:
    """A bound on one person, beside the attacks on that person.

    Args:
        victim: Data set and number of the person.
        ceiling: What no attack exceeds, or some attack reaches, in dB of PSNR.
        rmse: The same as an error per entry.
        bound: The record's bound.
        tried: Every attack on this person in this scene.
    """

    victim: Victim
    ceiling: float
    rmse: float
    bound: Ceiling
    tried: tuple[Attempt, ...]

    @property
    def closest(self) -> Attempt | None:
        """The attack with the smallest error."""
        return max(self.tried, key=lambda attempt: attempt.psnr, default=None)

    @property
    def passed(self) -> bool:
        """Whether an attack came closer than the number, whatever it assumes."""
        closest = self.closest
        lower = self.bound.side == "lower"
        return lower and closest is not None and closest.psnr > self.ceiling

    @property
    def blunt(self) -> bool:
        """Whether a guess without any update is closer, so that the bound holds back nobody."""
        guesses = [a.baseline for a in self.tried if a.baseline is not None]
        return self.bound.side == "lower" and bool(guesses) and max(guesses) > self.ceiling


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
    tried: tuple[Attempt, ...]
    assumptions: tuple[str, ...]
    remarks: tuple[str, ...]
    silent: int = 0
    odds: tuple[float, ...] = ()

    @property
    def speaks(self) -> bool:
        """Whether it bounds the error of anybody."""
        return bool(self.people)

    @cached_property
    def middle(self) -> Standing:
        """The person in the middle, by ceiling."""
        ranked = sorted(self.people, key=lambda person: person.ceiling)
        return ranked[len(ranked) // 2]

    @property
    def gap(self) -> float | None:
        """Median over people of what is between the closest attack and the ceiling, in dB."""
        gaps = [p.ceiling - p.closest.psnr for p in self.people if p.closest is not None]
        return median(gaps) if gaps else None


def headrooms(tried: Sequence[Attempt], bounds: Iterable[Record]) -> list[Headroom]:
    """Every bound in every scene, no defense first, then as the audit names them."""
    attacks: dict[tuple[_Scene, Victim], list[Attempt]] = {}
    for attempt in tried:
        # On a network that the server planted, other bounds hold than on the honest one.
        if attempt.record.vetted or attempt.psnr == -math.inf:
            continue
        attacks.setdefault((_Scene.of(attempt.record), attempt.victim), []).append(attempt)
    groups: dict[tuple[_Scene, Component], list[Record]] = {}
    for record in bounds:
        groups.setdefault((_Scene.of(record), record.attack), []).append(record)
    found = [_headroom(*key, group, attacks) for key, group in groups.items()]
    return sorted(found, key=lambda headroom: headroom.scene.setup.defense != NO_DEFENSE)


def scenes(found: Iterable[Headroom]) -> dict[_Scene, list[Headroom]]:
    """The bounds of each scene."""
    groups: dict[_Scene, list[Headroom]] = {}
    for headroom in found:
        groups.setdefault(headroom.scene, []).append(headroom)
    return groups


def reached(found: Iterable[Headroom]) -> dict[Victim, Attempt]:
    """The strongest attack on each person of a scene, the worst-off person first."""
    # A person met by several bounds is attacked no more often for it.
    attempts = {
        (attempt.number, attempt.index): attempt for headroom in found for attempt in headroom.tried
    }
    return strongest(attempts.values())


def _headroom(
    scene: _Scene,
    name: Component,
    group: Sequence[Record],
    attacks: Mapping[tuple[_Scene, Victim], list[Attempt]],
) -> Headroom:
    from seepage.bounds.identification_limit import IDENTIFIED

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
    attacks: Mapping[tuple[_Scene, Victim], list[Attempt]],
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


# Entries that vary independently over at most the range have at most this variance in every
# direction, as a share of the squared range. An error larger than that is spread over several.
SPREAD = 1 / 12
# Two candidates differ by about twice the squared error of the guess in their middle.
WRONG = 2.0
# Probability with which noise alone may make an alarm.
LUCK = 1e-3
# A closed form is unbiased, until it is cut to the range of inputs, which begins to matter here.
WIDE = 0.25
# Along any one direction the error is below the Euclidean norm of a person's. Where even that is
# this share of the range, what a search begins with or prefers is no help: inputs differ by more.
FINE = 0.01


@dataclass(frozen=True)
class Contradiction:
    """An attack that came closer than a bound allows, all assumptions granted.

    Args:
        headroom: The bound.
        attack: What beat it.
        ratio: Root mean square of error over bound, below one.
        cases: People and repetitions that it is the mean of.
    """

    headroom: Headroom
    attack: Component
    ratio: float
    cases: int

    @property
    def sentence(self) -> str:
        """What is wrong, and that something is."""
        scene, middle = self.headroom.scene, self.headroom.middle
        return (
            f"CONTRADICTION: {self.attack.name} came {1 / self.ratio:.3g} times "
            f"closer than {self.headroom.bound} allows on {scene.model} behind "
            f"{defense_words(scene.setup.defense)} (at most {decibels(middle.ceiling)}), over "
            f"{count_noun(self.cases, 'case')}: {self._cause}."
        )

    @property
    def _cause(self) -> str:
        if not _covers_every_attack(self.headroom.middle.bound):
            return "the bound or the attack has a bug"
        return (
            "do not rely on this ceiling. These inputs are easier to guess than the bound assumes, "
            "or the bound or the attack has a bug"
        )


def contradictions(found: Iterable[Headroom]) -> list[Contradiction]:
    """Every bound that an attack beat, attack by attack."""
    return [
        contradiction
        for headroom in found
        for attack, pairs in _pair_by_attack(headroom).items()
        if (contradiction := _judge(headroom, attack, pairs)) is not None
    ]


def comparable(attempt: Attempt, person: Standing) -> bool:
    """Whether a bound's assumptions reach an attack, so that to be below it is impossible."""
    from seepage.bounds.information import SEEN_WITH

    bound, share = person.bound, person.rmse / person.bound.peak
    stated = bound.side == "lower" and 0 < share < math.inf
    assumed = any(phrase.startswith(SEEN_WITH) for phrase in bound.assumptions)
    told_more = _batchnorm(attempt.record) == "exact"
    if not stated or assumed or told_more:
        return False
    if _covers_every_attack(bound):
        return True
    closed_form = attempt.record.effort.get("steps") == 0
    return (closed_form and share <= WIDE) or share * math.sqrt(bound.entries) <= FINE


def _covers_every_attack(bound: Ceiling) -> bool:
    from seepage.bounds.bound import EVERY_ATTACK

    return EVERY_ATTACK in bound.assumptions


def _covers_unbiased_attacks_only(bound: Ceiling) -> bool:
    return any(phrase.startswith("the attack is unbiased") for phrase in bound.assumptions)


def _is_among_candidates(bound: Ceiling) -> bool:
    from seepage.bounds.bound import AMONG

    return any(phrase.startswith(AMONG) for phrase in bound.assumptions)


def _pair_by_attack(headroom: Headroom) -> dict[Component, list[tuple[Attempt, Standing]]]:
    groups: dict[Component, list[tuple[Attempt, Standing]]] = {}
    for person in headroom.people:
        for attempt in person.tried:
            if comparable(attempt, person):
                groups.setdefault(attempt.record.attack, []).append((attempt, person))
    return groups


def _judge(
    headroom: Headroom, attack: Component, pairs: Sequence[tuple[Attempt, Standing]]
) -> Contradiction | None:
    """Whether the mean squared error is below the bound by more than luck."""
    squares = [10 ** ((_limit(*pair) - pair[0].psnr) / 10) for pair in pairs]
    lucky = _is_lucky_choice if _is_among_candidates(headroom.middle.bound) else _is_lucky_noise
    if lucky(squares, pairs):
        return None
    ratio = math.sqrt(sum(squares) / len(squares))
    return Contradiction(headroom, attack, max(ratio, 1e-12), len(squares))


def _limit(attempt: Attempt, person: Standing) -> float:
    """The PSNR that an attack may reach: the ceiling, or a guess without any update if closer."""
    if _covers_every_attack(person.bound) and attempt.baseline is not None:
        return max(person.ceiling, attempt.baseline)
    return person.ceiling


def _is_lucky_noise(squares: Sequence[float], pairs: Sequence[tuple[Attempt, Standing]]) -> bool:
    """Whether errors as small as these come from lucky noise, of attacks that meet the bound.

    Were the attack efficient, each squared error over its bound would be a mean of squares of
    standard normals, with weights that add up to one. Its lower tail is the heaviest where all
    weight is on one, so the sum over cases is compared with chi squared of as many degrees. A bound
    that covers every attack averages over independent entries, which puts an upper limit on each
    weight and so gives a case as many degrees as its error needs directions.
    """
    from scipy.stats import chi2

    degrees = [_count_directions(person) for _, person in pairs]
    total = sum(n * square for n, square in zip(degrees, squares, strict=True))
    return bool(total >= chi2.ppf(LUCK, sum(degrees)))


def _count_directions(person: Standing) -> int:
    """The least number of directions over which the error of a bound is spread."""
    if not _covers_every_attack(person.bound):
        return 1
    share = person.rmse / person.bound.peak
    return max(1, int(person.bound.entries * share**2 / SPREAD))


def _is_lucky_choice(squares: Sequence[float], pairs: Sequence[tuple[Attempt, Standing]]) -> bool:
    """Whether as many right choices among candidates are luck, if the bound holds.

    An attack that names the right candidate has no error, so the mean says nothing about one case.
    With a mean squared error of b^2 and at most M, a case is closer than half of b in at most
    1 - (b^2 - b^2 / 4) / (M - b^2 / 4) of the draws.
    """
    from scipy.stats import binom

    close, chance = 0, 0.0
    for square, (attempt, person) in zip(squares, pairs, strict=True):
        limit = 10 ** (-_limit(attempt, person) / 10)
        blind = limit if attempt.baseline is None else 10 ** (-attempt.baseline / 10)
        close += square < 1 / 4
        quarter = limit / 4
        chance = max(chance, 1 - (limit - quarter) / (WRONG * max(blind, limit) - quarter))
    return bool(binom.sf(close - 1, len(squares), chance) >= LUCK)


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
COLUMNS = ("network", "defense", "bound", "error at least", "PSNR at most", "closest attack", "")


def tabulate_bounds(found: Sequence[Headroom]) -> list[list[str]]:
    """One row per scene and bound, as text under `COLUMNS`."""
    short = short_names(headroom.bound for headroom in found)
    labels = label_setups(headroom.scene.setup for headroom in found)
    return [
        [
            headroom.scene.model,
            labels[headroom.scene.setup],
            short[headroom.bound],
            error_words(headroom.middle.rmse) if headroom.speaks else "-",
            decibels(headroom.middle.ceiling) if headroom.speaks else "-",
            closest_words([headroom]),
            read_headroom(headroom),
        ]
        for headroom in found
    ]


def read_headroom(headroom: Headroom) -> str:
    """How the closest attacks stand to the bound, in words."""
    if headroom.odds:
        return f"no attack identifies more than {percent(max(headroom.odds))} of people"
    if not headroom.speaks:
        return "says nothing"
    silent = f"; says nothing of {headroom.silent}" if headroom.silent else ""
    return _comparison(headroom) + silent


def _comparison(headroom: Headroom) -> str:
    if contradictions([headroom]):
        return "BEATEN: one of the two has a bug"
    tried = [person for person in headroom.people if person.tried]
    if not tried:
        return "no attack to compare with"
    passed = [person for person in tried if person.passed]
    share = f"{len(passed)} of {len(tried)}"
    if passed and all(person.blunt for person in passed):
        return f"a guess without any update is closer, for {share}"
    if passed and _covers_every_attack(headroom.middle.bound):
        return f"closer for {share}, no more than luck explains"
    if passed and _covers_unbiased_attacks_only(headroom.middle.bound):
        return f"closer for {share}, by bias or luck: the bound covers unbiased attacks only"
    if passed:
        return f"closer for {share}, by what the bound leaves out: a prior, or luck"
    return f"holds for {count_noun(len(tried), 'person', 'people')}, {headroom.gap:.1f} dB above"


def silences(found: Sequence[Headroom]) -> list[str]:
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
    best = max(people.values(), key=lambda attempt: attempt.psnr)
    return f"{decibels(best.psnr)} by {best.record.attack.name}"


def error_words(rmse: float) -> str:
    """An error per entry, in a few characters.

    Example:
        >>> error_words(0.01234), error_words(math.inf)
        ('0.0123', 'any')
    """
    return "any" if math.isinf(rmse) else f"{rmse:.3g}"


def ceiling_words(person: Standing) -> str:
    """What a bound says of one person."""
    sign = "at most" if person.bound.side == "lower" else "at least"
    return f"{sign} {decibels(person.ceiling)} (error {error_words(person.rmse)})"
