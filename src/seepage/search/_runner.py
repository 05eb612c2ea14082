"""Run a search: move all rows from their starts to their best points.

The state of a run is a tuple of tensors of fixed shapes, and a step is a pure function of it. So a
step can be captured as a CUDA graph, and a run can be saved and continued with the same result.

A step launches hundreds of small kernels. Launched one by one from Python they leave the GPU idle
most of the time. A graph launches them all at once, and compiling makes them fewer.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from seepage.core._checkpoint import checkpoints
from seepage.core._progress import report, time_left
from seepage.core.errors import NotApplicable
from seepage.numerics._schedules import Schedule
from seepage.search._optimisers import Moment, Optimiser
from seepage.search.fast._captured_step import compile_step, first_line, trace_step

log = logging.getLogger("seepage.engine")

REPORT_EVERY = 25
# Slow steps are reported more often.
_SECONDS_PER_REPORT = 1.0
# Steps that are thrown away before a step is captured.
_WARM_UP = 3
# Recording takes as long as about ten steps, and saves half of each step of a small network.
WORTH_TRACING = 50
# Compiling takes one to two minutes and saves about a third of the remaining time. The steps
# between these two numbers are timed.
_TIMED_FROM, _TIMED_TO = 5, 30
_WORTH_COMPILING_SECONDS = 300.0


class State(NamedTuple):
    """The state of a run.

    Args:
        step: Steps taken, a scalar.
        points: The current points, `(R, D)`.
        best: The point of each row with the lowest objective so far, `(R, D)`.
        lowest: That objective, `(R,)`; infinite until one was finite.
        diverged: Whether a row's objective was ever not finite, `(R,)`.
        values: The objective of every row at every step so far, `(steps + 1, R)`.
        memory: The optimiser's state.
    """

    step: Tensor
    points: Tensor
    best: Tensor
    lowest: Tensor
    diverged: Tensor
    values: Tensor
    memory: tuple[Tensor, ...]

    def tensors(self) -> list[Tensor]:
        """The tensors in a fixed order."""
        return [*self[:-1], *self.memory]

    @classmethod
    def of(cls, tensors: list[Tensor]) -> State:
        """Undo `tensors`."""
        step, points, best, lowest, diverged, values, *memory = tensors
        return cls(step, points, best, lowest, diverged, values, tuple(memory))


@dataclass(eq=False, kw_only=True)
class Runner:
    """Moves rows, and chooses how steps are computed, which does not change the result.

    Args:
        evaluate: Values `(R,)` and gradients `(R, D)` at points, given the step.
        optimiser: The update rule.
        schedule: The step size over time.
        steps: Steps to take.
        project: Makes points valid.
        same: Whether the objective at a step is the same function as at the last; None for always.
        capture: Replay each step, as a CUDA graph or as a list of operations.
        fuse: Compile each step; None does so if that saves time.
        smooth: Applied to points every `smooth_every` steps.
        smooth_every: How often to smooth; None for never.
    """

    evaluate: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    optimiser: Optimiser
    schedule: Schedule
    steps: int
    project: Callable[[Tensor], Tensor] = lambda points: points
    same: Callable[[Tensor], Tensor | bool] | None = None
    capture: bool = True
    fuse: bool | None = None
    smooth: Callable[[Tensor], Tensor] = lambda points: points
    smooth_every: int | None = None
    _step: Callable[[State], State] = field(init=False, repr=False)
    _graph: torch.cuda.CUDAGraph | None = field(init=False, default=None, repr=False)

    def run(self, points: Tensor, *, name: str = "") -> State:
        """Take all steps, or as many as there is time for, at least one.

        Args:
            points: The starts of the rows, `(R, D)`.
            name: The name to save the run under, if checkpoints are kept.
        """
        saved = checkpoints()
        kept = saved.load(name) if saved else None
        state = self.begin(points)
        if kept is not None:
            state = State.of([k.to(t) for k, t in zip(kept, state.tensors(), strict=True)])
        first = int(state.step)
        state = self._prepare(state, self.steps - first) if first <= self.steps else state
        # Not if a run must repeat to the bit: the clock decides when it is compiled.
        timed = self.fuse is None and not torch.are_deterministic_algorithms_enabled()
        timed, began = timed and state.points.is_cuda, 0.0
        told = time.monotonic()
        for step in range(first, self.steps + 1):
            state = self._take(state)
            if timed and step - first == _TIMED_FROM:
                began = _synchronised_time()
            if timed and step - first == _TIMED_TO:
                spent = _synchronised_time() - began
                if _is_worth_compiling(spent / (_TIMED_TO - _TIMED_FROM), self.steps - step):
                    state = self._compile(state)
            if self.smooth_every and (step + 1) % self.smooth_every == 0 and step + 1 < self.steps:
                state.points.copy_(self.smooth(state.points))
            if first < step < self.steps and time_left() <= 0:
                return state
            is_slow = time.monotonic() - told >= _SECONDS_PER_REPORT
            if is_slow or step % REPORT_EVERY == 0 or step == self.steps:
                # Out of time it has a result all the same.
                with suppress(NotApplicable):
                    report(step, self.steps, float(state.lowest.min()))
                told = time.monotonic()
            if saved and (step + 1) % saved.every == 0 and step < self.steps:
                saved.save(name, state.tensors())
        if saved:
            saved.finish(name, state.tensors())
        return state

    def begin(self, points: Tensor) -> State:
        """Make the state before the first step."""
        rows = len(points)
        return State(
            step=torch.zeros((), dtype=torch.long, device=points.device),
            points=points.clone(),
            best=points.clone(),
            lowest=points.new_full((rows,), torch.inf),
            diverged=torch.zeros(rows, dtype=torch.bool, device=points.device),
            values=points.new_full((self.steps + 1, rows), torch.nan),
            memory=self.optimiser.start(points),
        )

    def scales(self, like: Tensor) -> Tensor:
        """Tabulate the schedule; the last point is only evaluated, so its factor is 0."""
        factors = [self.schedule(step, self.steps) for step in range(self.steps)]
        return like.new_tensor([*factors, 0.0])

    def advance(self, state: State, scales: Tensor) -> State:
        """Evaluate every row, remember the best points, and move.

        A row whose objective is not finite goes back to its best point.
        """
        values, gradients = self.evaluate(state.points, state.step)
        # Infinity minus itself is not a number; `isfinite` takes twice as many operations.
        finite = (values - values) == 0
        better = finite & (values < state.lowest)
        best = torch.where(better.unsqueeze(1), state.points, state.best)
        # Indexing by a scalar would copy it to the host, which breaks a capture.
        scale = scales.index_select(0, state.step.reshape(1)).squeeze(0)
        same = True if self.same is None else self.same(state.step)
        moment = Moment(state.step, state.step / self.steps, scale, same)
        moved, memory = self.optimiser.step(state.points, values, gradients, state.memory, moment)
        moved = self.project(moved)
        sound = finite & ~(moved - moved).any(1)
        return State(
            step=state.step + 1,
            points=torch.where(sound.unsqueeze(1), moved, best),
            best=best,
            lowest=torch.where(better, values, state.lowest),
            diverged=state.diverged | ~sound,
            values=state.values.index_copy(0, state.step.reshape(1), values.unsqueeze(0)),
            memory=memory,
        )

    def _prepare(self, state: State, left: int) -> State:
        """Choose how steps are taken, and return the state to continue from."""
        scales = self.scales(state.points)
        self._step, self._graph = lambda at: self.advance(at, scales), None
        on_gpu = state.points.is_cuda
        if on_gpu and self.capture and self.steps > 10:
            state = self._capture(state)
        if self.fuse:
            state = self._compile(state)
        elif self.capture and not on_gpu and left >= WORTH_TRACING:
            self._step = trace_step(self._step, state) or self._step
        return state

    def _take(self, state: State) -> State:
        """Take one step; a graph overwrites the old state."""
        if self._graph is None:
            return self._step(state)
        self._graph.replay()
        return state

    def _compile(self, state: State) -> State:
        """Take all further steps by compiled kernels, if compiling works."""
        faster = compile_step(self._step, state)
        if faster is None:
            return state
        self._step = faster
        if self._graph is None:
            return state
        self._graph = None  # frees its memory before the next one takes its own
        return self._capture(state)

    def _capture(self, state: State) -> State:
        """Capture the step as a graph that reads and writes the returned state in place."""
        held = [t.clone() for t in state.tensors()]
        try:
            self._warm_up(state)
            graph = torch.cuda.CUDAGraph()
            with no_collection(), torch.cuda.graph(graph):
                moved = self._step(State.of(held))
                for kept, new in zip(held, moved.tensors(), strict=True):
                    kept.copy_(new)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            log.info("running eagerly: the step cannot be captured (%s)", first_line(error))
            torch.cuda.synchronize()
            return state
        self._graph = graph
        return State.of(held)

    def _warm_up(self, state: State) -> None:
        """Take a few steps on a side stream and discard them, as a capture requires."""
        with beside_stream():
            for _ in range(_WARM_UP):
                self._step(state)


@contextmanager
def beside_stream() -> Iterator[None]:
    """Run on a stream of its own what is captured later; the current one waits for it."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        yield
    torch.cuda.current_stream().wait_stream(side)


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect garbage now and none inside: freeing the graph of an earlier run ends a capture."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_worth_compiling(seconds_each: float, left: int) -> bool:
    """Whether the remaining steps take so long that compiling them saves time.

    Example:
        >>> _is_worth_compiling(0.1, 24_000), _is_worth_compiling(0.01, 4_000)
        (True, False)
    """
    return seconds_each * left > _WORTH_COMPILING_SECONDS


def _synchronised_time() -> float:
    """Wait for the GPU, then return the time."""
    torch.cuda.synchronize()
    return time.perf_counter()
