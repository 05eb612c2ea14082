"""Compare two audits: who leaks more and who less, by setup and attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from seepage.audit.record import Record
from seepage.core.construct import Component
from seepage.report.leak import SATURATED, Attempt, Level, Verdict, Victim, attempts, keep_strongest
from seepage.report.words import Setup, count_noun, decibels, label_setups

# Another seed alone can change the PSNR by less than this, in dB.
NOTICED = 1.0


class Direction(StrEnum):
    """How an attack on a person changed."""

    worse = "worse"
    better = "better"
    same = "same"
    appeared = "only in the second"
    vanished = "only in the first"


@dataclass(frozen=True)
class Change:
    """One person in one setup against one attack: the strongest attempt of either audit."""

    victim: Victim
    setup: Setup
    attack: Component
    before: Attempt | None
    after: Attempt | None

    @property
    def difference(self) -> float:
        """How much more came back, in dB up to saturation; zero if only one audit has a result."""
        if self.before is None or self.after is None:
            return 0.0
        return min(self.after.psnr, SATURATED) - min(self.before.psnr, SATURATED)

    @property
    def weight(self) -> tuple[int, float]:
        """The order of changes: by the change of reading, then by the difference."""
        if self.before is None or self.after is None:
            return 0, 0.0
        return abs(_rank(self.before) - _rank(self.after)), abs(self.difference)

    @property
    def direction(self) -> Direction:
        """Whether the change is worse or better for the person."""
        if self.before is None:
            return Direction.appeared
        if self.after is None:
            return Direction.vanished
        if _rank(self.before) == _rank(self.after) and abs(self.difference) < NOTICED:
            return Direction.same
        worse = (_rank(self.before), self.difference) > (_rank(self.after), 0.0)
        return Direction.worse if worse else Direction.better


def _rank(attempt: Attempt) -> int:
    """The order of levels; whether nothing was found conclusively does not count as a change."""
    return min(attempt.level.rank, Level.inconclusive.rank)


def changes(before: Sequence[Record], after: Sequence[Record]) -> list[Change]:
    """List every person of either audit in every setup against every attack, worst first."""
    old, new = (keep_strongest(attempts(records), _key) for records in (before, after))
    found = [Change(*key, old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new])]
    ordered = sorted(found, key=lambda change: change.weight, reverse=True)
    return [change for kind in Direction for change in ordered if change.direction is kind]


def comparison_verdict(found: Sequence[Change]) -> Verdict:
    """Write what changed as sentences."""
    worse = [change for change in found if change.direction is Direction.worse]
    better = [change for change in found if change.direction is Direction.better]
    both = [change for change in found if change.before and change.after]
    if not both:
        return Verdict(None, "The two audits have nothing in common to compare")
    headline = "Nothing changed"
    if worse or better:
        people = len({change.victim for change in worse or better})
        verb, more = "leaks" if people == 1 else "leak", "more" if worse else "less"
        headline = f"{count_noun(people, 'person', 'people')} {verb} {more} than before"
    labels = label_setups(change.setup for change in found)
    alone = len(found) - len(both)
    details = [
        *(f"Most: {_tell(c, labels)}." for c in worse[:1]),
        *(
            f"{'Also, less leaks of ' if worse else 'Most: '}{_tell(c, labels)}."
            for c in better[:1]
        ),
        f"Compared: {count_noun(len(both), 'pair')} of results ({len(worse)} worse, "
        f"{len(better)} better, {len(both) - len(worse) - len(better)} within {NOTICED:g} dB)"
        + (f"; {alone} are in one audit only." if alone else "."),
    ]
    level = Level.recognisable if worse else Level.not_shown
    return Verdict(level, headline, tuple(details))


def _key(attempt: Attempt) -> tuple[Victim, Setup, Component]:
    return attempt.victim, Setup.of(attempt.record), attempt.record.attack


def _tell(change: Change, labels: Mapping[Setup, str]) -> str:
    return (
        f"{change.victim[0]} #{change.victim[1]} behind {labels[change.setup]} against "
        f"{change.attack.name}, {psnr_words(change.before)} before and "
        f"{psnr_words(change.after)} now"
    )


def psnr_words(attempt: Attempt | None) -> str:
    """The PSNR of one side of a change; "-" if that audit has no such attempt."""
    return decibels(None if attempt is None else attempt.psnr)
