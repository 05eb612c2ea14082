"""From the first step of a run to the last, reporting and saving on the way.

A step launches hundreds of small kernels; issued one by one from Python they leave the card idle
most of the time. A graph issues them all at once. Fused, there are fewer of them to issue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core.checkpoint import checkpoints
from seepage.core.progress import report
from seepage.search.fast.captured_step import first_line, fused, traced
from seepage.search.run_state import Advance, Run, State, state_of, tensors_of

_FROM, _TO = 5, 30
# Compiling takes one to two minutes and saves about a third of what is left.
_WORTH_SECONDS = 300.0


def settled() -> float:
    """The time once a card has done all it was told to."""
    torch.cuda.synchronize()
    return time.perf_counter()


class Patience:
    """Times a few steps of a run, and says once whether the rest will take long.

    Args:
        steps: Steps to take in all.
        clock: Seconds, when all steps so far are done.
    """

    def __init__(self, steps: int, clock: Callable[[], float] = settled) -> None:
        """Begin before the first step."""
        self._steps, self._clock = steps, clock
        self._began = 0.0

    def runs_out(self, step: int) -> bool:
        """Whether, at the step where this is decided, the steps left would take too long."""
        if step == _FROM:
            self._began = self._clock()
        if step != _TO:
            return False
        each = (self._clock() - self._began) / (_TO - _FROM)
        return each * (self._steps - step) > _WORTH_SECONDS


log = logging.getLogger("seepage.engine")

_WARM_UP = 3


class Stepper:
    """Holds the state of a run and moves it step by step.

    Args:
        advance: The pure step.
        state: Where to begin.
        capture: Whether to replay a CUDA graph where the state is on a card.
    """

    def __init__(self, advance: Advance, state: State, *, capture: bool = True) -> None:
        """Prepare, capturing the step if that is possible."""
        self._advance = advance
        self.state = state
        self._graph = self._captured() if capture and state.points.is_cuda else None

    def trace(self) -> None:
        """Take all further steps by replaying their operations, where they can be traced."""
        self._advance = traced(self._advance, self.state) or self._advance

    def fuse(self) -> None:
        """Take all further steps by fused kernels, where the compiler can make them."""
        faster = fused(self._advance, self.state)
        if faster is None:
            return
        self._advance = faster
        if self._graph is not None:
            self._graph = None  # frees its memory before the next one takes its own
            self._graph = self._captured()

    def step(self) -> None:
        """Take one step."""
        if self._graph is None:
            self.state = self._advance(self.state)
        else:
            self._graph.replay()

    def _captured(self) -> torch.cuda.CUDAGraph | None:
        """The step as a graph that reads and writes `self.state` in place, or None."""
        held = [t.clone() for t in tensors_of(self.state)]
        try:
            self._warm_up()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                moved = self._advance(state_of(held))
                for kept, new in zip(held, tensors_of(moved), strict=True):
                    kept.copy_(new)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            log.warning("running eagerly: the step cannot be captured (%s)", first_line(error))
            torch.cuda.synchronize()
            return None
        self.state = state_of(held)
        return graph

    def _warm_up(self) -> None:
        """Take a few steps that are thrown away, as capture asks for, on a stream of their own."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._advance(self.state)
        torch.cuda.current_stream().wait_stream(side)


REPORT_EVERY = 25
# Tracing takes as long as some eighty steps, and saves a fifth of each.
WORTH_TRACING = 1000


@dataclass(frozen=True, kw_only=True)
class Drive:
    """How a run is driven, which does not change where it goes.

    Args:
        capture: Replay each step.
        fuse: Compile each step; None where that pays.
        smooth: What is done to points every so many steps, if anything is.
        smooth_every: After how many; None for never.
    """

    capture: bool
    fuse: bool | None
    smooth: Callable[[Tensor], Tensor]
    smooth_every: int | None

    def __call__(self, run: Run, points: Tensor, *, name: str) -> State:
        """Take all steps.

        Args:
            run: What moves the points.
            points: Where the rows start, `(R, D)`.
            name: Under which the run is saved, where checkpoints are.
        """
        saved = checkpoints()
        kept = saved.load(name) if saved else None
        state = run.begin(points)
        if kept is not None:
            state = state_of([k.to(t) for k, t in zip(kept, tensors_of(state), strict=True)])
        first = int(state.step)
        stepper, patience = self._stepper(run, state, run.steps - first)
        for step in range(first, run.steps + 1):
            stepper.step()
            if patience and patience.runs_out(step - first):
                stepper.fuse()
            if self.smooth_every and (step + 1) % self.smooth_every == 0 and step + 1 < run.steps:
                stepper.state.points.copy_(self.smooth(stepper.state.points))
            if step % REPORT_EVERY == 0 or step == run.steps:
                report(step, run.steps, float(stepper.state.lowest.min()))
            if saved and (step + 1) % saved.every == 0 and step < run.steps:
                saved.save(name, tensors_of(stepper.state))
        if saved:
            saved.finish(name, tensors_of(stepper.state))
        return stepper.state

    def _stepper(self, run: Run, state: State, left: int) -> tuple[Stepper, Patience | None]:
        scales = run.scales(state.points)
        stepper = Stepper(
            lambda at: run.advance(at, scales), state, capture=self.capture and run.steps > 10
        )
        on_card = state.points.is_cuda
        if self.fuse:
            stepper.fuse()
        elif self.capture and not on_card and left >= WORTH_TRACING:
            stepper.trace()
        # Never where a run must repeat to the bit: when it is compiled depends on a clock.
        undecided = self.fuse is None and not torch.are_deterministic_algorithms_enabled()
        return stepper, Patience(left) if on_card and undecided else None
