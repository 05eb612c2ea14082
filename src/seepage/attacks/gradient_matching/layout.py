"""How a point of the search is cut into inputs and labels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.relaxation import Relaxation
from seepage.core import Domain


@dataclass(frozen=True)
class Layout:
    """A point is one flat vector, so that every optimiser works on every problem.

    Points of several rows have a leading axis: `(R, D)`. A row is one restart of one case.

    Args:
        batch_size: Number of inputs sought.
        domain: Their space.
        classes: If labels are sought too, their number of classes; None if labels are known.
        relaxation: What makes inputs of the numbers searched; None if those are the inputs.
    """

    batch_size: int
    domain: Domain
    classes: int | None = None
    relaxation: Relaxation | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the inputs of one row."""
        return (self.batch_size, *self.domain.shape)

    @property
    def size(self) -> int:
        """Number of entries of a point."""
        return math.prod(self.shape) + self.batch_size * (self.classes or 0)

    def normalised(self, points: Tensor) -> Tensor:
        """The inputs `(..., B, *shape)`, in normalised coordinates."""
        raw = points[..., : math.prod(self.shape)].reshape(*points.shape[:-1], *self.shape)
        return raw if self.relaxation is None else self.relaxation(raw, self.domain)

    def label_probabilities(self, points: Tensor) -> Tensor:
        """The labels sought, `(..., B, K)`, as probabilities of the logits that are searched."""
        logits = points[..., math.prod(self.shape) :]
        return logits.reshape(*points.shape[:-1], self.batch_size, -1).softmax(-1)

    def with_inputs(self, points: Tensor, normalised: Tensor) -> Tensor:
        """The points with other inputs, their labels kept."""
        flat = normalised.reshape(*points.shape[:-1], -1)
        return torch.cat([flat, points[..., flat.shape[-1] :]], dim=-1)

    def project(self, points: Tensor) -> Tensor:
        """The points with their inputs made valid."""
        natural = self.domain.project(self.domain.denormalise(self.normalised(points)))
        return self.with_inputs(points, self.domain.normalise(natural))
