"""A place on the leaderboard: what leaked behind a defense, and what it cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median
from typing import Any

from seepage.audit._record import Defense, Record
from seepage.audit._words import count_noun
from seepage.audit.results import Level, Result, Results
from seepage.audit.results._intervals import Interval, share_interval
from seepage_papers.board import Board, Line


class Status(StrEnum):
    """What a line shows.

    Attributes:
        leaks: Somebody was identified.
        not_shown: Nobody was, by an attack that finds people without a defense.
        inconclusive: Nobody was, and the attack was too weak to tell about some.
        failed: There is no result.
    """

    leaks = "leaks"
    not_shown = "not shown"
    inconclusive = "inconclusive"
    failed = "failed"

    @property
    def decided(self) -> bool:
        """Whether the line has a place among others."""
        return self in (Status.leaks, Status.not_shown)


@dataclass(frozen=True)
class Tally:
    """What came back of the people of one batch size.

    Args:
        levels: Of each person, by the strongest attack on them.
        psnr: The same in dB.
        undecided: How many were not identified by an attack that is too weak to tell.
        attacks: How many people each attack was chosen for.
        updates: The update of each person; empty if each has their own.
    """

    levels: tuple[Level, ...]
    psnr: tuple[float, ...]
    undecided: int
    attacks: Mapping[str, int]
    updates: tuple[Hashable, ...] = ()

    @classmethod
    def of(cls, best: Iterable[Result]) -> Tally:
        """Count the strongest attempts, one for each person."""
        best = tuple(best)
        return cls(
            levels=tuple(attempt.level for attempt in best),
            psnr=tuple(attempt.psnr for attempt in best),
            undecided=sum(not a.level.identified and not a.conclusive for a in best),
            attacks=dict(Counter(map(_name_attack, best))),
            updates=tuple(attempt.update for attempt in best),
        )

    @property
    def people(self) -> int:
        """How many were attacked."""
        return len(self.levels)

    @property
    def identified(self) -> int:
        """How many were singled out, recognisable or reconstructed."""
        return sum(level.identified for level in self.levels)

    @property
    def interval(self) -> Interval:
        """The share of people who are identified."""
        found = [level.identified for level in self.levels]
        return share_interval(found, self.updates or None)

    def words(self) -> str:
        """In a cell of the table; whoever may be identified unseen is told as well.

        Example:
            >>> Tally((Level.reconstructed, Level.inconclusive), (60.0, 9.0), 1, {}).words()
            '1 of 2 (1-99 %), 1 undecided'
        """
        found = self.interval
        told = (
            f"{self.identified} of {self.people} ({100 * found.low:.0f}-{100 * found.high:.0f} %)"
        )
        return told + f", {self.undecided} undecided" * bool(self.undecided)


def _name_attack(attempt: Result) -> str:
    race = attempt.record.race
    return " + ".join(race.chosen) if race is not None and race.chosen else "auto"


@dataclass(frozen=True)
class Standing:
    """One defense with its cost and its leakage.

    Args:
        label: The defense.
        text: How a spec writes it.
        accuracy: Of the network trained behind it; None if no training came to an end.
        tallies: By batch size.
        unfit: Batch sizes at which it cannot be used, and why.
        masked: Whether it misleads the search more than it hides the data.
        misled: Whether the attack also finds people who are not there.
        errors: Of cases without a result.
        untested: Batch sizes at which the attack passed its control by a closed form, and had to
            search behind the defense, so that the control says nothing about the search.
        lr: The learning rate that did best.
    """

    label: str
    text: str
    accuracy: float | None
    tallies: Mapping[int, Tally] = field(default_factory=dict)
    unfit: Mapping[int, str] = field(default_factory=dict)
    masked: bool = False
    misled: bool = False
    errors: tuple[str, ...] = ()
    untested: tuple[int, ...] = ()
    lr: float | None = None

    @property
    def status(self) -> Status:
        """What the line shows; without a result for everybody it never holds."""
        every = self.tallies.values()
        if not every:
            return Status.failed
        if any(tally.identified for tally in every):
            return Status.leaks
        if self.errors or any(tally.undecided for tally in every):
            return Status.inconclusive
        return Status.not_shown

    def is_whole(self, board: Board) -> bool:
        """Whether everybody was attacked at every batch size that fits, or cases failed."""
        if self.errors:
            return True
        wanted = [size for size in board.batch_sizes if size not in self.unfit]
        return all(s in self.tallies and self.tallies[s].people == board.people for s in wanted)

    @property
    def exposed(self) -> float:
        """The share of people who are or may be identified."""
        every = self.tallies.values()
        found = sum(tally.identified + tally.undecided for tally in every)
        return found / max(1, sum(tally.people for tally in every))

    @property
    def psnr(self) -> float:
        """The median over everybody, in dB; minus infinity if there is none."""
        values = [value for tally in self.tallies.values() for value in tally.psnr]
        return median(values) if values else -math.inf

    @property
    def attack(self) -> str:
        """The attack that was chosen for most people."""
        counts: Counter[str] = Counter()
        for tally in self.tallies.values():
            counts.update(tally.attacks)
        return counts.most_common(1)[0][0] if counts else "-"

    def lost(self, free: float | None) -> float | None:
        """Percentage points of accuracy that it costs, against that of no defense."""
        if self.accuracy is None or free is None:
            return None
        return 100 * (free - self.accuracy)

    @property
    def remarks(self) -> str:
        """What stands in the way of reading the numbers plainly."""
        told = ["masked"] * self.masked
        told += ["finds people who are not there"] * self.misled
        told += [f"control computed, not searched (B={size})" for size in self.untested]
        told += [f"{count_noun(len(self.errors), 'case')} failed"] * bool(self.errors)
        return ", ".join(told)

    def plain(self, free: float | None) -> dict[str, Any]:
        """The line as data that JSON can hold."""
        return {
            "defense": self.label,
            "toml": self.text,
            "status": str(self.status),
            "accuracy": self.accuracy,
            "lost_points": self.lost(free),
            "lr": self.lr,
            "median_psnr": self.psnr,
            "masked": self.masked,
            "misled": self.misled,
            "untested": list(self.untested),
            "attack": self.attack,
            "batch_sizes": {
                str(size): {
                    "people": tally.people,
                    "identified": tally.identified,
                    "undecided": tally.undecided,
                    "interval": [tally.interval.low, tally.interval.high],
                    "levels": [str(level) for level in tally.levels],
                    "psnr": list(tally.psnr),
                    "median_psnr": median(tally.psnr),
                    "attacks": dict(tally.attacks),
                }
                for size, tally in self.tallies.items()
            },
            "unfit": {str(size): why for size, why in self.unfit.items()},
            "errors": list(self.errors),
        }


def judge(
    board: Board,
    reasons: Mapping[Line, Mapping[int, str]],
    records: Sequence[Record],
    controls: Sequence[Record],
    trained: Mapping[str, Mapping[str, Any]],
) -> dict[Line, Standing]:
    """Read the audit of these lines and their trainings; verdicts are those of any report.

    Args:
        board: The setting.
        reasons: The lines, and at which batch sizes they cannot be used.
        records: Of the audit, joined with its controls.
        controls: The records of these.
        trained: Trainings by the text of the line.
    """
    groups = {
        (setup.defense, setup.batch_size): group.strongest()
        for setup, group in Results.of(records).setups.items()
    }
    found: dict[Line, Standing] = {}
    for line, why in reasons.items():
        own = {size: line.describe(size) for size in board.batch_sizes if not why[size]}
        mine = [record for record in records if own.get(record.batch_size) == record.defense]
        training, tallies = trained.get(line.text, {}), _tally(own, groups)
        hidden = [size for size, tally in tallies.items() if tally.identified < tally.people]
        found[line] = Standing(
            label=line.label,
            text=line.text,
            accuracy=training.get("accuracy"),
            lr=training.get("lr"),
            tallies=tallies,
            unfit={size: reason for size, reason in why.items() if reason},
            masked=any(record.race is not None and record.race.masked for record in mine),
            misled=any(r.control is not None and r.control.misleading for r in mine),
            errors=tuple(record.error for record in mine if record.error),
            untested=tuple(size for size in hidden if _is_untested(mine, controls, size)),
        )
    return found


def _is_untested(mine: Sequence[Record], controls: Sequence[Record], size: int) -> bool:
    """Whether only closed forms found the canaries, and somebody behind the defense was searched.

    A defense that stops the closed form leaves a search that no control has tested.
    """
    bare = [c for c in controls if c.control_kind == "canary" and not c.defense]
    canaries = [c for c in bare if c.batch_size == size and c.error is None]
    own = [r for r in mine if r.batch_size == size and r.error is None and r.defense]
    return bool(canaries) and all(map(_is_computed, canaries)) and not all(map(_is_computed, own))


def _is_computed(record: Record) -> bool:
    """Whether a closed form gave the guess: one that is certain, or one that won the rehearsal."""
    if record.certificate is not None and record.certificate.get("unique"):
        return True
    race = record.race
    computed = () if race is None else [trial.attack for trial in race.trials if not trial.steps]
    return race is not None and bool(race.chosen) and set(race.chosen) <= set(computed)


def _tally(
    own: Mapping[int, Defense],
    groups: Mapping[tuple[Defense, int], Results],
) -> dict[int, Tally]:
    keys = {size: (defense, size) for size, defense in own.items()}
    return {size: Tally.of(groups[key]) for size, key in keys.items() if key in groups}
