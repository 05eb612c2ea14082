"""Judge what each attack shows of each person, over all records of an audit at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from seepage.audit._record import Defense, Record
from seepage.audit._words import Setup, defense_words
from seepage.audit.results._amount import SATURATED, list_parts
from seepage.audit.results._effort_curve import EffortCurve
from seepage.audit.results._luck import find_identified, find_leaked_columns, find_leaked_labels
from seepage.audit.results._result import Level, Result
from seepage.core._grouping import group_by
from seepage.scoring._identification import is_close_call

# Another seed alone can change the PSNR in dB, or the share in per cent, by less than this.
NOTICED = 1.0
# A theorem settles a verdict if it leaves every attack at most this many times what luck finds.
_SETTLED = 1.1


def judge(records: Sequence[Record], curves: Sequence[EffortCurve]) -> list[Result]:
    """Judge every person of every scored record, in the order of the audit.

    After them comes what was found behind a defense and counts without it too.
    """
    identified = find_identified(records)
    labels, columns = find_leaked_labels(records, identified), find_leaked_columns(records)
    rising = {number for curve in curves if curve.rising for number in curve.cases}
    everybody = {(Setup.of(record), person) for record in records for person in record.persons}
    people = Counter(setup for setup, _ in everybody)
    found = []
    for number, record in enumerate(records):
        count = people[Setup.of(record)]
        for index in range(len(record.people) if record.scores else 0):
            settled = _is_settled(record, index, count)
            strong = number not in rising and _is_conclusive(record, index, count)
            result = Result(
                number,
                record,
                index,
                Level.inconclusive,
                label=(number, index) in labels,
                parts=list_parts(record, index, columns=number in columns),
                conclusive=settled or strong,
                settled=settled,
            )
            level = _find_level(result, identified=(number, index) in identified)
            found.append(replace(result, level=level))
    return [*found, *_carry_over(found)]


def _find_level(result: Result, *, identified: bool) -> Level:
    if identified and result.exact:
        return Level.reconstructed
    if identified:
        place = result.record.identification[result.index]
        return Level.recognisable if place.recognisable else Level.singled_out
    if result.label or result.parts:
        return Level.partly
    return Level.not_shown if result.conclusive else Level.inconclusive


def _is_conclusive(record: Record, index: int, people: int) -> bool:
    """Whether the attack would have found this one of `people`, as far as controls can tell."""
    found = record.identification[index] if record.identification else None
    return (
        found is not None
        and found.fair
        and not is_close_call(found, people)
        and record.control is not None
        and record.control.able
        and not any(map(record.effort.get, ("cut", "foreign", "misled", "unsimulated")))
        and not may_gain(record)
    )


def _is_settled(record: Record, index: int, people: int) -> bool:
    """Whether in theory no attack singles out this one of `people` more often than luck.

    `IdentificationLimit` takes person and strangers to be equally likely, so they must share what
    the adversary knows: the label.
    """
    from seepage.bounds._dp_limits import IdentificationLimit

    noise = float(record.effort.get("guaranteed_noise", 0.0))
    place = record.identification[index] if record.identification else None
    if not noise > 0 or place is None or not place.fair or is_close_call(place, people):
        return False
    told = record.threat is None or record.threat.arguments.get("knows_labels") is not False
    if record.effort.get("foreign") or (told and place.gallery != "same label"):
        return False
    limit = IdentificationLimit(place.strangers)
    return limit.chance(noise_multiplier=noise) <= _SETTLED * limit.luck


def may_gain(record: Record) -> bool:
    """Whether more steps may find more: `auto` searched, and saw no plateau in rehearsal."""
    race = record.race
    if race is None or race.plateau:
        return False
    return bool(record.effort.get("steps")) or any(trial.steps for trial in race.trials)


def _carry_over(found: Sequence[Result]) -> Iterator[Result]:
    """Count what was found behind a repeatable link also without it, where that is more.

    Whoever sees an update can prune it, and then find what is found behind pruning. No test is done
    again: who is identified behind the link is identified.
    """
    known = {
        place: max(group, key=lambda one: one.strength)
        for place, group in group_by(found, lambda one: _place(one, one.record.defense)).items()
    }
    best: dict[Hashable, Result] = {}
    for one in sorted(found, key=lambda one: one.strength):
        for weaker in one.record.weaker:
            best[_place(one, weaker)] = one
    carried = {
        (one.number, place[0])
        for place, one in best.items()
        if place in known and shows_more(one, known[place])
    }
    for one in found:
        for weaker in one.record.weaker:
            place = _place(one, weaker)
            if (one.number, place[0]) in carried and place in known:
                yield _repeat(one, weaker, known[place])


def _place(result: Result, defense: Defense) -> tuple[Hashable, int]:
    """The key of a person in one update, behind a defense and seen by an adversary."""
    record = result.record
    seen = (defense, record.local, record.data, record.model, record.threat)
    return (seen, record.people, record.known_as, record.seed), result.index


def shows_more(found: Result, known: Result) -> bool:
    """Whether `found` is a worse leak than `known`: by its level, or clearly by its score."""
    if found.shows and known.shows and found.level is not known.level:
        return found.level.rank < known.level.rank
    if found.shows != known.shows:
        return found.shows
    guessed = found.without_update.value
    beyond = found.amount.value is not None and (guessed is None or found.amount.value > guessed)
    nearer = min(found.measured, SATURATED) - min(known.measured, SATURATED)
    return beyond and nearer >= NOTICED


def _repeat(found: Result, weaker: Defense, known: Result) -> Result:
    """The attack behind a defense as one on the update without its last links.

    If it shows nothing, it is judged like the strongest attack without them.
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
