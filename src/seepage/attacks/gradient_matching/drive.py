"""From the first step of a run to the last, reporting and saving on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.graph import Stepper
from seepage.attacks.gradient_matching.patience import Patience
from seepage.attacks.gradient_matching.run import Run, State, state_of, tensors_of
from seepage.core.checkpoint import checkpoints
from seepage.core.progress import report

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
