"""Attacks that came closer than a bound allows.

A bound is on the mean over the noise. Some bounds cover every attack, searches included, if inputs
are as hard to guess as the bound assumes; others cover unbiased attacks only, and a search is none.
An attack that the assumptions cover and that comes closer than luck explains raises an alarm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seepage.core._grouping import group_by
from seepage.report._finding import Finding, find
from seepage.report.wording import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from seepage.audit.results import Result
    from seepage.core._construct import Component
    from seepage.report._headroom import Headroom, Standing

    _Pair = tuple[Result, Standing]

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
    def finding(self) -> Finding:
        """What is wrong, for a report."""
        return find(
            Kind.bound_beaten,
            headroom=self.headroom,
            attack=self.attack.name,
            ratio=self.ratio,
            cases=self.cases,
        )

    @property
    def sentence(self) -> str:
        """One sentence naming the beaten bound and the attack that beat it."""
        return str(self.finding)


def contradictions(found: Iterable[Headroom]) -> list[Contradiction]:
    """Every bound that an attack beat, attack by attack."""
    return [
        contradiction
        for headroom in found
        for attack, pairs in _pair_by_attack(headroom).items()
        if (contradiction := _judge(headroom, attack, pairs)) is not None
    ]


def _is_comparable(row: Result, person: Standing) -> bool:
    """Whether a bound's assumptions reach an attack, so that to be below it is impossible."""
    from seepage.bounds._bound import SEEN_WITH

    bound, share = person.bound, person.rmse / person.bound.peak
    stated = bound.side == "lower" and 0 < share < math.inf
    threat = row.record.threat
    told_more = threat is not None and threat.arguments.get("batchnorm") == "exact"
    if not stated or SEEN_WITH in bound.assumptions or told_more:
        return False
    if person.covers_every_attack:
        return True
    closed_form = row.record.effort.get("steps") == 0
    return (closed_form and share <= WIDE) or share * math.sqrt(bound.entries) <= FINE


def _pair_by_attack(headroom: Headroom) -> dict[Component, list[_Pair]]:
    pairs = ((row, person) for person in headroom.people for row in person.tried)
    comparable = (pair for pair in pairs if _is_comparable(*pair))
    return group_by(comparable, lambda pair: pair[0].record.attack)


def _judge(headroom: Headroom, attack: Component, pairs: Sequence[_Pair]) -> Contradiction | None:
    """Whether the mean squared error is below the bound by more than luck."""
    from seepage.bounds._bound import AMONG

    # A file may hold a limit so low that its ratio is beyond any number.
    squares = [10 ** (min(_limit(*pair) - pair[0].psnr, 3000.0) / 10) for pair in pairs]
    among = AMONG in headroom.middle.bound.assumptions
    lucky = _is_lucky_choice if among else _is_lucky_noise
    if lucky(squares, pairs):
        return None
    ratio = math.sqrt(sum(squares) / len(squares))
    return Contradiction(headroom, attack, max(ratio, 1e-12), len(squares))


def _limit(row: Result, person: Standing) -> float:
    """The PSNR that an attack may reach: the ceiling, or a guess without any update if closer."""
    if person.covers_every_attack and row.baseline is not None:
        return max(person.ceiling, row.baseline)
    return person.ceiling


def _is_lucky_noise(squares: Sequence[float], pairs: Sequence[_Pair]) -> bool:
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
    if not person.covers_every_attack:
        return 1
    share = person.rmse / person.bound.peak
    return max(1, int(person.bound.entries * share**2 / SPREAD))


def _is_lucky_choice(squares: Sequence[float], pairs: Sequence[_Pair]) -> bool:
    """Whether as many right choices among candidates are luck, if the bound holds.

    An attack that names the right candidate has no error, so the mean says nothing about one case.
    With a mean squared error of b^2 and at most M, a case is closer than half of b in at most
    1 - (b^2 - b^2 / 4) / (M - b^2 / 4) of the draws.
    """
    from scipy.stats import binom

    close, chance = 0, 0.0
    for square, (row, person) in zip(squares, pairs, strict=True):
        limit = 10 ** (-_limit(row, person) / 10)
        blind = limit if row.baseline is None else 10 ** (-row.baseline / 10)
        close += square < 1 / 4
        quarter = limit / 4
        chance = max(chance, 1 - (limit - quarter) / (WRONG * max(blind, limit) - quarter))
    return bool(binom.sf(close - 1, len(squares), chance) >= LUCK)
