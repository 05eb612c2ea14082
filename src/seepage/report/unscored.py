"""What can be said of guesses where nobody has the truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seepage.audit import Record
from seepage.report.words import counted

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
