"""The first thing a report says, in plain words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from seepage.audit import AuditResult, Record
from seepage.report.headroom import contradictions, headrooms
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
from seepage.report.words import counted, defense_words, enumerated

# Rounding in float32 leaves less; a guess with more does not explain the update.
EXPLAINED = 1e-3


def unscored(records: Iterable[Record]) -> list[Record]:
    """The records of guesses that were held against no truth."""
    return [record for record in records if record.error is None and not record.scores]


def residual_of(record: Record) -> float:
    """How much of the update a guess leaves unexplained; infinite where that is not known."""
    value = record.certificate["residual"] if record.certificate else None
    return float("inf") if value is None else float(value)


def best_explained(records: Sequence[Record]) -> Record | None:
    """The guess that explains the update best; None if there is none."""
    return min(unscored(records), key=residual_of, default=None)


def unscored_headline(record: Record, *, noun: str) -> str:
    """The first sentence of a report without the truth."""
    certificate = record.certificate or {}
    people = counted(len(record.people), "person", "people")
    if residual_of(record) > EXPLAINED:
        return f"No guess explains the update of {people}, and there is no truth to compare with"
    if certificate.get("unique"):
        return f"The {noun} of {people} came back, and no others explain the update"
    return f"What came back explains the update of {people}; others might as well"


def unscored_details(record: Record) -> tuple[str, ...]:
    """What follows it: how good the best guess is, and what that means."""
    name = record.attack.partition("(")[0]
    left = residual_of(record)
    if left == float("inf"):
        return (f"The guess of {name} could not be checked: it comes without labels.",)
    share = (
        f"The update recomputed at the guess of {name} differs from the one that was seen by "
        f"{left:.1g} of its length, in the layer where it differs most."
    )
    if left > EXPLAINED:
        return (
            share,
            "That is no proof that nothing leaked: a guess may show a person without explaining "
            "the update to the last digit. Look at the pictures, or give the truth.",
        )
    return (share,)


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


def missing(audit: AuditResult) -> str | None:
    """Say what is not there yet, failed or cannot be read; None if nothing is."""
    every = (*audit.records, *audit.bounds)
    left = len(audit.planned) - len(every)
    failed = sum(record.error is not None for record in every)
    unscored = sum(
        value is None for record in audit.records for value in record.scores.get("psnr", ())
    )
    lacks = [
        f"{counted(left, 'case')} of {len(audit.planned)} not run yet" if left > 0 else "",
        f"{counted(failed, 'case')} failed" if failed else "",
        f"{counted(unscored, 'guess', 'guesses')} not finite" if unscored else "",
        f"{counted(len(audit.damaged), 'file')} of tensors damaged" if audit.damaged else "",
    ]
    said = [lack for lack in lacks if lack]
    return f"Not complete: {enumerated(said)}." if said else None
