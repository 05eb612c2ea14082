"""A step as fused kernels.

A step differentiates twice, so torch's compiler does not see through it. The traced step it can
fuse: activations are then read and written far less often, and that is what a step of many rows
spends its time on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.program import made_fit
from seepage.attacks.gradient_matching.run import Advance, State, state_of, tensors_of
from seepage.attacks.gradient_matching.traced import first_line, program_of
from seepage.core.precision import precision

log = logging.getLogger("seepage.engine")

Flat = Callable[..., Sequence[Tensor]]
# Compiling takes about a second per hundred operations; a hundred local steps have 100 000.
_MOST_OPERATIONS = 20_000


def fused(advance: Advance, state: State) -> Advance | None:
    """The same step compiled, or None, with a logged reason, where that fails.

    Args:
        advance: The pure step.
        state: One it can be tried on; the result is for states of the same shapes.
    """
    try:
        step = _compiled(advance, state)
        if step is None or _agree(advance, step, state):
            return step
    except Exception as error:  # noqa: BLE001 - whatever the compiler cannot do, the plain step can
        log.warning("not fusing the step: %s: %s", type(error).__name__, first_line(error))
        return None
    log.warning("not fusing the step: compiled it gives other numbers")
    return None


def _compiled(advance: Advance, state: State) -> Advance | None:
    program, tensors = program_of(advance, state), tensors_of(state)
    if len(program.graph.nodes) > _MOST_OPERATIONS:
        log.info("not fusing a step of %d operations", len(program.graph.nodes))
        return None
    constants = made_fit(program)
    with torch.no_grad(), _remembered():
        compiled: Flat = torch._inductor.compile(program, [*tensors, *constants])

    def step(at: State) -> State:
        with torch.no_grad():
            return state_of(list(compiled(*tensors_of(at), *constants)))

    return step


@contextmanager
def _remembered() -> Iterator[None]:
    """Let the compiler keep what it makes on disk, for the next run of the same step.

    It does so only where it is told about shapes; all of ours are fixed.
    """
    # Slow to import, and few runs are compiled.
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    with tracing(TracingContext(mode)):
        yield


def _agree(plain: Advance, compiled: Advance, state: State) -> bool:
    """Whether a step from one state gives the same objective and moves almost everything alike.

    Not everything: the sign of a gradient that is nearly zero is a matter of rounding.
    """
    # In full precision: a deep network amplifies the rounding of TF32 too far to judge by.
    with precision("float32"):
        ours, theirs = compiled(state), plain(state)
    at = int(state.step)
    apart = (ours.values[at] - theirs.values[at]).abs()
    same = bool((apart <= 1e-3 * theirs.values[at].abs() + 1e-6).all())
    moved = (theirs.points - state.points).abs().mean()
    return same and bool((ours.points - theirs.points).abs().mean() <= 0.02 * moved)
