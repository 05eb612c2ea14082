"""Running one bound: what theory says of everybody in a batch."""

from __future__ import annotations

import time
from dataclasses import replace

from seepage.audit.bound_case import BoundCase
from seepage.audit.ceiling import Ceiling
from seepage.audit.identity import client_key
from seepage.audit.record import Record
from seepage.core.errors import InvalidValue


def bounded(case: BoundCase) -> Record:
    """Compute the bound."""
    reference = next(iter(case.task.parameters.values()))
    batch = case.victims.batch.to(device=reference.device, dtype=reference.dtype)
    task = case.client.broadcast(case.task)
    began = time.perf_counter()
    key = client_key(case.seed, case.client, case.victims)
    found = case.bound(case.client, task, batch, rng=key.fork("bound"))
    if len(found.value) != len(batch):
        raise InvalidValue(
            f"expected {case.name} to give a number for each of {len(batch)} people, got "
            f"{len(found.value)}"
        )
    ceiling = replace(
        _blank(case),
        values=tuple(found.value.tolist()),
        side=found.side,
        metric=found.metric,
        assumptions=found.assumptions,
        remark=found.remark,
    )
    effort: dict[str, float | int | str] = {
        "seconds": time.perf_counter() - began,
        "device": str(reference.device),
    }
    return replace(failed_bound(case, None), bound=ceiling, effort=effort)


def failed_bound(case: BoundCase, reason: str | None) -> Record:
    """What is kept of a bound that gave no result."""
    return Record(
        data=case.victims.data,
        people=case.victims.people,
        model=case.task.name,
        local=repr(case.client.local),
        defense=repr(case.client.defense),
        threat="",
        attack=case.name,
        seed=case.seed,
        error=reason,
        case=case.id,
        truth=case.victims.digest,
        bound=_blank(case),
    )


def _blank(case: BoundCase) -> Ceiling:
    low, high = case.victims.bounds
    return Ceiling(
        values=(),
        side="lower",
        metric="",
        peak=high - low,
        entries=case.victims.batch.inputs[0].numel(),
        mode=case.task.mode,
    )
