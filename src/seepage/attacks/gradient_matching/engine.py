"""The engine: restarts and cases as rows of one run, in chunks that fit the device."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.chunks import Chunk, chunks
from seepage.attacks.gradient_matching.drive import Drive
from seepage.attacks.gradient_matching.fingerprint import fingerprint
from seepage.attacks.gradient_matching.layout import Layout
from seepage.attacks.gradient_matching.median import median_filter
from seepage.attacks.gradient_matching.objective import Objective, RowSimulation
from seepage.attacks.gradient_matching.outcome import Outcome, outcome_of, part_of
from seepage.attacks.gradient_matching.per_case import joined
from seepage.attacks.gradient_matching.rows import (
    Rounded,
    Strategy,
    case_simulation,
    given_statistics,
    rounded,
)
from seepage.attacks.gradient_matching.run import Run, State
from seepage.attacks.gradient_matching.search import Search
from seepage.attacks.gradient_matching.starts import generated_point
from seepage.core import Observation, Rng
from seepage.core.checkpoint import checkpoints
from seepage.core.errors import InvalidValue
from seepage.core.precision import Precision, precision
from seepage.core.tuning import tuning

log = logging.getLogger("seepage.engine")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How runs are computed; the same results to rounding, whatever is chosen.

    Args:
        strategy: How rows are simulated together.
        capture: Replay each step: as a CUDA graph where there is a card, and in a long run on a
            CPU as a list of operations.
        precision: "tf32" rounds the factors of matrix products on a card to 11 bits, "float32"
            nothing; "bf16" simulates the client in bfloat16, of 8 bits, and compares in float32.
        rows: Rows computed together; None takes all on a card and one on a CPU, where more do
            not pay. Out of memory halves it.
        fuse: Compile each step to fewer kernels, which takes a minute or two first; None does so
            on a card where the steps still to take would last longer than that.
    """

    strategy: Strategy = "auto"
    capture: bool = True
    precision: Precision | Literal["bf16"] = "tf32"
    rows: int | None = None
    fuse: bool | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        if self.precision not in ("tf32", "float32", "bf16"):
            raise InvalidValue(
                f"expected precision 'tf32', 'float32' or 'bf16', got {self.precision!r}"
            )
        if self.rows is not None and self.rows < 1:
            raise InvalidValue(f"expected rows >= 1 or None, got {self.rows!r}")

    def run(
        self,
        searches: Sequence[Search],
        cases: Sequence[Observation],
        rngs: Sequence[Rng],
        layouts: Sequence[Layout],
    ) -> list[Outcome]:
        """Run every restart of every case.

        Args:
            searches: One for each case, alike but for their starts and what parts hold of a case.
            cases: What was observed.
            rngs: A key for each.
            layouts: How the points of each are read.
        """
        began = time.perf_counter()
        search = searches[0]
        reference = next(iter(cases[0].update))
        together = self.rows or (len(cases) * search.restarts if reference.is_cuda else 1)
        if search.grouped:
            together = max(together, search.restarts)
        results: list[list[State]] = [[] for _ in cases]
        todo = list(chunks(len(cases), search.restarts, together))
        with precision("float32" if self.precision == "float32" else "tf32"), tuning(True):
            while todo:
                chunk = todo.pop(0)
                try:
                    state = self._chunk(searches, cases, rngs, layouts, chunk)
                except torch.cuda.OutOfMemoryError:
                    halves = chunk.halved()
                    if halves is None or (search.grouped and len(chunk.cases) == 1):
                        raise
                    log.warning("out of memory with %d rows; halving", chunk.size)
                    torch.cuda.empty_cache()
                    todo = [*halves, *todo]
                    continue
                for index, case in enumerate(chunk.cases):
                    results[case].append(part_of(state, index, len(chunk.cases)))
        # A share for each, so that the seconds of all cases add up to what was spent.
        seconds = (time.perf_counter() - began) / len(cases)
        return [outcome_of(parts, seconds) for parts in results]

    def _chunk(
        self,
        searches: Sequence[Search],
        cases: Sequence[Observation],
        rngs: Sequence[Rng],
        layouts: Sequence[Layout],
        chunk: Chunk,
    ) -> State:
        chosen = tuple(cases[case] for case in chunk.cases)
        mine = [searches[case] for case in chunk.cases]
        search, layout = mine[0], _joined([layouts[case] for case in chunk.cases], chunk)
        reference = next(iter(chosen[0].update))
        starts = [
            _start(searches[case], layouts[case], rngs[case].fork("restart", restart), reference)
            for case in chunk.cases
            for restart in chunk.restarts
        ]
        labels = None
        if not search.seek_labels:
            known = [observation.labels for observation in chosen]
            stacked = torch.stack([label for label in known if label is not None])
            labels = stacked.repeat_interleave(len(chunk.restarts), 0)
        simulate = self._simulation(chosen, chunk.size, given=search.given_statistics)
        others = tuple(other.terms for other in mine[1:])
        objective = Objective(search.terms, chosen, layout, labels, simulate, others)
        run = Run(
            evaluate=objective.evaluate,
            optimiser=joined([s.optimiser for s in mine], restarts=len(chunk.restarts)),
            schedule=search.schedule,
            steps=search.steps,
            project=layout.project if search.boxed else _unchanged,
            same=objective.same,
        )
        drive = Drive(
            capture=self.capture,
            fuse=self.fuse,
            smooth=partial(_smoothed, layout),
            smooth_every=search.median_every,
        )
        keys = [rngs[case] for case in chunk.cases]
        name = fingerprint(mine, chosen, keys, chunk) if checkpoints() else ""
        return drive(run, torch.stack(starts), name=name)

    def _simulation(
        self, cases: tuple[Observation, ...], rows: int, *, given: bool = False
    ) -> RowSimulation:
        light = self.precision == "bf16"
        simulated = [rounded(case) for case in cases] if light else cases
        simulate = case_simulation(simulated, rows=rows, strategy=self.strategy)
        if given:
            simulate = given_statistics(simulate, cases)
        return Rounded(simulate) if light else simulate


def _joined(layouts: list[Layout], chunk: Chunk) -> Layout:
    """The layout of all rows of a chunk."""
    generated = joined([layout.generated for layout in layouts], restarts=len(chunk.restarts))
    return replace(layouts[0], generated=generated)


def _start(search: Search, layout: Layout, rng: Rng, like: Tensor) -> Tensor:
    if layout.generated is not None:
        return generated_point(layout, rng=rng)
    return search.start(layout, rng=rng, like=like)


def _smoothed(layout: Layout, points: Tensor) -> Tensor:
    axes = len(layout.domain.shape) - 1
    return layout.with_inputs(points, median_filter(layout.normalised(points), axes=axes))


def _unchanged(points: Tensor) -> Tensor:
    return points
