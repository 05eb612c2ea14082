"""The first thing a report says, in plain words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from seepage.audit import AuditResult, Record
from seepage.report.contradiction import contradictions
from seepage.report.headroom import headrooms
from seepage.report.intervals import share_not_ruled_out
from seepage.report.leak import (
    NO_DEFENSE,
    Attempt,
    Level,
    Victim,
    attempts,
    by_defense,
    recognisable,
    strongest,
)
from seepage.report.unscored import best_explained, unscored_details, unscored_headline
from seepage.report.words import counted, defense_words, enumerated


@dataclass(frozen=True)
class Verdict:
    """What leaked, as sentences.

    Args:
        level: How bad it is for the worst-off person the headline speaks of; None if nobody was
            attacked with a result.
        headline: One sentence.
        details: What follows it: the worst-off person, and what each defense changes.
        worst: The attempt that came closest, among those the headline speaks of.
        alarms: What cannot be: bounds that an attack beat, one sentence each.
    """

    level: Level | None
    headline: str
    details: tuple[str, ...] = ()
    worst: Attempt | None = None
    alarms: tuple[str, ...] = ()


def verdict(records: Sequence[Record], *, noun: str = "inputs") -> Verdict:
    """Judge an audit by its people without a defense, then say what each defense changes.

    Where the audit has no case without a defense, the headline speaks of all its cases.

    Args:
        records: Of the audit.
        noun: What a person's data are called, e.g. "images".
    """
    groups = {name: strongest(group) for name, group in by_defense(attempts(records)).items()}
    blind = best_explained(records)
    if not groups and blind is not None:
        return Verdict(None, unscored_headline(blind, noun=noun), unscored_details(blind))
    if not groups:
        return Verdict(None, "There is no result yet")
    bare = groups.pop(NO_DEFENSE, None)
    people = bare or strongest(attempts(records))
    worst = next(iter(people.values()))
    where = " without a defense" if groups and bare else " behind these defenses" if groups else ""
    return Verdict(
        level=worst.level,
        headline=_headline(people, noun) + where,
        details=(_worst(worst), *_changes(groups)),
        worst=worst,
    )


def audit_verdict(audit: AuditResult) -> Verdict:
    """Judge an audit in the words of its data: images, signals, or inputs of any kind."""
    samples = {record.data: record for record in audit.records}.values()
    inputs = (
        audit.guess(record) if (truth := audit.truth(record)) is None else truth
        for record in samples
    )
    nouns = {_noun(values) for values in inputs if values is not None}
    noun = nouns.pop() if len(nouns) == 1 else "inputs"
    found = contradictions(headrooms(attempts(audit.records), audit.bounds))
    alarms = tuple(contradiction.sentence for contradiction in found)
    return replace(verdict(audit.records, noun=noun), alarms=alarms)


def _noun(truth: Tensor) -> str:
    if not truth.is_floating_point():
        return "texts"
    return {4: "images", 3: "signals", 2: "answers"}.get(truth.ndim, "inputs")


def _headline(people: dict[Victim, Attempt], noun: str) -> str:
    count, total = recognisable(people), len(people)
    if count == 0:
        return f"Nobody's {noun} are recognisable, of {counted(total, 'person', 'people')} attacked"
    if total == 1:
        return f"The {noun} of the one person attacked are recognisable"
    return f"{count} of {total} people's {noun} are recognisable"


def _worst(attempt: Attempt) -> str:
    data, person = attempt.victim
    how = (
        "came back exactly" if attempt.score("exact") else f"came back at {attempt.amount.words()}"
    )
    beside = (
        ""
        if attempt.without_update.value is None
        else f"; a guess that needs no update reaches {attempt.without_update.words()}"
    )
    return f"The worst-off person, {data} #{person}, {how}{beside}."


def _changes(groups: dict[str, dict[Victim, Attempt]]) -> list[str]:
    holding = {name: people for name, people in groups.items() if not recognisable(people)}
    leaking = {name: people for name, people in groups.items() if recognisable(people)}
    sentences = []
    if leaking:
        kept = [
            f"{defense_words(name)} ({recognisable(people)} of {len(people)})"
            for name, people in sorted(leaking.items(), key=lambda item: -recognisable(item[1]))
        ]
        sentences.append(f"People stay recognisable behind {enumerated(kept)}.")
    if holding:
        names = enumerated([defense_words(name) for name in holding], "or")
        fewest = min(len(people) for people in holding.values())
        bound = share_not_ruled_out(fewest)
        sentences.append(
            f"By this measure nobody is recognisable behind {names}; with "
            f"{counted(fewest, 'person', 'people')} tested, up to {bound:.0%} of a population "
            "may still be (95 % confidence)."
        )
    elif groups:
        sentences.append("No defense tried here hides everybody.")
    return sentences
