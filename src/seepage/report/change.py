"""Two audits side by side: who leaks more, and who less, behind what and to which attack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from seepage.audit import Record
from seepage.report.leak import SATURATED, Attempt, Level, Victim, attempts, strength
from seepage.report.verdict import Verdict
from seepage.report.words import behind, counted, decibels

# Smaller differences are what another seed gives as well, in dB of PSNR.
NOTICED = 1.0


class Direction(StrEnum):
    """What became of a person."""

    worse = "worse"
    better = "better"
    same = "same"
    appeared = "only in the second"
    vanished = "only in the first"


@dataclass(frozen=True)
class Change:
    """One person behind one defense against one attack, before and after.

    Args:
        victim: Data set and number of the person.
        defense: Behind which.
        attack: Against which.
        before: The strongest attempt of the first audit, None if it had none.
        after: The same of the second.
    """

    victim: Victim
    defense: str
    attack: str
    before: Attempt | None
    after: Attempt | None

    @property
    def difference(self) -> float:
        """How much more came back, in dB as far as they tell; zero where only one audit does."""
        if self.before is None or self.after is None:
            return 0.0
        return min(self.after.psnr, SATURATED) - min(self.before.psnr, SATURATED)

    @property
    def weight(self) -> tuple[int, float]:
        """What changes are ordered by: another reading first, then the difference."""
        if self.before is None or self.after is None:
            return 0, 0.0
        return abs(self.before.level.rank - self.after.level.rank), abs(self.difference)

    @property
    def direction(self) -> Direction:
        """Whether that is worse or better for the person."""
        if self.before is None:
            return Direction.appeared
        if self.after is None:
            return Direction.vanished
        if self.before.level is self.after.level and abs(self.difference) < NOTICED:
            return Direction.same
        worse = (self.before.level.rank, self.difference) > (self.after.level.rank, 0.0)
        return Direction.worse if worse else Direction.better


def changes(before: Sequence[Record], after: Sequence[Record]) -> list[Change]:
    """Every person of either audit behind every defense and attack, what got worst first."""
    old, new = _strongest(before), _strongest(after)
    found = [
        Change(victim, defense, attack, old.get(key), new.get(key))
        for key in dict.fromkeys([*old, *new])
        for victim, defense, attack in [key]
    ]
    ordered = sorted(found, key=lambda change: change.weight, reverse=True)
    return [change for kind in Direction for change in ordered if change.direction is kind]


def comparison_verdict(found: Sequence[Change]) -> Verdict:
    """What changed, as sentences."""
    worse = [change for change in found if change.direction is Direction.worse]
    better = [change for change in found if change.direction is Direction.better]
    both = [change for change in found if change.before and change.after]
    if not both:
        return Verdict(None, "The two audits have nothing in common to compare")
    headline = (
        f"{_people(worse)} {'leaks' if _count(worse) == 1 else 'leak'} more than before"
        if worse
        else f"{_people(better)} {'leaks' if _count(better) == 1 else 'leak'} less than before"
        if better
        else "Nothing changed"
    )
    alone = len(found) - len(both)
    details = [
        *(f"Most: {_told(c)}." for c in worse[:1]),
        *(f"{'Less leaks too: ' if worse else 'Most: '}{_told(c)}." for c in better[:1]),
        f"Compared: {counted(len(both), 'pair')} of results ({len(worse)} worse, "
        f"{len(better)} better, {len(both) - len(worse) - len(better)} within {NOTICED:g} dB)"
        + (f"; {alone} stand in one audit only." if alone else "."),
    ]
    level = Level.recognisable if worse else Level.hidden
    return Verdict(level, headline, tuple(details))


def _strongest(records: Sequence[Record]) -> dict[tuple[Victim, str, str], Attempt]:
    best: dict[tuple[Victim, str, str], Attempt] = {}
    for attempt in attempts(records):
        key = (attempt.victim, attempt.record.defense, attempt.record.attack)
        known = best.get(key)
        if known is None or strength(attempt) > strength(known):
            best[key] = attempt
    return best


def _count(found: Sequence[Change]) -> int:
    return len({change.victim for change in found})


def _people(found: Sequence[Change]) -> str:
    return counted(_count(found), "person", "people")


def _told(change: Change) -> str:
    return (
        f"{change.victim[0]} #{change.victim[1]} behind {behind(change.defense)} against "
        f"{change.attack.partition('(')[0]}, {_psnr(change.before)} before and "
        f"{_psnr(change.after)} now"
    )


def _psnr(attempt: Attempt | None) -> str:
    return decibels(None if attempt is None else attempt.psnr)
