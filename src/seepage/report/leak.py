"""What came back of each person, how it is read, and who is worst off."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from seepage.audit.choices import Entry, find_identified
from seepage.audit.record import Control, Defense, Record
from seepage.core.construct import Component
from seepage.core.grouping import group_by
from seepage.report.amount import (
    SATURATED,
    Amount,
    find_amount,
    find_baseline,
    find_score,
    list_parts,
)
from seepage.report.effort import effort_curves
from seepage.report.words import NO_DEFENSE, Setup, defense_words
from seepage.scoring.identification import Identification, is_close_call

# Probability with which labels or columns may be right by chance and still count as leaked.
_LUCK = 0.05
# Another seed alone can change the PSNR in dB, or the share in per cent, by less than this.
NOTICED = 1.0
# A theorem settles a verdict if it leaves every attack at most this many times what luck finds.
_SETTLED = 1.1


Victim = tuple[str, int]


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
class Attempt:
    """One attack on one person.

    Args:
        number: Position of the record in the audit.
        record: The case.
        index: Position of the person in the record's batch.
        psnr: What came back, in dB; minus infinity where that is not defined.
        level: What that shows, corrected for all attempts and people of the setup.
        parts: What leaked besides the input as a whole: the label, columns, words.
        behind: Links that the adversary applies to the update itself, where this was found behind
            them and nothing as good without; empty for an attack that was run as it stands.
        conclusive: Whether the attack, or another one on this person, is known to find people; of
            several networks, defenses or adversaries, on each of them. Or whether it is settled.
        settled: Whether a theorem leaves every attack nothing but luck.
    """

    number: int
    record: Record
    index: int
    psnr: float
    level: Level
    parts: tuple[str, ...] = ()
    conclusive: bool = False
    behind: Defense = ()
    settled: bool = False

    @property
    def exact(self) -> bool:
        """Whether the guess is the input exactly, which alone identifies nobody."""
        return self.record.is_exact(self.index)

    @property
    def victim(self) -> Victim:
        """Data set and number of the person."""
        return self.record.data, self.record.people[self.index]

    @property
    def person(self) -> Victim:
        """By whom this person is counted: the same in every captured update that is known to."""
        return self.record.persons[self.index]

    @property
    def shows(self) -> bool:
        """Whether anything was shown about the person."""
        return self.level.rank <= Level.partly.rank

    @property
    def update(self) -> tuple[str, tuple[int, ...]]:
        """Data set and people of the update; whoever shares it is no independent draw."""
        return self.record.data, self.record.people

    @property
    def amount(self) -> Amount:
        """What came back, by the measure of its kind of input."""
        return find_amount(self.record, self.index)

    @property
    def is_share(self) -> bool:
        """Whether a share of columns or words is measured, and not PSNR."""
        return self.amount.is_share

    @property
    def measured(self) -> float:
        """The PSNR, or the share of columns or words in per cent; minus infinity if undefined."""
        if not self.is_share:
            return self.psnr
        return -math.inf if self.amount.value is None else 100 * self.amount.value

    @property
    def without_update(self) -> Amount:
        """The same of the best guess for this person that needs no update."""
        metric = self.amount.metric
        return Amount(metric, find_baseline(self.record, self.index, metric))

    @property
    def identification(self) -> Identification | None:
        """Place of the person among strangers; None if there were none to compare with."""
        found = self.record.identification
        return found[self.index] if found else None

    @property
    def baseline(self) -> float | None:
        """PSNR of the best guess for this person that needs no update; None if none was made."""
        return find_baseline(self.record, self.index, "psnr")

    def score(self, metric: str) -> float | None:
        """Another score of the same guess; None where it is not defined."""
        return find_score(self.record.scores, self.index, metric)


def _level_of(attempt: Attempt, *, identified: bool) -> Level:
    record, index = attempt.record, attempt.index
    if identified and attempt.exact:
        return Level.reconstructed
    if identified:
        return (
            Level.recognisable if record.identification[index].recognisable else Level.singled_out
        )
    if attempt.parts:
        return Level.partly
    return Level.not_shown if attempt.conclusive else Level.inconclusive


def _is_conclusive(record: Record, index: int, people: int) -> bool:
    """Whether the attack would have found this one of `people`, as far as controls can tell."""
    found = record.identification[index] if record.identification else None
    return (
        found is not None
        and found.fair
        and not is_close_call(found, people)
        and record.control is not None
        and record.control.able
        and not record.effort.get("cut")
        and not record.effort.get("foreign")
        and not record.effort.get("misled")
        and not record.effort.get("unsimulated")
        and not may_gain(record)
    )


def _is_settled(record: Record, index: int, people: int) -> bool:
    """Whether no attack at all singles out this one of `people` more often than luck, in theory.

    `IdentificationLimit` takes the person and the strangers to be all as likely, so they share what
    the adversary knows: the label.
    """
    from seepage.bounds.dp_limits import IdentificationLimit

    noise, place = float(record.effort.get("guaranteed_noise", 0.0)), None
    if record.identification:
        place = record.identification[index]
    if not noise > 0 or place is None or not place.fair or is_close_call(place, people):
        return False
    told = record.threat is None or record.threat.arguments.get("knows_labels") is not False
    if record.effort.get("foreign") or (told and place.gallery != "same label"):
        return False
    limit = IdentificationLimit(place.strangers)
    return limit.chance(noise_multiplier=noise) <= _SETTLED * limit.luck


def may_gain(record: Record) -> bool:
    """Whether `auto` searched, and did not see in rehearsal that more steps find no more."""
    race = record.race
    if race is None or race.plateau:
        return False
    return bool(record.effort.get("steps")) or any(trial.steps for trial in race.trials)


def _find_leaked_labels(records: Sequence[Record], identified: Collection[Entry]) -> set[Entry]:
    """Which attempts have their person's label, from attacks that beat chance.

    Over the people of a setup and its canaries, the number of labels that an attack has right is
    tested against a guess of the most frequent label: one person alone would prove nothing. Every
    person counts once, in the first repetition. The probability is multiplied by the number of
    attacks on the setup, networks and adversaries included.
    """
    asked = [
        number
        for number, record in enumerate(records)
        if record.label_chance is not None
        and "label_accuracy" in record.scores
        and not (record.threat is not None and record.threat.arguments.get("knows_labels"))
    ]
    beyond = _find_beyond_luck(records, asked, _list_labels)
    return {
        (number, index)
        for number in asked
        for index, right in enumerate(records[number].scores["label_accuracy"])
        # Nobody is reconstructed by luck, nor has the label with it.
        if right == 1
        and (
            number in beyond or ((number, index) in identified and records[number].is_exact(index))
        )
    }


def _find_leaked_columns(records: Sequence[Record]) -> set[int]:
    """Records of attacks that have more columns right of their people than of strangers.

    A guess that needs no update is right in as many columns of strangers, so that this tests
    against the best of them. Otherwise as for labels.
    """
    asked = [number for number, record in enumerate(records) if record.columns]
    return _find_beyond_luck(records, asked, _list_columns)


# What one thing that is tested may have as its number by luck, with its chances, and what it has.
_Count = tuple[Sequence[float], int]


def _find_beyond_luck(
    records: Sequence[Record],
    asked: Iterable[int],
    read: Callable[[Sequence[Record]], list[_Count]],
) -> set[int]:
    """Numbers of the records of attacks whose sum of counts in a setup luck does not explain."""
    setups: dict[Setup, dict[tuple[object, ...], list[int]]] = {}
    for number in asked:
        record = records[number]
        key = record.model, record.threat, record.attack
        setups.setdefault(Setup.of(record), {}).setdefault(key, []).append(number)
    return {
        number
        for attacks in setups.values()
        for numbers in attacks.values()
        if _luck_with(read([records[n] for n in numbers])) * len(attacks) <= _LUCK
        for number in numbers
    }


def _luck_with(counts: Sequence[_Count]) -> float:
    """Probability of a sum as large as this one, by chance alone."""
    spread = np.ones(1)
    for chances, _ in counts:
        spread = np.convolve(spread, chances)
    return float(spread[sum(had for _, had in counts) :].sum())


def _list_labels(records: Sequence[Record]) -> list[_Count]:
    """For each person and canary whether the label is right, with the chances of no and yes."""
    tested: dict[Victim, tuple[float, bool]] = {}
    for record in records:
        for person, right in zip(record.persons, record.scores["label_accuracy"], strict=True):
            if right is not None and record.label_chance is not None:
                tested.setdefault(person, (record.label_chance, right == 1))
    canaries = (one for control in _list_controls(records) for one in control.labels)
    return [((1 - chance, chance), int(right)) for chance, right in (*tested.values(), *canaries)]


def _list_columns(records: Sequence[Record]) -> list[_Count]:
    """For each update the per cent of columns that are right, and how often strangers have that."""
    tested: dict[tuple[Victim, ...], tuple[float, ...]] = {}
    for record in records:
        tested.setdefault(record.persons, record.columns)
    canaries = (one for control in _list_controls(records) for one in control.columns)
    counts: list[_Count] = []
    for shares in (*tested.values(), *canaries):
        hundredths = np.round(100 * np.array(shares)).astype(int)
        chances = np.bincount(hundredths, minlength=101) / len(hundredths)
        counts.append((tuple(chances), int(hundredths[0])))
    return counts


def _list_controls(records: Sequence[Record]) -> Collection[Control]:
    """The controls of an attack, one for each data set."""
    return {r.data: r.control for r in records if r.control is not None}.values()


def attempts(records: Sequence[Record]) -> list[Attempt]:
    """Every person of every record with a score, in the order of the audit.

    Who is identified is decided over all of these records: give those of a whole audit. After them
    comes what was found behind a defense and must count without it.
    """
    identifying = find_identified(records)
    labels, columns = _find_leaked_labels(records, identifying), _find_leaked_columns(records)
    rising = [curve for curve in effort_curves(records) if curve.rising]
    everybody = {(Setup.of(record), person) for record in records for person in record.persons}
    people = Counter(setup for setup, _ in everybody)
    found = []
    for number, record in enumerate(records):
        for index in range(len(record.people) if record.scores else 0):
            entry, psnr = (number, index), find_score(record.scores, index, "psnr")
            settled = _is_settled(record, index, people[Setup.of(record)])
            attempt = Attempt(
                number=number,
                record=record,
                index=index,
                psnr=-math.inf if psnr is None else psnr,
                level=Level.inconclusive,
                parts=list_parts(record, index, label=entry in labels, columns=number in columns),
                conclusive=settled
                or (
                    _is_conclusive(record, index, people[Setup.of(record)])
                    and not any(curve.covers(record) for curve in rising)
                ),
                settled=settled,
            )
            level = _level_of(attempt, identified=entry in identifying)
            found.append(replace(attempt, level=level))
    return [*found, *_carry_over(found)]


def _carry_over(tried: Sequence[Attempt]) -> list[Attempt]:
    """What an update tells of people because a function of it does.

    Whoever sees an update can prune it, and then find what is found behind pruning. So where more
    was found behind a link that can be repeated, that attack with the link before it is one on the
    update without the link. No test is done again: who is identified behind it is identified.
    """
    own = group_by(tried, lambda one: (_update_of(one.record, one.record.defense), one.index))
    best: dict[tuple[Hashable, int], Attempt] = {}
    for one in sorted(tried, key=strength):
        for weaker in one.record.weaker:
            best[_update_of(one.record, weaker), one.index] = one
    carried = {
        (one.number, update)
        for (update, index), one in best.items()
        if (known := own.get((update, index))) and _shows_more(one, max(known, key=strength))
    }
    return [
        _repeat(one, weaker, max(known, key=strength))
        for one in tried
        for weaker in one.record.weaker
        if (one.number, update := _update_of(one.record, weaker)) in carried
        and (known := own.get((update, one.index)))
    ]


def _update_of(record: Record, defense: Defense) -> Hashable:
    """The update of the same people behind another defense, and who sees it."""
    parts = attacked_part(replace(record, defense=defense))
    return parts, record.people, record.known_as, record.seed


def _shows_more(found: Attempt, known: Attempt) -> bool:
    """Whether a leak is of a worse level, or of the same one and clearly nearer than a guess."""
    if found.shows and known.shows and found.level is not known.level:
        return found.level.rank < known.level.rank
    if found.shows != known.shows:
        return found.shows
    guessed = found.without_update.value
    beyond = found.amount.value is not None and (guessed is None or found.amount.value > guessed)
    nearer = min(found.measured, SATURATED) - min(known.measured, SATURATED)
    return beyond and nearer >= NOTICED


def _repeat(found: Attempt, weaker: Defense, known: Attempt) -> Attempt:
    """The attack behind a defense as one on the update without its last links.

    It is judged as the strongest one without them is, if it does not show anything itself.
    """
    record, links = found.record, found.record.defense[len(weaker) :]
    attack = replace(record.attack, name=f"{defense_words(links)}, then {record.attack.name}")
    unclear = Level.inconclusive if known.shows else known.level
    return replace(
        found,
        record=replace(record, defense=weaker, attack=attack),
        level=found.level if found.shows else unclear,
        conclusive=known.conclusive and not known.shows and not found.shows,
        behind=links,
    )


def strongest(tried: Iterable[Attempt]) -> dict[Victim, Attempt]:
    """Per person the attempt that shows most, the worst-off person first.

    A defense is judged by the lowest error over attacks: it must hold against all of them. Whoever
    is known to be behind several captured updates counts once.

    References:
        Liu et al., 2024, Sec. 4 (liu2024systematic)
    """
    updates = group_by(tried, lambda attempt: attempt.victim)
    people = group_by(map(_pick_strongest, updates.values()), lambda attempt: attempt.person)
    best = {person: _join_updates(group) for person, group in people.items()}
    return dict(sorted(best.items(), key=lambda item: strength(item[1]), reverse=True))


def _join_updates(group: Sequence[Attempt]) -> Attempt:
    """The worst for one person of several updates; only all of them together clear anybody."""
    best = max(group, key=strength)
    parts = tuple(dict.fromkeys(part for attempt in group for part in attempt.parts))
    return replace(
        best,
        parts=parts,
        conclusive=all(attempt.conclusive for attempt in group),
        settled=all(attempt.settled for attempt in group),
    )


def _pick_strongest(group: Sequence[Attempt]) -> Attempt:
    best = max(group, key=strength)
    # One attack that would have found the person is enough to say that nothing was shown. But it
    # must have worked on each network, behind each defense and for each adversary.
    separate = group_by(group, lambda attempt: attacked_part(attempt.record))
    cleared = all(any(a.conclusive for a in some) for some in separate.values())
    able = [a for a in group if a.level is Level.not_shown]
    if best.level is Level.inconclusive and cleared and able:
        best = max(able, key=strength)
    parts = tuple(dict.fromkeys(part for attempt in group for part in attempt.parts))
    settled = all(attempt.settled for attempt in group)
    return replace(best, parts=parts, conclusive=cleared, settled=settled)


def attacked_part(record: Record) -> tuple[Hashable, ...]:
    """Setup, data, network and adversary: an attack that works on one says nothing of another."""
    return Setup.of(record), record.data, record.model, record.threat


def strength(attempt: Attempt) -> tuple[int, float, float]:
    """The order of attempts: the level, then the share of columns or words, then the PSNR."""
    share = attempt.measured if attempt.is_share else 0.0
    return -attempt.level.rank, share, attempt.psnr


def group_by_setup(tried: Iterable[Attempt]) -> dict[Setup, list[Attempt]]:
    """Attempts by defense, local computation and batch size; no defense first."""
    groups = group_by(tried, lambda attempt: Setup.of(attempt.record))
    return dict(sorted(groups.items(), key=lambda group: group[0].defense != NO_DEFENSE))


def group_by_attack(tried: Iterable[Attempt]) -> dict[Component, list[Attempt]]:
    """Attempts by attack, in the order of the audit."""
    return group_by(tried, lambda attempt: attempt.record.attack)


def count_identified(best: Mapping[Victim, Attempt]) -> int:
    """How many people are singled out, recognisable or reconstructed."""
    return sum(attempt.level.identified for attempt in best.values())


@dataclass(frozen=True)
class Verdict:
    """What leaked, as sentences.

    Args:
        level: The reading of the worst-off person that the headline is about; None if nobody was
            attacked with a result.
        headline: One sentence.
        details: More sentences: the worst-off person, and what each defense changes.
        worst: The attempt that came closest, among those that the headline is about.
        alarms: Bounds that an attack beat, one sentence each. This cannot happen without a bug.
    """

    level: Level | None
    headline: str
    details: tuple[str, ...] = ()
    worst: Attempt | None = None
    alarms: tuple[str, ...] = ()
