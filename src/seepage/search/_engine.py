"""The engine: run restarts and cases as rows, in chunks that fit the device."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from seepage.core import Observation, Rng
from seepage.core._checkpoint import checkpoints
from seepage.core._device import Precision, plain_convolutions, precision, tuning
from seepage.core._progress import spanning, time_left
from seepage.core.errors import InvalidValue, require_at_least
from seepage.search._objective import Layout, Objective, RowSimulation, join_parts
from seepage.search._runner import Runner, State
from seepage.search._search import Search, generated_point
from seepage.search.fast._case_simulation import (
    Bfloat16Simulation,
    case_simulation,
    round_to_bfloat16,
    use_known_statistics,
)
from seepage.search.fast._row_simulation import Strategy


@dataclass(frozen=True)
class Chunk:
    """Rows that run together: some restarts of some cases."""

    cases: range
    restarts: range

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.cases) * len(self.restarts)

    def halve(self) -> list[Chunk]:
        """Split the rows into two chunks, by case if possible; empty for a single row."""
        field = "cases" if len(self.cases) > 1 else "restarts"
        rows: range = getattr(self, field)
        middle = len(rows) // 2
        return [replace(self, **{field: r}) for r in (rows[:middle], rows[middle:]) if middle]


def chunks(cases: int, restarts: int, together: int) -> Iterator[Chunk]:
    """Split the grid of cases and restarts into chunks of at most `together` rows."""
    if together >= restarts:
        width = max(1, together // restarts)
        for first in range(0, cases, width):
            yield Chunk(range(first, min(first + width, cases)), range(restarts))
        return
    for case in range(cases):
        for first in range(0, restarts, together):
            yield Chunk(range(case, case + 1), range(first, min(first + together, restarts)))


@dataclass(frozen=True, eq=False)
class Job:
    """One case to search.

    All jobs of a run differ only in starts and in what parts of the search hold of a case.
    """

    search: Search
    observation: Observation
    rng: Rng
    layout: Layout


def fingerprint(jobs: Sequence[Job], chunk: Chunk) -> str:
    """Name a run, such that no run with another result has the same name."""
    cases = [job.observation for job in jobs]
    searches, rngs = [job.search for job in jobs], [job.rng for job in jobs]
    clients = [case.simulate.client or case.simulate for case in cases]
    digest = hashlib.sha256(repr((searches, rngs, chunk, clients, cases[0].task)).encode())
    # Cases share the task, so its weights are read once.
    tensors = list(cases[0].task.parameters.values())
    for case in cases:
        tensors += [*case.update, *([] if case.labels is None else [case.labels])]
        for layer in (case.statistics or {}).values():
            tensors += [layer.mean, layer.variance]
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:24]


def _median_filter(normalised: Tensor, *, size: int = 3, axes: int = 2) -> Tensor:
    """Replace every entry by the median of the window around it, channel by channel.

    Borders are mirrored about the outermost entry, which is not repeated: `reflect` in torch,
    `mirror` in scipy.

    Args:
        normalised: Images `(..., C, H, W)`, or signals `(..., C, L)` with `axes=1`.
        size: Width of the window, odd.
        axes: How many trailing axes it spans.

    Example:
        >>> spike = torch.tensor([0.0, 0.0, 9.0, 0.0, 0.0])
        >>> _median_filter(spike, axes=1).tolist()
        [0.0, 0.0, 0.0, 0.0, 0.0]

    References:
        Geiping et al., 2020, Sec. 3.1 (geiping2020inverting)
    """
    if size < 1 or size % 2 == 0:
        raise InvalidValue(f"expected an odd size >= 1, got {size!r}")
    windows = normalised
    for axis in range(-axes, 0):
        mirrored = _mirror_indices(normalised.shape[axis], size // 2, normalised.device)
        windows = windows.index_select(axis, mirrored)
    for axis in range(normalised.ndim - axes, normalised.ndim):
        windows = windows.unfold(axis, size, 1)
    return windows.flatten(normalised.ndim).median(-1).values


def _mirror_indices(length: int, margin: int, device: torch.device) -> Tensor:
    """Indices of an axis continued by `margin` entries at both ends."""
    period = max(2 * (length - 1), 1)
    index = torch.arange(-margin, length + margin, device=device) % period
    return torch.minimum(index, period - index) if length > 1 else index


@dataclass(frozen=True, eq=False)
class SearchOutcome:
    """The result of one case.

    Args:
        point: The best point of the best restart.
        points: The best point of every restart, `(R, D)`.
        value: The objective of the best restart.
        values: Its objective at every step.
        finals: The best objective of every restart.
        diverged: How many restarts stopped being finite.
        seconds: An equal share of the run time of all cases.
    """

    point: Tensor
    points: Tensor
    value: float
    values: tuple[float, ...]
    finals: tuple[float, ...]
    diverged: int
    seconds: float


def _part_of(state: State, index: int, cases: int) -> State:
    """The rows of one case of a chunk."""
    count = len(state.points) // cases
    rows = slice(index * count, (index + 1) * count)
    return state._replace(
        points=state.points[rows],
        best=state.best[rows],
        lowest=state.lowest[rows],
        diverged=state.diverged[rows],
        values=state.values[:, rows],
        memory=(),
    )


def _outcome_of(parts: list[State], seconds: float) -> SearchOutcome:
    """Choose the best restart of one case, from the chunks they ran in."""
    lowest = torch.cat([part.lowest for part in parts])
    winner = int(lowest.argmin())
    values = torch.cat([part.values for part in parts], dim=1)
    # One that ran out of time has no values of the steps that it did not take.
    taken = [int(part.step) for part in parts for _ in part.points][winner]
    points = torch.cat([part.best for part in parts])
    return SearchOutcome(
        point=points[winner],
        points=points,
        value=float(lowest[winner]),
        values=tuple(values[:taken, winner].tolist()),
        finals=tuple(lowest.tolist()),
        diverged=sum(int(part.diverged.sum()) for part in parts),
        seconds=seconds,
    )


log = logging.getLogger("seepage.engine")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How runs are computed, which changes results only by rounding.

    Args:
        strategy: How rows are simulated together.
        capture: Replay each step: on a GPU as a CUDA graph, in a long run on a CPU as a list of
            operations.
        precision: "tf32" rounds the factors of matrix products on a GPU to 11 bits, "float32"
            nothing; "bf16" simulates the client in bfloat16, of 8 bits, and compares in float32.
        rows: Rows computed together; None takes all on a GPU and one on a CPU, where more are no
            faster. Halved when memory runs out.
        fuse: Compile each step to fewer kernels, which takes one or two minutes; None does so on a
            GPU if the remaining steps would take longer than that.
    """

    strategy: Strategy = "auto"
    capture: bool = True
    precision: Precision | Literal["bf16"] = "tf32"
    rows: int | None = None
    fuse: bool | None = None

    def __post_init__(self) -> None:
        if self.precision not in ("tf32", "float32", "bf16"):
            raise InvalidValue(
                f"expected precision 'tf32', 'float32' or 'bf16', got {self.precision!r}"
            )
        require_at_least(1, rows=self.rows)

    def run(self, jobs: Sequence[Job]) -> list[SearchOutcome]:
        """Run every restart of every job."""
        began = time.perf_counter()
        search = jobs[0].search
        reference = next(iter(jobs[0].observation.update))
        together = self.rows or (len(jobs) * search.restarts if reference.is_cuda else 1)
        if search.grouped:
            together = max(together, search.restarts)
        results: list[list[State]] = [[] for _ in jobs]
        todo = list(chunks(len(jobs), search.restarts, together))
        rounding: Precision = "float32" if self.precision == "float32" else "tf32"
        steps = search.steps * len(todo)
        with precision(rounding), tuning(True), plain_convolutions(), spanning(steps):
            while todo:
                chunk = todo.pop(0)
                try:
                    state = self._chunk(jobs, chunk)
                except torch.cuda.OutOfMemoryError:
                    halves = chunk.halve()
                    if not halves or (search.grouped and len(chunk.cases) == 1):
                        raise
                    log.info("out of memory with %d rows; halving", chunk.size)
                    torch.cuda.empty_cache()
                    todo = [*halves, *todo]
                    continue
                for index, case in enumerate(chunk.cases):
                    results[case].append(_part_of(state, index, len(chunk.cases)))
                if time_left() <= 0 and all(results):
                    break
        seconds = (time.perf_counter() - began) / len(jobs)
        return [_outcome_of(parts, seconds) for parts in results]

    def _chunk(self, jobs: Sequence[Job], chunk: Chunk) -> State:
        jobs, restarts = [jobs[case] for case in chunk.cases], len(chunk.restarts)
        chosen = tuple(job.observation for job in jobs)
        search, reference = jobs[0].search, next(iter(chosen[0].update))
        generated = join_parts([job.layout.generated for job in jobs], restarts=restarts)
        layout = replace(jobs[0].layout, generated=generated)
        keys = [(job, job.rng.fork("restart", n)) for job in jobs for n in chunk.restarts]
        starts = [
            job.search.start(job.layout, rng=key, like=reference)
            if job.layout.generated is None
            else generated_point(job.layout, rng=key)
            for job, key in keys
        ]
        labels = None
        if layout.classes is None and layout.target_shape is None:
            known = torch.stack([seen.labels for seen in chosen if seen.labels is not None])
            labels = known.repeat_interleave(restarts, 0)
        simulate = self._simulation(chosen, chunk.size, given=search.given_statistics)
        others = tuple(job.search.terms for job in jobs[1:])
        objective = Objective(search.terms, chosen, layout, labels, simulate, others)
        runner = Runner(
            evaluate=objective.evaluate,
            optimiser=join_parts([job.search.optimiser for job in jobs], restarts=restarts),
            schedule=search.schedule,
            steps=search.steps,
            project=layout.project if search.boxed else lambda points: points,
            same=objective.same,
            capture=self.capture,
            fuse=self.fuse,
            smooth=partial(_smooth, layout),
            smooth_every=search.median_every,
        )
        name = fingerprint(jobs, chunk) if checkpoints() else ""
        return runner.run(torch.stack(starts), name=name)

    def _simulation(
        self, cases: tuple[Observation, ...], rows: int, *, given: bool = False
    ) -> RowSimulation:
        light = self.precision == "bf16"
        simulated = [round_to_bfloat16(case) for case in cases] if light else cases
        simulate = case_simulation(simulated, rows=rows, strategy=self.strategy)
        if given:
            simulate = use_known_statistics(simulate, cases)
        return Bfloat16Simulation(simulate) if light else simulate


def _smooth(layout: Layout, points: Tensor) -> Tensor:
    axes = len(layout.domain.shape) - 1
    return layout.with_inputs(points, _median_filter(layout.normalised(points), axes=axes))
