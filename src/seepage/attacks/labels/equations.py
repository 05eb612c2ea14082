"""The equations that the features and labels of every person must satisfy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from seepage.attacks.labels.evidence import Evidence


@dataclass(frozen=True, eq=False)
class People:
    """Supposed people: features in the coordinates of some `Equations`, and labels.

    Args:
        features: `(A, r)`.
        labels: `(A,)`.
    """

    features: Tensor
    labels: Tensor

    def __len__(self) -> int:
        """Number of people."""
        return len(self.labels)

    def joined(self, features: Tensor, label: int) -> People:
        """The same people and one more."""
        labels = torch.cat([self.labels, self.labels.new_tensor([label])])
        return People(torch.cat([self.features, features[None]]), labels)


@dataclass(frozen=True, eq=False)
class Equations:
    """B dL/dW = sum over people of (softmax(W h) - e_y) h^T, for h in the rows' space of dL/dW.

    Each class is one row of equations, and rows differ in size by many decades on a trained
    network: a person whom the network knows well is invisible in large rows and plain in small
    ones. So rows are judged relative to their own size, by

        cost = sum_k 1/2 log(|residual_k|^2 + accuracy_k^2)

    Args:
        weight: W in coordinates, `(K, r)`.
        offset: Added to the logits, `(K,)`.
        target: B dL/dW in coordinates, `(K, r)`.
        anchor: In coordinates, `(r,)`.
        precision: Relative accuracy of the target.
        rounding: Absolute accuracy of its rows.
    """

    weight: Tensor
    offset: Tensor
    target: Tensor
    anchor: Tensor
    precision: float
    rounding: float

    def predictions(self, features: Tensor) -> Tensor:
        """Softmax(W h), `(A, K)`."""
        return torch.softmax(features @ self.weight.T + self.offset, dim=-1)

    def residual(self, people: People) -> Tensor:
        """What these people leave unexplained, `(K, r)`."""
        each = self.predictions(people.features) - self._hot(people.labels)
        return self.target - each.T @ people.features

    def accuracy(self, people: People) -> Tensor:
        """Accuracy of each row, `(K,)`.

        A softmax close to 1 is rounded in absolute terms, so the row of a person's own class is
        not accurate to its last digits.
        """
        lengths = vector_norm(people.features, dim=1)
        own: Tensor = self.precision / 2 * (lengths[:, None] * self._hot(people.labels)).sum(0)
        tiny = torch.finfo(own.dtype).tiny
        sizes: Tensor = vector_norm(self.target, dim=1)
        return 8 * self.precision * sizes + self.rounding + own + tiny

    def signal(self, residual: Tensor) -> Tensor:
        """The bias entries of a residual, or their estimate where there is no bias, `(K,)`."""
        return residual @ self.anchor

    def cost(self, residual: Tensor, accuracy: Tensor) -> Tensor:
        """The cost of each row of a residual, `(..., K)`."""
        return (residual.square().sum(-1) + accuracy.square()).log() / 2

    def jacobian(self, people: People) -> Tensor:
        """Derivative of the explained target by the features, `(K, r, A, r)`."""
        predictions = self.predictions(people.features)
        spread = self.weight[None] - (predictions @ self.weight)[:, None]
        slopes = predictions[:, :, None] * spread
        derivative = torch.einsum("akr,ac->kcar", slopes, people.features)
        axes = torch.arange(people.features.shape[1])
        derivative[:, axes, :, axes] += (predictions - self._hot(people.labels)).T[None]
        return derivative

    def _hot(self, labels: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(labels, len(self.weight)).to(self.weight)


def visible_people(evidence: Evidence) -> int:
    """Rank of dL/dW with rows of one length: the people whom the head's gradient tells apart.

    No more than there are, and no more than K - 1, since the rows sum to zero.
    """
    return len(_row_space(evidence))


def write_equations(evidence: Evidence, size: int) -> Equations:
    """The equations for a batch of `size`, in an orthonormal basis of the rows' space.

    While fewer than K - 1 people are visible, it is the span of their features.
    """
    basis = _row_space(evidence)
    return Equations(
        weight=evidence.weight @ basis.T,
        offset=evidence.offset,
        target=size * evidence.gradient @ basis.T,
        anchor=basis @ evidence.anchor,
        precision=evidence.precision,
        rounding=size * evidence.rounding * len(basis) ** 0.5,
    )


def _row_space(evidence: Evidence) -> Tensor:
    """Orthonormal basis of the rows that are more than noise, `(r, d)`."""
    lengths = vector_norm(evidence.gradient, dim=1)
    noise = evidence.rounding * evidence.gradient.shape[1] ** 0.5 / lengths
    floor = max(6 * evidence.precision, float(noise.median()))
    clear = noise <= floor
    rows = evidence.gradient[clear] / lengths[clear, None]
    _, values, directions = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = directions[values > floor * values[0]]
    return basis
