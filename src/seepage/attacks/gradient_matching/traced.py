"""A step as a flat list of operations.

A step differentiates twice. Traced by running it once it needs no autograd any more: the same
operations in the same order, without the bookkeeping, which for a small network on a CPU is a
fifth of the time. Compilers start from the same list.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from seepage.attacks.gradient_matching.run import Advance, State, state_of, tensors_of

log = logging.getLogger("seepage.engine")

_DETACH = torch.ops.aten.detach.default


def traced(advance: Advance, state: State) -> Advance | None:
    """The same step to the bit, replayed; None, with a logged reason, where that fails.

    Args:
        advance: The pure step.
        state: One it can be tried on; the result is for states of the same shapes.
    """
    try:
        program = program_of(advance, state)
    except Exception as error:  # noqa: BLE001 - what cannot be traced can be run as it is
        log.info("not replaying the step: %s: %s", type(error).__name__, first_line(error))
        return None

    def step(at: State) -> State:
        with torch.no_grad():
            return state_of(list(program(*tensors_of(at))))

    pairs = zip(tensors_of(step(state)), tensors_of(advance(state)), strict=True)
    if not all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs):
        log.warning("not replaying the step: replayed it gives other numbers")
        return None
    return step


def program_of(advance: Advance, state: State) -> GraphModule:
    """The operations of a step, from the tensors of a state to those of the next."""

    def flat(*tensors: Tensor) -> list[Tensor]:
        return tensors_of(advance(state_of(list(tensors))))

    tensors = tensors_of(state)
    flat(*tensors)  # what is made on first use must not be traced
    program: GraphModule = make_fx(flat)(*tensors)
    for node in program.graph.nodes:
        if node.target == _DETACH:
            node.replace_all_uses_with(node.args[0])
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def first_line(error: Exception) -> str:
    """What an error says first; compilers say much more."""
    return (str(error).splitlines() or [type(error).__name__])[0]
