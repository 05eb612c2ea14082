"""The input of a network that begins with fully connected layers, read off its gradient."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.certify import certify_solved
from seepage.attacks.linear_systems.closed_form import features, layer_gradients, layer_parameters
from seepage.attacks.linear_systems.input_layer import input_layer, input_readers
from seepage.attacks.usable import require_usable
from seepage.core import Certificate, Observation, Reconstruction, Rng, Task, Trace
from seepage.core.errors import NotApplicable
from seepage.core.rng import require_key


@dataclass(frozen=True)
class AnalyticFC:
    """Closed-form inversion of a network whose first layer is fully connected.

    For z = A v + b every row gives dL/dA_i = (dL/dz_i) v, and `features` solves all rows at once;
    the first layer needs a bias of its own, or one in a fully connected layer above it. For a
    batch each row holds a mixture of the inputs; the rows of the B largest bias gradients are then
    returned as they are.

    The guess is clamped to the domain. That never moves it away from the truth, which lies in
    there, and is nothing beyond rounding where the closed form is exact.

    References:
        Geiping et al., 2020, Propositions 1 and 2, Corollary 1 (geiping2020inverting); Phong et
        al., 2018 (phong2018privacy)
    """

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Compute the input; nothing is random."""
        require_key(rng)
        began = time.perf_counter()
        task = observation.task
        require_usable(observation.update, task)
        size = observation.batch_size or 1
        layer = _reader(task) if size == 1 else _biased_reader(task)
        vectors = (
            features(observation, layer=layer)
            if size == 1
            else _strongest_rows(observation, layer, size)
        )
        normalised = vectors.reshape(size, *task.domain.shape)
        inputs = task.domain.project(task.domain.denormalise(normalised))
        labels = observation.labels if size == 1 else None
        seconds = time.perf_counter() - began
        return Reconstruction(
            inputs,
            labels,
            Trace(seconds=seconds, device=str(vectors.device)),
            _certificate(observation, inputs, labels, layer),
        )


def _reader(task: Task) -> str:
    layer = input_layer(task) or next(iter(input_readers(task)), None)
    if layer is None:
        raise _nothing_to_read(task)
    return layer


def _biased_reader(task: Task) -> str:
    layer = input_layer(task)
    if layer is None:
        raise _nothing_to_read(task, "with a bias ")
    return layer


def _strongest_rows(observation: Observation, layer: str, size: int) -> Tensor:
    weight, bias = layer_gradients(observation.update, layer)
    if bias is None:
        raise NotApplicable(f"the bias of {layer!r} is frozen, so the update does not hold it")
    if size > len(bias):
        raise NotApplicable(
            f"the first layer has {len(bias)} rows, too few for {size} inputs; "
            "closed-form inversion needs at least one row per input"
        )
    rows = bias.abs().topk(size).indices
    ratios = torch.einsum("rn,r->rn", weight[rows], 1 / bias[rows])
    # A row pruned away entirely leaves 0 / 0, which says nothing about its input.
    return torch.nan_to_num(ratios, nan=0.0, posinf=0.0, neginf=0.0)


def _nothing_to_read(task: Task, kind: str = "") -> NotApplicable:
    return NotApplicable(
        f"{task.name} has no fully connected layer {kind}that reads its input, so the closed form "
        "does not apply; use gradient matching"
    )


def _certificate(
    observation: Observation, inputs: Tensor, labels: Tensor | None, layer: str
) -> Certificate | None:
    """Proof for one example: the layer's equations leave no other input that explains them."""
    if labels is None:
        return None
    names = layer_parameters(layer)
    read = [name for name in names if name in observation.update.tensors]
    return certify_solved(observation, inputs, labels, read=read, alone=True)
