"""How the update follows each person's input, at the truth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.attacks.jacobian import Jacobian
from seepage.bounds.information import signs
from seepage.clients import Client
from seepage.core import Batch, Rng, Task


def person_jacobians(client: Client, task: Task, batch: Batch) -> list[Jacobian]:
    """For each person the derivative `(P, d)` of the expected update in that person's input.

    In double precision; everybody else's input stays as it is.
    """
    exact = task.to(dtype=torch.float64)
    inputs = batch.inputs.double()

    def of(person: int) -> Jacobian:
        def update(flat: Tensor) -> Tensor:
            rows = [*inputs[:person], flat.reshape(inputs.shape[1:]), *inputs[person + 1 :]]
            return client.expected(exact, torch.stack(rows), batch.labels).flat()

        return Jacobian(update, inputs[person].flatten(), vectorised=not exact.mixes_examples)

    return [of(person) for person in range(len(batch))]


def squared_norm(jacobian: Jacobian, *, probes: int, rng: Rng) -> tuple[float, float]:
    """||J||_F^2 = E ||J z||^2 over random signs z, and the standard error of the estimate.

    References:
        Hutchinson, 1990 (hutchinson1990stochastic)
    """
    drawn = signs((probes, jacobian.unknowns), jacobian.at, rng)
    found = jacobian.squares(drawn)
    return float(found.mean()), float(found.std()) / math.sqrt(probes)


def largest_eigenvalue(jacobian: Jacobian, *, iterations: int, rng: Rng) -> float:
    """lambda_max(J^T J) by power iteration, from below."""
    direction = rng.normal((jacobian.unknowns,), like=jacobian.at)
    value = 0.0
    for _ in range(iterations):
        (image,) = jacobian.squared((direction / direction.norm())[None])
        value, direction = float(image.norm()), image
        if value == 0:
            break
    return value
