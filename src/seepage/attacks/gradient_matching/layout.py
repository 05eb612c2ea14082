"""How a point of the search is cut into inputs and labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.generator import Generated
from seepage.core import Domain


@dataclass(frozen=True)
class Layout:
    """A point is one flat vector, so that every optimiser works on every problem.

    Points of several rows have a leading axis: `(R, D)`. A row is one restart of one case.

    Args:
        batch_size: Number of inputs sought.
        domain: Their space.
        classes: If labels are sought too, their number of classes; None if labels are known.
        generated: What makes the inputs of the first entries of a point; None if these are the
            inputs themselves.
    """

    batch_size: int
    domain: Domain
    classes: int | None = None
    generated: Generated | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the inputs of one row."""
        return (self.batch_size, *self.domain.shape)

    @property
    def size(self) -> int:
        """Number of entries of a point."""
        return self.inputs_size + self.batch_size * (self.classes or 0)

    @property
    def inputs_size(self) -> int:
        """Number of those that make the inputs."""
        return math.prod(self.shape) if self.generated is None else self.generated.size

    def normalised(self, points: Tensor) -> Tensor:
        """The inputs `(..., B, *shape)`, in normalised coordinates."""
        first = points[..., : self.inputs_size]
        if self.generated is not None:
            return self.generated(first)
        return first.reshape(*points.shape[:-1], *self.shape)

    def label_probabilities(self, points: Tensor) -> Tensor:
        """The labels sought, `(..., B, K)`, as probabilities of the logits that are searched."""
        logits = points[..., self.inputs_size :]
        return logits.reshape(*points.shape[:-1], self.batch_size, -1).softmax(-1)

    def with_inputs(self, points: Tensor, normalised: Tensor) -> Tensor:
        """The points with other inputs, their labels kept."""
        flat = normalised.reshape(*points.shape[:-1], -1)
        return torch.cat([flat, points[..., flat.shape[-1] :]], dim=-1)

    def project(self, points: Tensor) -> Tensor:
        """The points with their inputs made valid; generated ones always are."""
        if self.generated is not None:
            return points
        natural = self.domain.project(self.domain.denormalise(self.normalised(points)))
        return self.with_inputs(points, self.domain.normalise(natural))
