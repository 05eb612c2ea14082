"""The input of a fully connected layer, read off its gradient."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.certify import residual
from seepage.attacks.linear_systems.input_layer import input_layer
from seepage.attacks.usable import require_usable
from seepage.core import Certificate, Observation, Reconstruction, Rng, Trace
from seepage.core.errors import NotApplicable


@dataclass(frozen=True)
class AnalyticFC:
    """Closed-form inversion of a network whose first layer is fully connected and has a bias.

    For z = A v + b every row gives dL/dA_i = (dL/db_i) v, so v = (dL/dA_i) / (dL/db_i). All rows
    are used at once, weighted by how much they say, which is least squares:

        v = (dL/dA)^T (dL/db) / ||dL/db||^2

    The sign and scale of the update cancel, so it also inverts a FedAvg difference of one example
    and a clipped update. For a batch each row holds a mixture of the inputs; the rows of the B
    largest bias gradients are then returned as they are.

    Deviations: the proposition takes any one row with a non-zero bias gradient; weighting all of
    them is the same without noise and better with it.

    References:
        Geiping et al., 2020, Proposition 1 (geiping2020inverting); Phong et al., 2018
        (phong2018privacy)
    """

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Compute the input; nothing is random."""
        began = time.perf_counter()
        task, update = observation.task, observation.update
        require_usable(update, task)
        weight, bias = _first_layer_gradient(observation)
        size = observation.batch_size or 1
        if size > len(bias):
            raise NotApplicable(
                f"the first layer has {len(bias)} rows, too few for {size} inputs; "
                "closed-form inversion needs at least one row per input"
            )
        vectors = _weighted(weight, bias) if size == 1 else _strongest_rows(weight, bias, size)
        normalised = vectors.reshape(size, *task.domain.shape)
        inputs = task.domain.project(task.domain.denormalise(normalised))
        labels = observation.labels if size == 1 else None
        seconds = time.perf_counter() - began
        return Reconstruction(
            inputs,
            labels,
            Trace(seconds=seconds, device=str(weight.device)),
            _certificate(observation, inputs, labels),
        )


def _first_layer_gradient(observation: Observation) -> tuple[Tensor, Tensor]:
    task, tensors = observation.task, observation.update.tensors
    name = input_layer(task)
    if name is None:
        raise NotApplicable(
            f"{task.name} has no fully connected layer with a bias that reads its input, so "
            "Proposition 1 does not apply; use gradient matching"
        )
    weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
    if weight is None or bias is None:
        raise NotApplicable(f"the first layer {name!r} is frozen, so the update does not hold it")
    if not bool(bias.any()):
        raise NotApplicable("the first layer's bias gradient is zero, so no row can be solved")
    return weight, bias


def _weighted(weight: Tensor, bias: Tensor) -> Tensor:
    # Scaling first keeps the squares of tiny gradients from underflowing in float32.
    scale = bias / bias.abs().max()
    return (weight.T / bias.abs().max() @ scale) / scale.square().sum()


def _strongest_rows(weight: Tensor, bias: Tensor, size: int) -> Tensor:
    rows = bias.abs().topk(size).indices
    ratios = torch.einsum("rn,r->rn", weight[rows], 1 / bias[rows])
    # A row pruned away entirely leaves 0 / 0, which says nothing about its input.
    return torch.nan_to_num(ratios, nan=0.0, posinf=0.0, neginf=0.0)


def _certificate(
    observation: Observation, inputs: Tensor, labels: Tensor | None
) -> Certificate | None:
    """Proof for one example: the layer's equations leave no other input that explains them."""
    if labels is None:
        return None
    difference = residual(observation, inputs, labels)
    return Certificate(residual=difference, unique=True if difference < 1e-3 else None)
