"""A step as fused kernels.

A step differentiates twice, so torch's compiler does not see through it. Traced by running it once
it is a flat list of operations without any autograd, which the compiler can fuse: activations are
then read and written far less often, and that is what a step of many rows spends its time on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from seepage.attacks.gradient_matching.program import made_fit
from seepage.attacks.gradient_matching.run import Advance, State, state_of, tensors_of
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
    except Exception as error:  # noqa: BLE001 - whatever the compiler cannot do, the plain step can
        reason = (str(error).splitlines() or [""])[0]
        log.warning("not fusing the step: %s: %s", type(error).__name__, reason)
        return None
    if step is not None and not _agree(advance, step, state):
        log.warning("not fusing the step: compiled it gives other numbers")
        return None
    return step


def _compiled(advance: Advance, state: State) -> Advance | None:
    def flat(*tensors: Tensor) -> list[Tensor]:
        return tensors_of(advance(state_of(list(tensors))))

    tensors = tensors_of(state)
    flat(*tensors)  # what is made on first use must not be traced
    program = make_fx(flat)(*tensors)
    if len(program.graph.nodes) > _MOST_OPERATIONS:
        log.info("not fusing a step of %d operations", len(program.graph.nodes))
        return None
    constants = made_fit(program)
    with torch.no_grad():
        compiled: Flat = torch._inductor.compile(program, [*tensors, *constants])

    def step(at: State) -> State:
        with torch.no_grad():
            return state_of(list(compiled(*tensors_of(at), *constants)))

    return step


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
