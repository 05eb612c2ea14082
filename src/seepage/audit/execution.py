"""Who runs the cases: one after the other here, or as many together as a card can take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from seepage.audit.case import Case
from seepage.audit.outcome import Outcome
from seepage.audit.run import run_case, run_together

Started = Callable[[Case], None]
Executor = Callable[[Sequence[Case], Started], Iterable[Outcome]]

# Results are stored group by group, so a larger one would lose more to an interruption.
TOGETHER = 16


def unannounced(case: Case) -> None:
    """Tell nobody that a case begins."""
    del case


def serial(cases: Sequence[Case], started: Started = unannounced) -> Iterator[Outcome]:
    """Run one case after the other, in this process."""
    for case in cases:
        started(case)
        yield run_case(case)


def side_by_side(cases: Sequence[Case], started: Started = unannounced) -> Iterator[Outcome]:
    """Run cases that differ in people and seed alone together, where the attack can."""
    for group in _alike(cases):
        started(group[0])
        yield from run_together(group)


def _alike(cases: Sequence[Case]) -> Iterator[list[Case]]:
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        size = len(case.victims.people)
        parts = (case.task.digest, case.client, case.threat, case.attack_name, size)
        groups.setdefault(tuple(map(repr, parts)), []).append(case)
    for group in groups.values():
        for first in range(0, len(group), TOGETHER):
            yield group[first : first + TOGETHER]
