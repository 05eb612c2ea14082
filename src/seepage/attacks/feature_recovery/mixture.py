"""What the gradient of a fully connected layer mixes, and what is known of the sources."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.exact_batch.factors import numerical_rank
from seepage.attacks.linear_systems.input_layer import calls, input_readers, noise
from seepage.core import Observation, Task
from seepage.core.errors import MissingKnowledge, NotApplicable, UnknownName


@dataclass(frozen=True, eq=False)
class Mixture:
    """dL/dW = D X: every row is a mixture of the B inputs of the layer.

    Args:
        layer: Name of the layer, as `named_modules` spells it.
        span: Orthonormal columns `(m, B)`, with dL/dW = span @ mixtures, in float64.
        mixtures: M `(B, n)`.
        total: The bias gradient in the coordinates of the span `(B,)`, which gives X its scale;
            None if the layer has no bias, or none that is trained.
        shape: Shape of one source: of an input of the network, or `(d,)`.
        low: Least value of each entry of a source `(n,)`, -inf where it is not known.
        high: Largest value of each entry, +inf where it is not known.
        residual: What B sources leave of dL/dW, relative to it.
    """

    layer: str
    span: Tensor
    mixtures: Tensor
    total: Tensor | None
    shape: tuple[int, ...]
    low: Tensor
    high: Tensor
    residual: float

    @property
    def natural(self) -> bool:
        """Whether the sources are inputs of the network, with neighbours that resemble."""
        return len(self.shape) > 1


def read_mixture(observation: Observation, layer: str | None) -> Mixture:
    """The mixture at a layer; None takes the first that reads one vector of each example."""
    task, gradient = observation.task, observation.update.descent().tensors
    name, probes = _layer(task, layer)
    prefix = f"{name}." if name else ""
    weight, bias = gradient.get(f"{prefix}weight"), gradient.get(f"{prefix}bias")
    if weight is None:
        raise NotApplicable(
            f"the layer {name!r} of {task.name} is frozen, so the update does not hold its "
            "gradient; name another layer"
        )
    span, mixtures = _split(weight.double(), observation.batch_size, _rounding(weight), name)
    rest = weight.double() - span @ mixtures
    reads_input = name in input_readers(task)
    low, high = _range(task, weight) if reads_input else _seen_range(probes)
    return Mixture(
        name,
        span,
        mixtures,
        None if bias is None else span.T @ bias.double(),
        task.domain.shape if reads_input else (weight.shape[1],),
        low,
        high,
        float(rest.norm() / weight.double().norm()),
    )


def _split(
    weight: Tensor, people: int | None, rounding: float, layer: str
) -> tuple[Tensor, Tensor]:
    """The best factors of rank B of dL/dW; B is its rank if nobody says."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    if people is None:
        people, noisy = numerical_rank(values, 100 * rounding)
        if people == 0 or noisy:
            raise MissingKnowledge(
                "batch size",
                needed_by=f"a gradient of {layer!r} with noise in it",
                hint="use Threat(knows_batch_size=True)",
            )
    if people > len(values):
        raise NotApplicable(
            f"the layer {layer!r} has a gradient of rank {len(values)} at most, too little to "
            f"separate {people} people; it needs at least as many neurons as people"
        )
    if values[people - 1] <= rounding * values[0]:
        raise NotApplicable(
            f"the gradient of {layer!r} has a rank below the {people} people in the batch: some "
            "inputs are equal, or have no gradient; withhold the batch size to recover the others"
        )
    return left[:, :people], values[:people, None] * right[:people]


def _rounding(weight: Tensor) -> float:
    return float(torch.finfo(weight.dtype).eps)


def _layer(task: Task, wanted: str | None) -> tuple[str, Tensor]:
    """The layer, and what it reads on the adversary's own noise."""
    read = calls(task, nn.Linear, noise(task))
    names = [name for name, _ in read]
    found = {n: inputs for n, inputs in read if inputs.ndim == 2 and names.count(n) == 1}
    if not found:
        raise NotApplicable(
            f"{task.name} has no fully connected layer that reads one vector of each example, so "
            "there is no mixture to separate; use gradient matching"
        )
    if wanted is None:
        return next(iter(found.items()))
    if wanted not in found:
        raise UnknownName("fully connected layer", wanted, found, where=f"of {task.name}")
    return wanted, found[wanted]


def _range(task: Task, like: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of the domain, as the network sees them."""
    blank = like.new_ones((1, *task.domain.shape), dtype=torch.float64)
    low, high = (task.domain.normalise(bound * blank).flatten() for bound in task.domain.bounds)
    return low, high


def _seen_range(probes: Tensor) -> tuple[Tensor, Tensor]:
    """At least zero where noise says so, as behind a ReLU; nothing else is sure."""
    unknown = probes.new_full((probes.shape[1],), torch.inf, dtype=torch.float64)
    return (torch.zeros_like(unknown) if bool((probes >= 0).all()) else -unknown), unknown
