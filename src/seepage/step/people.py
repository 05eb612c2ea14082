"""Whose step it is, and everybody else."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.audit import Victims
from seepage.core import Batch, Rng, Task
from seepage.core.errors import InvalidValue

_POOL = 64


def people_of(task: Task, private: Batch, others: Tensor | None) -> Victims:
    """The people in the batch, beside those whom a guess without any update is made of.

    Args:
        task: The network, with the domain of the inputs.
        private: The batch of the step.
        others: Inputs of people who are not in it; noise if there are none.
    """
    shape = task.domain.shape
    shaped = Batch(private.inputs.reshape(-1, *shape).cpu(), private.labels.cpu())
    if others is None:
        pool = task.domain.sample(max(_POOL, len(private)), rng=Rng(0))
    else:
        pool = others.detach().cpu().float().reshape(-1, *shape)
    if len(pool) < len(private):
        raise InvalidValue(
            f"expected others to be at least as many as the batch, got {len(pool)} for "
            f"{len(private)}; give more of them, or none"
        )
    return Victims(
        "step",
        tuple(range(len(private))),
        shaped,
        everybody=torch.cat([shaped.inputs.to(pool), pool]),
        bounds=task.domain.bounds,
    )
