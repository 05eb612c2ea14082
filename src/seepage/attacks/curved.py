"""Whether a network bends, as searches with curvature need."""

from __future__ import annotations

import torch

from seepage.core import Rng, Task


def curved(task: Task) -> bool:
    """Whether the logits have a second derivative that is not zero everywhere."""
    task = task.in_mode("eval")
    reference = next(iter(task.parameters.values()))
    probes = task.domain.sample(2, rng=Rng(0)).to(reference).requires_grad_()
    outputs = task.outputs(task.parameters, probes)
    direction = Rng(1).normal(outputs.shape, like=outputs)
    (slope,) = torch.autograd.grad((outputs * direction).sum(), probes, create_graph=True)
    if not slope.requires_grad:
        return False
    (bend,) = torch.autograd.grad(slope.square().sum(), probes, allow_unused=True)
    return bend is not None and bool(bend.any())
