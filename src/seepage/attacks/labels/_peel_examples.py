"""Peel examples off the gradient of the classifier head, one by one, with their labels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.nn.functional import one_hot

from seepage.attacks.labels._label_evidence import Evidence

_STEPS, _DAMPINGS = 15, 7
_ROWS, _TRIALS = 32, 4
_CLEAR = 2.0
_SOLVED = 0.6


class _LabelEquations(Evidence):
    """B dL/dW = sum over examples of (softmax(W h) - e_y) h^T, for h in the row space of dL/dW.

    All tensors are in coordinates of that space, `(K, r)`, and `gradient` is B dL/dW.

    Each class is one row of equations. On a trained network rows differ in size by many decades:
    an example that the network knows well is invisible in large rows and clear in small ones. So
    rows are judged relative to their own size, by

        cost = sum_k 1/2 log(|residual_k|^2 + accuracy_k^2)
    """

    def residual(self, features: Tensor, labels: Tensor) -> Tensor:
        """What examples with features `(A, r)` and labels `(A,)` leave unexplained, `(K, r)`."""
        each = self.predictions(features) - self._one_hot(labels)
        return self.gradient - each.T @ features

    def accuracy(self, features: Tensor, labels: Tensor) -> Tensor:
        """Accuracy of each row, `(K,)`.

        A softmax close to 1 is rounded in absolute terms, so the row of an example's own class is
        not accurate to its last digits.
        """
        lengths = vector_norm(features, dim=1)
        own: Tensor = self.precision / 2 * (lengths[:, None] * self._one_hot(labels)).sum(0)
        tiny = torch.finfo(own.dtype).tiny
        sizes: Tensor = vector_norm(self.gradient, dim=1)
        return 8 * self.precision * sizes + self.rounding + own + tiny

    def cost(self, residual: Tensor, accuracy: Tensor) -> Tensor:
        """The cost of each row of a residual, `(..., K)`."""
        return (residual.square().sum(-1) + accuracy.square()).log() / 2

    def jacobian(self, features: Tensor, labels: Tensor) -> Tensor:
        """Derivative of the explained gradient by the features, `(K, r, A, r)`."""
        predictions = self.predictions(features)
        spread = self.weight[None] - (predictions @ self.weight)[:, None]
        slopes = predictions[:, :, None] * spread
        derivative = torch.einsum("akr,ac->kcar", slopes, features)
        axes = torch.arange(features.shape[1])
        derivative[:, axes, :, axes] += (predictions - self._one_hot(labels)).T[None]
        return derivative

    def _one_hot(self, labels: Tensor) -> Tensor:
        return one_hot(labels, len(self.weight)).to(self.weight)


def count_visible(evidence: Evidence) -> int:
    """Count the examples that the head's gradient tells apart: its rank with rows of one length.

    At most the batch size, and at most K - 1, since the rows sum to zero.
    """
    return len(_row_space(evidence))


def write_equations(evidence: Evidence, size: int) -> _LabelEquations:
    """The equations for a batch of `size`, in an orthonormal basis of the row space.

    While fewer than K - 1 examples are visible, the row space is the span of their features.
    """
    basis = _row_space(evidence)
    return _LabelEquations(
        weight=evidence.weight @ basis.T,
        offset=evidence.offset,
        gradient=size * evidence.gradient @ basis.T,
        anchor=basis @ evidence.anchor,
        biased=evidence.biased,
        oriented=evidence.oriented,
        precision=evidence.precision,
        rounding=size * evidence.rounding * len(basis) ** 0.5,
    )


def _row_space(evidence: Evidence) -> Tensor:
    """Orthonormal basis of the rows that are more than noise, `(r, d)`.

    Rows that a defense has set to zero tell nothing; there is no basis if all of them are.
    """
    lengths = vector_norm(evidence.gradient, dim=1)
    seen, lengths = evidence.gradient[lengths > 0], lengths[lengths > 0]
    if not len(seen):
        return seen
    noise = evidence.rounding * evidence.gradient.shape[1] ** 0.5 / lengths
    floor = max(6 * evidence.precision, float(noise.median()))
    clear = noise <= floor
    rows = seen[clear] / lengths[clear, None]
    _, values, directions = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = directions[values > floor * values[0]]
    return basis


@dataclass(frozen=True, eq=False)
class _Explanation:
    """Supposed examples, and how well they explain the gradient.

    Args:
        features: In the coordinates of the equations, `(A, r)`.
        labels: `(A,)`.
        cost: Over all rows; lower is better.
        solved: Whether nothing is left over, as far as the digits go.
    """

    features: Tensor
    labels: Tensor
    cost: float
    solved: bool


def peel_examples(equations: _LabelEquations, *, limit: int) -> _Explanation:
    """Explain the gradient by no example, one, two and so on, until one more explains little.

    A row of the residual, scaled to what the anchor asks of features, is a mixture of features,
    weighted by how much each example moves that class. Where one example outweighs the rest, the
    mixture is that example's features. So each mixture is tried with each label, the most promising
    few are refined together with all examples found before, and the best one stays.

    The examples found before the first one that hardly lowers the cost are returned, unless all
    together leave nothing over.
    """
    path = [_explain(equations, equations.gradient[:0], torch.zeros(0, dtype=torch.long))]
    while len(path) <= limit and not path[-1].solved:
        proposals = _propose_example(equations, path[-1].features, path[-1].labels)
        more = [_explain(equations, _refine(equations, f, y), y) for f, y in proposals]
        if not more:
            break
        path.append(min(more, key=lambda explanation: explanation.cost))
    if not path[-1].solved:
        for before, after in pairwise(path):
            if before.cost - after.cost < _CLEAR:
                return before
    return path[-1]


def _explain(equations: _LabelEquations, features: Tensor, labels: Tensor) -> _Explanation:
    accuracy = equations.accuracy(features, labels)
    cost = equations.cost(equations.residual(features, labels), accuracy)
    # The mean over rows of the cost above that of a perfect explanation.
    excess = float((cost - accuracy.log()).mean())
    return _Explanation(features, labels, float(cost.sum()), excess < _SOLVED)


def _refine(equations: _LabelEquations, features: Tensor, labels: Tensor) -> Tensor:
    """Minimise the cost over the features by Levenberg-Marquardt steps.

    Rows are weighted by one over their residual, so that rows that other examples have yet to
    explain do not pull on rows already explained.
    """
    accuracy = equations.accuracy(features, labels)
    residual = equations.residual(features, labels)
    value, damping = equations.cost(residual, accuracy).sum(), 1e-2
    for _ in range(_STEPS):
        weights = (residual.square().sum(1) + accuracy.square()).rsqrt()
        rows = torch.einsum("k,kcar->kcar", weights, equations.jacobian(features, labels))
        rows, right = rows.flatten(2).flatten(0, 1), (weights[:, None] * residual).flatten()
        for _ in range(_DAMPINGS):
            moved = features + _solve_damped(rows, right, damping).reshape(features.shape)
            left = equations.residual(moved, labels)
            lower = equations.cost(left, accuracy).sum()
            if lower < value:
                break
            damping *= 6
        else:
            return features
        gained = value - lower
        features, residual, value, damping = moved, left, lower, max(damping / 10, 1e-13)
        if gained < 1e-3:
            break
    return features


def _solve_damped(rows: Tensor, right: Tensor, damping: float) -> Tensor:
    """The x that minimises |rows x - right|^2 + damping sum_j |rows_j|^2 x_j^2."""
    scale = vector_norm(rows, dim=0).clamp_min(1e-12 * float(rows.norm()))
    ridge = damping**0.5 * torch.eye(len(scale), dtype=rows.dtype)
    target = torch.cat([right, right.new_zeros(len(scale))])
    solution: Tensor = torch.linalg.lstsq(torch.cat([rows / scale, ridge]), target).solution
    step: Tensor = solution / scale
    return step


def _propose_example(
    equations: _LabelEquations, features: Tensor, labels: Tensor
) -> list[tuple[Tensor, Tensor]]:
    """The most promising ways to add one example: features and labels of all examples."""
    left, accuracy = equations.residual(features, labels), equations.accuracy(features, labels)
    mixtures = _extract_mixtures(equations, left, accuracy)
    cost = _cost_of_adding(equations, left, accuracy, mixtures)
    order = cost.flatten().argsort(stable=True)[:_TRIALS]
    return [
        (torch.cat([features, mixtures[f][None]]), torch.cat([labels, labels.new_tensor([label])]))
        for f, label in (divmod(index, cost.shape[1]) for index in order.tolist())
    ]


def _extract_mixtures(equations: _LabelEquations, left: Tensor, accuracy: Tensor) -> Tensor:
    """Features `(F, r)` that would leave such rows."""
    lengths = vector_norm(left, dim=1)
    rows = left[(lengths > 3 * accuracy).nonzero().flatten()]
    if len(rows) > _ROWS:
        order = vector_norm(rows, dim=1).argsort(descending=True)
        rows = rows[order[torch.linspace(0, len(order) - 1, _ROWS).long()]]
    found = rows / (rows @ equations.anchor)[:, None]
    return found[found.isfinite().all(1)]


def _cost_of_adding(
    equations: _LabelEquations, left: Tensor, accuracy: Tensor, features: Tensor
) -> Tensor:
    """Cost with one more example, for each of these features and each label, `(F, K)`.

    A label changes only its own row.
    """
    predictions = equations.predictions(features)
    without = left - torch.einsum("fk,fr->fkr", predictions, features)
    own = without + features[:, None]
    rounded = equations.precision / 2 * vector_norm(features, dim=1)
    other_rows = equations.cost(without, accuracy)
    own_row = equations.cost(own, accuracy + rounded[:, None])
    return (other_rows.sum(1, keepdim=True) - other_rows + own_row).nan_to_num(nan=torch.inf)
