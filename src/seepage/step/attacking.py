"""Attacking a step by everything that fits, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable

from seepage.attacks.suitable import Suitability, Suited
from seepage.audit import Case, Outcome, Record, run_case
from seepage.core import Observation
from seepage.step.budget import affordable
from seepage.step.progress import shown
from seepage.step.result import StepAudit


def attacked(
    case: Callable[[Suited], Case],
    seen: Observation,
    found: Suitability,
    *,
    notes: tuple[str, ...],
    promise: str,
    seconds: float,
) -> StepAudit:
    """Run what fits, closed forms first, until one of them proves that nothing is left to find.

    Args:
        case: Makes a case of an attack.
        seen: What is attacked.
        found: What fits.
        notes: What the result is to say besides.
        promise: What differential privacy promises, if it does.
        seconds: For all searches together.
    """
    cases: list[Case] = []
    outcomes: list[Outcome] = []
    refused = dict(found.refused)
    searches = sum(bool(option.options) for option in found.chosen)
    left = seconds
    for option in found.chosen:
        proven = next((o.record for o in outcomes if _proven(o.record)), None)
        if proven is not None:
            name = proven.attack.partition("(")[0]
            refused[option.name] = f"not needed, since {name} proved that what came back is right"
            continue
        began = time.perf_counter()
        with shown(option.name):
            share = 0.9 * left / max(1, searches)
            attempt = case(affordable(option, seen, seconds=share))
            outcome = run_case(attempt)
        if option.options:
            left, searches = max(0.0, left - (time.perf_counter() - began)), searches - 1
        if outcome.record.error is None:
            cases.append(attempt)
            outcomes.append(outcome)
        else:
            refused[option.name] = outcome.record.error
    return StepAudit(tuple(cases), tuple(outcomes), refused, notes, promise)


def _proven(record: Record) -> bool:
    return bool(record.certificate and record.certificate["unique"])


def written(option: Suited) -> dict[str, object]:
    """The options of an attack, as records show them."""
    infers = {"infer_labels": True} if option.infer_labels else {}
    return {**option.options, **infers}
