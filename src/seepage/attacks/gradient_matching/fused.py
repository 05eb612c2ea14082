"""A step as fused kernels.

A step differentiates twice, so torch's compiler does not see through it. Traced by running it once
it is a flat list of operations without any autograd, which the compiler can fuse: activations are
then read and written far less often, and that is what a step of many rows spends its time on.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from seepage.attacks.gradient_matching.run import Advance, State, state_of, tensors_of

log = logging.getLogger("seepage.engine")

# Compiling takes about a second per hundred operations; a hundred local steps have 100 000.
_MOST_OPERATIONS = 20_000


def fused(advance: Advance, state: State) -> Advance | None:
    """The same step compiled, or None, with a logged reason, where that fails.

    Args:
        advance: The pure step.
        state: One it can be tried on; the result is for states of the same shapes.
    """

    def flat(tensors: list[Tensor]) -> list[Tensor]:
        return tensors_of(advance(state_of(tensors)))

    try:
        program = make_fx(flat)(tensors_of(state))
        count = len(program.graph.nodes)
        if count > _MOST_OPERATIONS:
            log.info("not fusing a step of %d operations", count)
            return None
        compiled = torch.compile(program, fullgraph=True, dynamic=False)

        def step(at: State) -> State:
            with torch.no_grad():
                return state_of(list(compiled(tensors_of(at))))

        step(state)
    except Exception as error:  # noqa: BLE001 - whatever the compiler cannot do, the plain step can
        reason = (str(error).splitlines() or [""])[0]
        log.warning("not fusing the step: %s: %s", type(error).__name__, reason)
        return None
    return step
