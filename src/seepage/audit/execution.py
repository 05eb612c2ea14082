"""Who runs the cases: one after the other here, or as many together as a card can take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from seepage.audit.bound_case import BoundCase
from seepage.audit.case import Case
from seepage.audit.outcome import Outcome
from seepage.audit.run import run_case, run_together

AnyCase = Case | BoundCase
Started = Callable[[AnyCase], None]
Executor = Callable[[Sequence[AnyCase], Started], Iterable[Outcome]]

# Results are stored group by group: a larger one would show nothing for longer, and use a card
# hardly better.
TOGETHER = 64


def unannounced(case: AnyCase) -> None:
    """Tell nobody that a case begins."""
    del case


def serial(cases: Sequence[AnyCase], started: Started = unannounced) -> Iterator[Outcome]:
    """Run one case after the other, in this process."""
    for case in cases:
        started(case)
        yield run_case(case)


def side_by_side(cases: Sequence[AnyCase], started: Started = unannounced) -> Iterator[Outcome]:
    """Run cases that are alike together, where the attack can."""
    for group in _alike(cases):
        started(group[0])
        yield from run_together(group)


def _alike(cases: Sequence[AnyCase]) -> Iterator[list[AnyCase]]:
    groups: dict[tuple[str, ...], list[AnyCase]] = {}
    for case in cases:
        groups.setdefault(case.alike, []).append(case)
    for group in groups.values():
        for first in range(0, len(group), TOGETHER):
            yield group[first : first + TOGETHER]
