"""Scores that are a norm: of the gradient, or of how it follows the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds.sensitivity import person_jacobians, squared_norm
from seepage.clients import Client
from seepage.core import Batch, Rng, Task
from seepage.core.rng import require_key


@dataclass(frozen=True)
class GradientNorm:
    """The norm of what each person would share alone: ||g_b||.

    Example:
        >>> import seepage as sp
        >>> photos, task = sp.data.bundled("photos", size=2), sp.zoo.mlp(hidden=(16,))
        >>> GradientNorm()(sp.Client(sp.Gradient()), task, photos, rng=sp.rng(0)).shape
        torch.Size([2])

    References:
        Zhang et al., 2023 (zhang2023understanding), on what makes a gradient easy to invert
    """

    name: ClassVar[str] = "gradient_norm"
    higher_leaks_more: ClassVar[bool] = True

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """One gradient per person."""
        require_key(rng)
        alone = [(batch.inputs[i : i + 1], batch.labels[i : i + 1]) for i in range(len(batch))]
        return torch.stack([client.expected(task, x, y).norm().detach() for x, y in alone]).double()


@dataclass(frozen=True, kw_only=True)
class JacobianNorm:
    """How strongly the update follows each person's input: ||J_b||_F, J_b = d update / d x_b.

    Args:
        probes: Random directions it is estimated from, one product with the Jacobian each.

    References:
        Liu et al., 2024, Eq. 29 (liu2024systematic), where it bounds the error from below
    """

    name: ClassVar[str] = "jacobian_norm"
    higher_leaks_more: ClassVar[bool] = True

    probes: int = 16

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """A few products per person."""
        require_key(rng)
        found = [
            squared_norm(jacobian, probes=self.probes, rng=rng.fork(person))[0] ** 0.5
            for person, jacobian in enumerate(person_jacobians(client, task, batch))
        ]
        return torch.tensor(found, dtype=torch.float64)
