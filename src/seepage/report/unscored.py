"""Captured updates, whose guesses may have no score; cases without a guess; what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from seepage.attacks.agreement import EXPLAINED
from seepage.audit.captured_data import name_captures
from seepage.audit.record import Record
from seepage.audit.results import Level, Results
from seepage.audit.results.table import ATTACKED
from seepage.audit.words import (
    NO_DEFENSE,
    UNSIMULATED,
    Setup,
    count_noun,
    label_defenses,
    list_words,
    residual_words,
)
from seepage.core.reconstruction import Proof
from seepage.report.finding import Verdict

if TYPE_CHECKING:
    from seepage.audit.audit_result import AuditResult

# Combinations without a result that are told one by one.
_UNJUDGED = 3


def unscored(records: Iterable[Record]) -> list[Record]:
    """The records of guesses that were compared with no truth."""
    return [record for record in records if record.error is None and not record.scores]


def is_proved(record: Record) -> bool:
    """Whether the guess explains the update, and is proved to be the only one that does."""
    return record.residual <= EXPLAINED and bool((record.certificate or {}).get("unique"))


def tell_proof(certificate: Proof) -> str:
    """What a proof says of a guess. Tokens are the same or not, so theirs has no error.

    Example:
        >>> tell_proof({"unique": True, "error": 1e-5}), tell_proof({"unique": True, "error": None})
        ('right to 8 bits', 'right in every token')
    """
    return (
        "right to 8 bits" if certificate.get("error", 0.0) is not None else "right in every token"
    )


def verdict_without_truth(records: Sequence[Record], *, noun: str) -> Verdict | None:
    """Judge an audit by the guess that explains its update best; None if there is no guess."""
    guesses = unscored(records)
    if not guesses:
        return None
    # The guess that explains the update best, or names most tokens or inputs.
    best = min(guesses, key=_rank_guess)
    several = len({record.data for record in guesses}) > 1 and not _count_certain(best)
    told = _tell_updates(guesses, noun=noun) if several else _tell_update(best, noun=noun)
    told += f"; {UNSIMULATED}" * any(record.effort.get("unsimulated", 0) for record in guesses)
    return Verdict(Level.reconstructed if is_proved(best) else None, told, _tell_quality(best))


def _rank_guess(record: Record) -> tuple[bool, int, int, float]:
    """What orders guesses: those that explain come first, then those sure of most."""
    unexplained = record.residual > EXPLAINED
    return unexplained, -_count_certain(record), -_count_sure(record), record.residual


def _count_certain(record: Record) -> int:
    """How many words are proved to be in the batch."""
    return int((record.certificate or {}).get("certain") or 0)


def _count_sure(record: Record) -> int:
    """How many inputs the equations of one layer determine, whatever comes behind it."""
    return int(record.effort.get("sure", 0))


def _tell_update(record: Record, *, noun: str) -> str:
    """The first sentence about one captured update."""
    people = count_noun(len(record.people), "person", "people")
    if record.residual > EXPLAINED:
        if certain := _count_certain(record):
            words = count_noun(certain, "different word")
            return f"{words} of {people} came back in no order, each proved to be in the batch"
        if sure := _count_sure(record):
            return f"What the first layer read of {sure} of {people} came back"
        return (
            f"Cannot tell what leaked of {people}: the guesses are not proved right, and there is "
            "no truth to compare with"
        )
    if record.certificate and is_proved(record):
        return f"The {noun} of {people} came back, proved {tell_proof(record.certificate)}"
    return f"What came back explains the update of {people}; others might as well"


def _tell_updates(guesses: Sequence[Record], *, noun: str) -> str:
    """The first sentence about several captured updates: how many a guess explains or is proved."""
    updates = count_noun(len({record.data for record in guesses}), "update")
    explained = {record.data for record in guesses if record.residual <= EXPLAINED}
    proofs = {r.data: tell_proof(r.certificate) for r in guesses if r.certificate and is_proved(r)}
    read = {record.data for record in guesses if _count_sure(record)}
    if not explained and read:
        return f"What the first layer read came back from {len(read)} of {updates}"
    if not explained:
        return (
            f"Cannot tell what leaked from {updates}: no guess is proved right, and there is no "
            "truth to compare with"
        )
    if not proofs:
        return f"What came back explains {len(explained)} of {updates}; others might as well"
    more = f"; a guess explains {len(explained)}" if len(explained) > len(proofs) else ""
    said = list_words(sorted(set(proofs.values())))
    return f"The {noun} of {len(proofs)} of {updates} came back, proved {said}{more}"


def _tell_quality(record: Record) -> tuple[str, ...]:
    """How good the best guess is, and what that means."""
    name = record.attack.name
    left = record.residual
    if _count_certain(record):
        return (f"{name} read them off the gradient of the embeddings.",)
    if math.isinf(left):
        return (f"The guess of {name} could not be checked: it comes without labels.",)
    size = f"{residual_words(left)} {'of' if left < 1 else 'times'} its length"
    if left > EXPLAINED and _count_sure(record):
        return (
            f"{name} solved the equations of that layer, which have no other solution. The whole "
            f"update, recomputed at the guess, differs by {size} in some layer, as it does behind "
            "dropout, which cannot be simulated. So labels could not be checked, and if the client "
            "mixed its inputs, these are mixtures.",
        )
    share = (
        f"The update recomputed at the guess of {name} differs from the captured one by {size}, in "
        "the layer where it differs most."
    )
    if left > EXPLAINED:
        return (
            share,
            "That is no proof that nothing leaked: a guess may show a person without explaining "
            "the update to the last digit. Look at the pictures, or give the truth.",
        )
    return (share,)


def tell_assumed(audit: AuditResult) -> list[str]:
    """Which defense the attacks took to be behind captured updates, which do not say it."""
    names = name_captures(audit.spec)
    assumed = {record.defense for record in audit.records if record.data in names}
    if not assumed:
        return []
    update = "captured update" + "s" * (len(names) > 1)
    if assumed == {NO_DEFENSE}:
        return [
            f"No defense was assumed behind the {update}; if the client used one, name it with "
            "--defense, so that the attacks allow for it."
        ]
    labels = sorted(label_defenses(assumed).values())
    return [f"Assumed behind the {update}, as given: {list_words(labels, 'or')}."]


def tell_certain_words(records: Sequence[Record]) -> list[str]:
    """How many words of one batch are proved to be in it, at most."""
    certain = max(map(_count_certain, records), default=0)
    words = f"{count_noun(certain, 'different word')} of one batch"
    return [f"{words} {'is' if certain == 1 else 'are'} proved to be in it."] if certain else []


def tell_unjudged(results: Results, labels: Mapping[Setup, str]) -> list[str]:
    """Say of which networks and data nothing is known, in setups where others have a result."""
    groups = results.by(*ATTACKED)
    found = {
        f"{model} on {data}, {labels[setup]}": record.failed
        for (setup, data, model, _), group in groups.items()
        if not group and setup in labels
        for record in group.records
        if record.error is not None
    }
    told = [
        f"No result for {what}: {'every case failed' if failed else 'no attack applies'}."
        for what, failed in found.items()
    ]
    more = f"No result for {len(told) - _UNJUDGED} more networks or data sets."
    return [*told[:_UNJUDGED], *[more] * (len(told) > _UNJUDGED)]


def inapplicable(records: Iterable[Record]) -> list[str]:
    """Say which attacks cannot take which cases, and why; one sentence per attack and reason."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if not record.applicable and record.error is not None:
            found.setdefault((record.attack.name, record.error.rstrip(".")), []).append(record)
    return [
        f"Not applicable: {name}, {count_noun(len(cases), 'case')}: {reason}."
        for (name, reason), cases in found.items()
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
