"""What came back about whom, and how it is read: one attempt per attack and person."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from seepage.audit import Record

# An error of a tenth of the range (root mean square), in dB of PSNR.
RECOGNISABLE = 20.0
# Half the squared error of the best guess that needs no update, in dB of PSNR.
MARGIN = 3.0

Victim = tuple[str, int]


class Level(StrEnum):
    """How much of a person's input came back.

    A convention of this tool, not a law of perception: people's own judgement agrees with such
    scores only loosely, which is why a report shows the pictures as well.

    References:
        Sun et al., 2023 (sun2023privacy) on scores against human judgement
    """

    recognisable = "recognisable"
    partial = "a trace"
    hidden = "near a guess"


@dataclass(frozen=True)
class Attempt:
    """One attack on one person.

    Args:
        number: Position of the record in the audit.
        record: The case.
        index: Position of the person in the record's batch.
        psnr: What came back, in dB.
        baseline: The best guess for this person that needs no update, in dB; None if none was made.
    """

    number: int
    record: Record
    index: int
    psnr: float
    baseline: float | None

    @property
    def victim(self) -> Victim:
        """Data set and number of the person."""
        return self.record.data, self.record.people[self.index]

    @property
    def level(self) -> Level:
        """How the score is read: it must add to a guess before its size matters."""
        if self.baseline is not None and self.psnr < self.baseline + MARGIN:
            return Level.hidden
        return Level.recognisable if self.psnr >= RECOGNISABLE else Level.partial

    def score(self, metric: str) -> float | None:
        """Another score of the same guess; None where it is not defined."""
        values = self.record.scores.get(metric)
        return None if values is None else values[self.index]


def attempts(records: Sequence[Record]) -> list[Attempt]:
    """Every person of every record with a score, in the order of the audit."""
    return [attempt for number, record in enumerate(records) for attempt in _of(number, record)]


def _of(number: int, record: Record) -> Iterator[Attempt]:
    for index, value in enumerate(record.scores.get("psnr", ())):
        if value is not None:
            yield Attempt(number, record, index, value, _baseline(record, index))


def _baseline(record: Record, index: int) -> float | None:
    values = (scores["psnr"][index] for scores in record.baselines.values())
    return max((value for value in values if value is not None), default=None)


def strongest(tried: Iterable[Attempt]) -> dict[Victim, Attempt]:
    """Per person the attempt with the lowest error, the worst-off person first.

    The lowest error over attacks is how a defense is judged: it must hold against all of them.

    References:
        Liu et al., 2024, Sec. 4 (liu2024systematic)
    """
    best: dict[Victim, Attempt] = {}
    for attempt in tried:
        known = best.get(attempt.victim)
        if known is None or attempt.psnr > known.psnr:
            best[attempt.victim] = attempt
    return dict(sorted(best.items(), key=lambda item: -item[1].psnr))


def by_defense(tried: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts behind each defense, no defense first, then as the audit names them."""
    groups: dict[str, list[Attempt]] = {}
    for attempt in tried:
        groups.setdefault(attempt.record.defense, []).append(attempt)
    return dict(sorted(groups.items(), key=lambda group: group[0] != NO_DEFENSE))


def by_attack(tried: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Attempts with each attack, as the audit names them."""
    groups: dict[str, list[Attempt]] = {}
    for attempt in tried:
        groups.setdefault(attempt.record.attack, []).append(attempt)
    return groups


def recognisable(best: dict[Victim, Attempt]) -> int:
    """How many people are recognisable."""
    return sum(attempt.level is Level.recognisable for attempt in best.values())


NO_DEFENSE = "chain()"
