"""How long an audit will take, from a few steps of every kind of case."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from seepage.audit.execution import AnyCase
from seepage.audit.record import Record
from seepage.audit.run import run_case
from seepage.core.progress import listen

STEPS = 3


class _Enough(BaseException):
    """Raised inside an attack that has shown how fast it is; no handler of errors stops it."""


@dataclass
class _Stopwatch:
    """Times the steps of an attack, and stops it."""

    first: tuple[int, float] | None = None
    seconds: float | None = None

    def heard(self, step: int, steps: int, objective: float) -> None:
        del objective
        now = time.perf_counter()
        if self.first is None:
            self.first = step, now
            return
        began, at = self.first
        if step - began >= min(STEPS, steps - began):
            self.seconds = (now - at) / (step - began) * steps
            raise _Enough


def estimate(cases: Sequence[AnyCase], records: Iterable[Record] = ()) -> float:
    """Seconds that these cases would take one after the other in this process.

    Args:
        cases: What is to run.
        records: Of cases that have run; what is like them takes as long as they took.
    """
    known = _recorded(records)
    for case in cases:
        if _kind(case) not in known:
            known[_kind(case)] = _measured(case)
    return sum(known[_kind(case)] for case in cases)


def _recorded(records: Iterable[Record]) -> dict[tuple[str, ...], float]:
    seconds: Mapping[tuple[str, ...], list[float]] = defaultdict(list)
    for r in records:
        if r.error is None:
            kind = (r.attack, r.model, r.local, r.data, str(r.batch_size))
            seconds[kind].append(float(r.effort["seconds"]))
    return {kind: fmean(values) for kind, values in seconds.items()}


def _kind(case: AnyCase) -> tuple[str, ...]:
    who = case.victims
    local = repr(case.client.local)
    return case.name, case.task.name, local, who.data, str(len(who.people))


def _measured(case: AnyCase) -> float:
    watch = _Stopwatch()
    began = time.perf_counter()
    try:
        with listen(watch.heard):
            run_case(case)
    except _Enough:
        pass
    return watch.seconds or time.perf_counter() - began
