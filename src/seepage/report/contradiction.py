"""A bound that an attack beat: a bug in one of the two, to be said loudly.

Bounds are on the mean over the noise of attacks that are unbiased, or know nothing of what inputs
look like. Most attacks are not that, and one draw of the noise is not its mean. So an attack counts
against a bound only where its assumptions reach it, and only beyond what luck explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from seepage.bounds.words import SEEN_WITH
from seepage.report.headroom import Headroom, Standing
from seepage.report.leak import Attempt
from seepage.report.words import behind, counted, decibels

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
    attack: str
    ratio: float
    cases: int

    @property
    def sentence(self) -> str:
        """What is wrong, and that something is."""
        scene, middle = self.headroom.scene, self.headroom.middle
        return (
            f"CONTRADICTION: {self.attack.partition('(')[0]} came {1 / self.ratio:.3g} times "
            f"closer than {self.headroom.bound} allows on {scene.model} behind "
            f"{behind(scene.defense)} (at most {decibels(middle.ceiling)}), over "
            f"{counted(self.cases, 'case')}: the bound or the attack has a bug."
        )


def contradictions(found: Iterable[Headroom]) -> list[Contradiction]:
    """Every bound that an attack beat, attack by attack."""
    return [
        contradiction
        for headroom in found
        for attack, pairs in _by_attack(headroom).items()
        if (contradiction := _judged(headroom, attack, pairs)) is not None
    ]


def comparable(attempt: Attempt, person: Standing) -> bool:
    """Whether a bound's assumptions reach an attack, so that to be below it is impossible."""
    bound, share = person.bound, person.rmse / person.bound.peak
    stated = bound.side == "lower" and 0 < share < math.inf
    assumed = any(phrase.startswith(SEEN_WITH) for phrase in bound.assumptions)
    told_more = "batchnorm='exact'" in attempt.record.threat
    if not stated or assumed or told_more:
        return False
    closed_form = attempt.record.effort.get("steps") == 0
    return (closed_form and share <= WIDE) or share * math.sqrt(bound.entries) <= FINE


def _by_attack(headroom: Headroom) -> dict[str, list[tuple[Attempt, Standing]]]:
    groups: dict[str, list[tuple[Attempt, Standing]]] = {}
    for person in headroom.people:
        for attempt in person.tried:
            if comparable(attempt, person):
                groups.setdefault(attempt.record.attack, []).append((attempt, person))
    return groups


def _judged(
    headroom: Headroom, attack: str, pairs: Sequence[tuple[Attempt, Standing]]
) -> Contradiction | None:
    """Whether the mean squared error is below the bound by more than luck.

    Were the attack efficient, each squared error over its bound would be a mean of squares of
    standard normals, with weights that add up to one. Its lower tail is the heaviest where all
    weight is on one, so the sum over cases is compared with chi squared of as many degrees.
    """
    from scipy.stats import chi2

    squares = [10 ** ((person.ceiling - attempt.psnr) / 10) for attempt, person in pairs]
    if sum(squares) >= chi2.ppf(LUCK, len(squares)):
        return None
    ratio = math.sqrt(sum(squares) / len(squares))
    return Contradiction(headroom, attack, max(ratio, 1e-12), len(squares))
