"""The verdict: the first sentences of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from seepage.audit.audit_result import AuditResult
from seepage.audit.record import Record
from seepage.report.headroom import contradictions, headrooms
from seepage.report.intervals import share_not_ruled_out
from seepage.report.leak import (
    Attempt,
    Verdict,
    Victim,
    attempts,
    count_recognisable,
    group_by_setup,
    residual_of,
    strongest,
    unscored,
)
from seepage.report.words import NO_DEFENSE, Setup, count_noun, label_setups, list_words

# Rounding in float32 leaves less; a guess with more does not explain the update.
EXPLAINED = 1e-3

People = Mapping[Victim, Attempt]


def _best_explained(records: Sequence[Record]) -> Record | None:
    """The guess that explains the update best; None if there is none."""
    return min(unscored(records), key=residual_of, default=None)


def _unscored_headline(record: Record, *, noun: str) -> str:
    """The first sentence of a report without the truth."""
    certificate = record.certificate or {}
    people = count_noun(len(record.people), "person", "people")
    if residual_of(record) > EXPLAINED:
        return f"No guess explains the update of {people}, and there is no truth to compare with"
    if certificate.get("unique"):
        return f"The {noun} of {people} came back, and no others explain the update"
    return f"What came back explains the update of {people}; others might as well"


def _unscored_details(record: Record) -> tuple[str, ...]:
    """What follows it: how good the best guess is, and what that means."""
    name = record.attack.name
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


def verdict(records: Sequence[Record], *, noun: str = "inputs") -> Verdict:
    """Judge an audit by its people without a defense, then say what each defense changes.

    If the audit has no case without a defense, the headline is about all its cases.

    Args:
        records: Of the audit.
        noun: What a person's data are called, e.g. "images".
    """
    tried = attempts(records)
    groups = {setup: strongest(group) for setup, group in group_by_setup(tried).items()}
    blind = _best_explained(records)
    if not groups and blind is not None:
        return Verdict(None, _unscored_headline(blind, noun=noun), _unscored_details(blind))
    if not groups:
        return Verdict(None, "There is no result yet")
    bare = {setup: people for setup, people in groups.items() if setup.defense == NO_DEFENSE}
    defended = {setup: people for setup, people in groups.items() if setup not in bare}
    people = strongest(a for a in tried if a.record.defense == NO_DEFENSE or not bare)
    worst = next(iter(people.values()))
    where = ""
    if defended:
        where = " without a defense" if bare else " behind these defenses"
    labels = label_setups(groups)
    return Verdict(
        level=worst.level,
        headline=_headline(people, noun, where),
        details=(_worst(worst), *_compare_setups(bare, labels), *_changes(defended, labels)),
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


def _headline(people: People, noun: str, where: str) -> str:
    count, total = count_recognisable(people), len(people)
    if count == 0:
        attacked = count_noun(total, "person", "people")
        return f"No {noun.removesuffix('s')} was recognisable{where} ({attacked} attacked)"
    if total == 1:
        return f"The {noun} of the one person attacked are recognisable{where}"
    return f"{count} of {total} people's {noun} are recognisable{where}"


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


def _compare_setups(bare: Mapping[Setup, People], labels: Mapping[Setup, str]) -> list[str]:
    """How many people are recognisable without a defense, if batch sizes or clients differ."""
    if len(bare) < 2:
        return []
    shares = [f"{_share(people)} with {labels[setup]}" for setup, people in bare.items()]
    return [f"Recognisable are {list_words(shares)}."]


def _changes(groups: Mapping[Setup, People], labels: Mapping[Setup, str]) -> list[str]:
    """What each defense changes."""
    holding = {setup: people for setup, people in groups.items() if not count_recognisable(people)}
    leaking = {setup: people for setup, people in groups.items() if setup not in holding}
    sentences = []
    if leaking:
        ranked = sorted(leaking.items(), key=lambda item: -count_recognisable(item[1]))
        kept = [f"{labels[setup]} ({_share(people)})" for setup, people in ranked]
        sentences.append(f"People stay recognisable behind {list_words(kept)}.")
    if holding:
        names = list_words([labels[setup] for setup in holding], "or")
        fewest = min(len(people) for people in holding.values())
        bound = share_not_ruled_out(fewest)
        sentences.append(
            f"By this measure nobody is recognisable behind {names}; with "
            f"{count_noun(fewest, 'person', 'people')} tested, up to {bound:.0%} of a population "
            "may still be (95 % confidence)."
        )
    elif groups:
        sentences.append("No defense tried here hides everybody.")
    return sentences


def _share(people: People) -> str:
    return f"{count_recognisable(people)} of {len(people)}"


def missing(audit: AuditResult) -> str | None:
    """Say what is not there yet, failed or cannot be read; None if nothing is."""
    every = (*audit.records, *audit.bounds)
    left = len(audit.planned) - len(every)
    failed = sum(record.error is not None for record in every)
    infinite = sum(
        value is None for record in audit.records for value in record.scores.get("psnr", ())
    )
    lacks = [
        f"{count_noun(left, 'case')} of {len(audit.planned)} not run yet" if left > 0 else "",
        f"{count_noun(failed, 'case')} failed" if failed else "",
        f"{count_noun(infinite, 'guess', 'guesses')} not finite" if infinite else "",
        f"{count_noun(len(audit.damaged), 'file')} of tensors damaged" if audit.damaged else "",
    ]
    said = [lack for lack in lacks if lack]
    return f"Not complete: {list_words(said)}." if said else None
