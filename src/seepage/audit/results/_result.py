"""One row of the results: one attack on one person, and what it shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from seepage.audit._record import Defense, Record
from seepage.audit._words import Setup
from seepage.audit.results._amount import Amount, find_amount, find_baseline
from seepage.scoring._identification import Identification

# Data set and number.
Person = tuple[str, int]


def name_person(person: Person) -> str:
    """What reports call a person.

    Example:
        >>> name_person(("photos", 3))
        'photos #3'
    """
    return f"{person[0]} #{person[1]}"


class Level(StrEnum):
    """What was shown about a person, the worst first.

    Scores agree with human judgement only loosely, so no threshold on a score decides.

    Attributes:
        reconstructed: The input came back, and fits no stranger as well: the same 8-bit image,
            every column, every word.
        recognisable: The guess singles the person out, and an eye would agree.
        singled_out: The guess looks more like the person than like any stranger.
        partly: Something else came back: the label, some columns, some words.
        inconclusive: Nothing was found, by an attack that is not known to find anything.
        not_shown: Nothing was found, by an attack that finds a known person without the defense; or
            a theorem leaves every attack nothing but luck.

    References:
        Sun et al., 2023 (sun2023privacy)
    """

    reconstructed = "reconstructed"
    recognisable = "recognisable"
    singled_out = "singled out"
    partly = "partly"
    inconclusive = "inconclusive"
    not_shown = "not shown"

    @property
    def rank(self) -> int:
        """Zero for the worst."""
        return list(Level).index(self)

    @property
    def identified(self) -> bool:
        """Whether the person is singled out, or worse."""
        return self.rank <= Level.singled_out.rank


@dataclass(frozen=True)
class Result:
    """One attack on one person.

    Args:
        number: Position of the case in the audit.
        record: The case.
        index: Position of the person in the record's batch.
        level: What was shown, corrected for all attacks and people of the setup.
        label: Whether the label leaked, which the adversary did not know.
        parts: The shares of columns or words that leaked of somebody who is not identified.
        behind: Links behind which this was found, and which the adversary applies to the update
            itself; empty for an attack that was run as it stands.
        conclusive: Whether an attack on this person is known to find people, on every network,
            behind every defense and for every adversary; or whether it is settled.
        settled: Whether a theorem leaves every attack nothing but luck.
    """

    number: int
    record: Record
    index: int
    level: Level
    label: bool = False
    parts: tuple[Amount, ...] = ()
    behind: Defense = ()
    conclusive: bool = False
    settled: bool = False

    @property
    def victim(self) -> Person:
        """Data set and number of the person in it."""
        return self.record.data, self.record.people[self.index]

    @property
    def name(self) -> str:
        """The data set and the number, as reports name a person."""
        return name_person(self.victim)

    @property
    def person(self) -> Person:
        """Data set and number to count by: one for all captured updates of the same person."""
        return self.record.persons[self.index]

    @property
    def update(self) -> tuple[str, tuple[int, ...]]:
        """Data set and people of the update; people who share one are no independent draws."""
        return self.record.data, self.record.people

    @cached_property
    def setup(self) -> Setup:
        """Defense, local computation and batch size."""
        return Setup.of(self.record)

    @property
    def shows(self) -> bool:
        """Whether anything was shown about the person."""
        return self.level.rank <= Level.partly.rank

    @property
    def unclear(self) -> bool:
        """Whether the person was not identified, by attacks that may be too weak to tell."""
        return not self.level.identified and not self.conclusive

    @property
    def doubtful(self) -> bool:
        """Whether the attack that identifies the person also finds people who are not there."""
        control = self.record.control
        shown = self.level in (Level.recognisable, Level.singled_out)
        return shown and control is not None and control.misleading

    @property
    def exact(self) -> bool:
        """Whether the guess is the input exactly, which alone identifies nobody."""
        return self.record.is_exact(self.index)

    @property
    def identification(self) -> Identification | None:
        """Place of the person among strangers; None if there were none to compare with."""
        found = self.record.identification
        return found[self.index] if found else None

    @cached_property
    def psnr(self) -> float:
        """What came back, in dB; minus infinity where that is not defined."""
        found = self.score("psnr")
        return -math.inf if found is None else found

    @cached_property
    def amount(self) -> Amount:
        """What came back, by the measure of its kind of input."""
        return find_amount(self.record, self.index)

    @cached_property
    def is_share(self) -> bool:
        """Whether a share of columns or words is measured, and not PSNR."""
        return self.amount.is_share

    @cached_property
    def measured(self) -> float:
        """The PSNR, or the share of columns or words in per cent; minus infinity if undefined."""
        if not self.is_share:
            return self.psnr
        return -math.inf if self.amount.value is None else 100 * self.amount.value

    @cached_property
    def without_update(self) -> Amount:
        """The same of the best guess for this person that needs no update."""
        metric = self.amount.metric
        return Amount(metric, find_baseline(self.record, self.index, metric))

    @property
    def baseline(self) -> float | None:
        """PSNR of the best guess for this person that needs no update; None if none was made."""
        return find_baseline(self.record, self.index, "psnr")

    @cached_property
    def strength(self) -> tuple[int, float, float]:
        """The order of results: the level, then the share of columns or words, then the PSNR."""
        share = self.measured if self.is_share else 0.0
        return -self.level.rank, share, self.psnr

    def score(self, metric: str) -> float | None:
        """Another score of the same guess; None where it is not defined."""
        values = self.record.scores.get(metric)
        return None if values is None else values[self.index]
