"""Captured updates, whose guesses may have no score; cases without a guess; what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from seepage.attacks._agreement import EXPLAINED
from seepage.audit._record import Record
from seepage.audit._words import NO_DEFENSE, Setup, count_noun, label_defenses, list_words
from seepage.audit.results import Level, Results
from seepage.audit.results._columns import ATTACKED
from seepage.core._grouping import group_by
from seepage.report._finding import Finding, Verdict, find
from seepage.report.wording import Kind, proof_words

if TYPE_CHECKING:
    from seepage.audit._audit_result import AuditResult

# The most combinations without a result that are named.
_UNJUDGED = 3


def unscored(records: Iterable[Record]) -> list[Record]:
    """The records of guesses that were compared with no truth."""
    return Results((), records).unscored


def is_proved(record: Record) -> bool:
    """Whether the guess explains the update, and is proved to be the only one that does."""
    return record.residual <= EXPLAINED and bool((record.certificate or {}).get("unique"))


def verdict_without_truth(results: Results, *, noun: str) -> Verdict | None:
    """Judge an audit by the guess that explains its update best; None if there is no guess."""
    guesses = results.unscored
    if not guesses:
        return None
    # The guess that explains the update best, or names most tokens or inputs.
    best = min(guesses, key=_rank_guess)
    several = len({record.data for record in guesses}) > 1 and not _count_certain(best)
    kind, numbers = _judge_updates(guesses) if several else _judge_update(best)
    unsimulated = any(record.effort.get("unsimulated", 0) for record in guesses)
    level = Level.reconstructed if is_proved(best) else None
    main = find(kind, level, noun=noun, unsimulated=unsimulated, **numbers)
    return Verdict(level, main, tuple(_judge_quality(best)))


def _rank_guess(record: Record) -> tuple[bool, int, int, float]:
    """The order of guesses: those that explain the update first, then those that prove most."""
    unexplained = record.residual > EXPLAINED
    return unexplained, -_count_certain(record), -_count_sure(record), record.residual


def _count_certain(record: Record) -> int:
    """How many words are proved to be in the batch."""
    return int((record.certificate or {}).get("certain") or 0)


def _count_sure(record: Record) -> int:
    """How many inputs the equations of one layer determine."""
    return int(record.effort.get("sure", 0))


def _judge_update(record: Record) -> tuple[Kind, dict[str, object]]:
    """What is known of one captured update."""
    people: dict[str, object] = {"people": len(record.people)}
    if record.residual > EXPLAINED:
        if certain := _count_certain(record):
            return Kind.words_proved, {**people, "words": certain}
        if sure := _count_sure(record):
            return Kind.layer_read, {**people, "sure": sure}
        return Kind.not_proved, people
    if record.certificate and is_proved(record):
        return Kind.proved, {**people, "proof": proof_words(record.certificate)}
    return Kind.explained, people


def _judge_updates(guesses: Sequence[Record]) -> tuple[Kind, dict[str, object]]:
    """How many captured updates a guess explains, or is proved for."""
    updates: dict[str, object] = {"updates": len({record.data for record in guesses})}
    explained = {record.data for record in guesses if record.residual <= EXPLAINED}
    proofs = {r.data: proof_words(r.certificate) for r in guesses if r.certificate and is_proved(r)}
    read = {record.data for record in guesses if _count_sure(record)}
    if not explained:
        kind = Kind.layers_read if read else Kind.updates_not_proved
        return kind, {**updates, "read": len(read)}
    counts = {**updates, "explained": len(explained)}
    if not proofs:
        return Kind.updates_explained, counts
    names = sorted(set(proofs.values()))
    return Kind.updates_proved, {**counts, "proved": len(proofs), "proofs": names}


def _judge_quality(record: Record) -> Iterator[Finding]:
    """How good the best guess is, and what that means."""
    attack, residual = record.attack.name, record.residual
    if _count_certain(record):
        yield find(Kind.read_off_embeddings, attack=attack)
    elif math.isinf(residual):
        yield find(Kind.not_checked, attack=attack)
    elif residual > EXPLAINED and _count_sure(record):
        yield find(Kind.layer_solved, attack=attack, residual=residual)
    else:
        yield find(Kind.residual, attack=attack, residual=residual)
        if residual > EXPLAINED:
            yield find(Kind.no_proof_of_nothing)


def find_assumed(audit: AuditResult) -> list[Finding]:
    """Which defense attacks assumed for captured updates, which do not record it."""
    captured = [record for record in audit.records if record.sent is not None]
    assumed = {record.defense for record in captured}
    if not assumed:
        return []
    names = {record.data for record in captured}
    update = "captured update" + "s" * (len(names) > 1)
    if assumed == {NO_DEFENSE}:
        return [find(Kind.nothing_assumed, update=update)]
    return [find(Kind.assumed, update=update, defenses=sorted(label_defenses(assumed).values()))]


def find_certain_words(records: Sequence[Record]) -> list[Finding]:
    """How many words of one batch are proved to be in it, at most."""
    certain = max(map(_count_certain, records), default=0)
    return [find(Kind.certain_words, words=certain)] if certain else []


def find_unjudged(results: Results, labels: Mapping[Setup, str]) -> list[Finding]:
    """Networks and data without a result, in setups where others have one."""
    groups = results.by(*ATTACKED)
    found = {
        f"for {model} on {data}, {labels[setup]}": record.failed
        for (setup, data, model, _), group in groups.items()
        if not group and setup in labels
        for record in group.records
        if record.error is not None
    }
    told = [find(Kind.no_result, what=what, failed=failed) for what, failed in found.items()]
    if len(told) <= _UNJUDGED:
        return told
    return [*told[:_UNJUDGED], find(Kind.more_without_result, more=len(told) - _UNJUDGED)]


def inapplicable(records: Iterable[Record]) -> list[str]:
    """Say which attacks cannot take which cases, and why; one sentence per attack and reason."""
    unfit = (record for record in records if not record.applicable and record.error is not None)
    groups = group_by(unfit, lambda record: (record.attack.name, str(record.error).rstrip(".")))
    return [
        f"Not applicable: {name}, {count_noun(len(cases), 'case')}: {reason}."
        for (name, reason), cases in groups.items()
    ]


def missing(audit: AuditResult) -> str | None:
    """Say what is not there yet, failed or cannot be read; None if nothing is."""
    left = len(audit.planned) - len(audit.every_record)
    failed = sum(record.failed for record in audit.every_record)
    infinite = sum(
        value is None for record in audit.records for value in record.scores.get("psnr", ())
    )
    lacks = [
        f"{count_noun(left, 'case')} of {len(audit.planned)} not run yet" if left > 0 else "",
        f"{count_noun(failed, 'case')} failed" if failed else "",
        f"{count_noun(infinite, 'guess', 'guesses')} not finite" if infinite else "",
        f"{count_noun(len(audit.damaged), 'file')} missing or altered" if audit.damaged else "",
    ]
    said = [lack for lack in lacks if lack]
    return f"Not complete: {list_words(said)}." if said else None
