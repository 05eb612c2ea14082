"""A step of a run: taken eagerly, replayed as a CUDA graph or as a list of operations.

A step launches hundreds of small kernels; issued one by one from Python they leave the card idle
most of the time. A graph issues them all at once. Fused, there are fewer of them to issue.
"""

from __future__ import annotations

import logging

import torch

from seepage.attacks.gradient_matching.fused import fused
from seepage.attacks.gradient_matching.run import Advance, State, state_of, tensors_of
from seepage.attacks.gradient_matching.traced import first_line, traced

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
