"""The equations that the features and labels of every person must satisfy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.linalg import vector_norm

from seepage.attacks.labels.label_evidence import Evidence


@dataclass(frozen=True, eq=False)
class People:
    """Supposed people: features in the coordinates of some `_LabelEquations`, and labels.

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
class _LabelEquations:
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


def write_equations(evidence: Evidence, size: int) -> _LabelEquations:
    """The equations for a batch of `size`, in an orthonormal basis of the rows' space.

    While fewer than K - 1 people are visible, it is the span of their features.
    """
    basis = _row_space(evidence)
    return _LabelEquations(
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


STEPS, DAMPINGS = 15, 7
ROWS, TRIALS = 32, 4
CLEAR = 2.0
SOLVED = 0.6


@dataclass(frozen=True, eq=False)
class _Explanation:
    """People supposed to be in the batch, and what they leave unexplained.

    Args:
        people: With features and labels.
        cost: To compare explanations by, over all rows.
        excess: Mean over rows of the cost above that of a perfect explanation.
    """

    people: People
    cost: float
    excess: float

    @property
    def solved(self) -> bool:
        """Whether nothing is left over, as far as the digits go."""
        return self.excess < SOLVED


def peel(equations: _LabelEquations, *, limit: int) -> _Explanation:
    """Explain the gradient by nobody, one person, two and so on, until one more says little.

    What a row of the gradient has left, scaled to what the anchor asks of features, is a mixture
    of features, weighted by how much each person moves that class. Where one person outweighs the
    rest, it is that person's features. So each such mixture is tried with each label, the most
    promising few are refined together with all people found before, and the best one stays.

    Only people found before the first that hardly lowers the cost are returned, unless the last
    leaves nothing over.

    Args:
        equations: What is to be explained.
        limit: Most people to look for.
    """
    nobody = People(equations.target[:0], torch.zeros(0, dtype=torch.long))
    path = [_explain(equations, nobody)]
    while len(path) <= limit and not path[-1].solved:
        more = [_explain(equations, refine(equations, p)) for p in _one_more(equations, path[-1])]
        if not more:
            break
        path.append(min(more, key=lambda explanation: explanation.cost))
    return path[-1] if path[-1].solved else _clear_part(path)


def _clear_part(path: list[_Explanation]) -> _Explanation:
    """The last explanation before one more person hardly lowers the cost."""
    for before, after in pairwise(path):
        if before.cost - after.cost < CLEAR:
            return before
    return path[-1]


def refine(equations: _LabelEquations, people: People) -> People:
    """Minimise the cost over the features by Levenberg-Marquardt steps; the labels stay.

    Rows are weighted by one over their residual, so that rows still to be explained by others do
    not pull on those already explained.
    """
    accuracy = equations.accuracy(people)
    residual = equations.residual(people)
    value, damping = equations.cost(residual, accuracy).sum(), 1e-2
    for _ in range(STEPS):
        weights = (residual.square().sum(1) + accuracy.square()).rsqrt()
        rows = torch.einsum("k,kcar->kcar", weights, equations.jacobian(people))
        rows, right = rows.flatten(2).flatten(0, 1), (weights[:, None] * residual).flatten()
        for _ in range(DAMPINGS):
            step = _damped(rows, right, damping).reshape(people.features.shape)
            moved = People(people.features + step, people.labels)
            left = equations.residual(moved)
            lower = equations.cost(left, accuracy).sum()
            if lower < value:
                break
            damping *= 6
        else:
            return people
        gained = value - lower
        people, residual, value, damping = moved, left, lower, max(damping / 10, 1e-13)
        if gained < 1e-3:
            break
    return people


def _damped(rows: Tensor, right: Tensor, damping: float) -> Tensor:
    """The x that minimises |rows x - right|^2 + damping sum_j |rows_j|^2 x_j^2."""
    scale = vector_norm(rows, dim=0).clamp_min(1e-12 * float(rows.norm()))
    ridge = damping**0.5 * torch.eye(len(scale), dtype=rows.dtype)
    target = torch.cat([right, right.new_zeros(len(scale))])
    solution: Tensor = torch.linalg.lstsq(torch.cat([rows / scale, ridge]), target).solution
    step: Tensor = solution / scale
    return step


def _explain(equations: _LabelEquations, people: People) -> _Explanation:
    accuracy = equations.accuracy(people)
    cost = equations.cost(equations.residual(people), accuracy)
    return _Explanation(people, float(cost.sum()), float((cost - accuracy.log()).mean()))


def _one_more(equations: _LabelEquations, found: _Explanation) -> list[People]:
    """The most promising ways to add a person."""
    left = equations.residual(found.people)
    features = _mixtures(equations, left, equations.accuracy(found.people))
    cost = _cost_with(equations, found.people, left, features)
    order = cost.flatten().argsort(stable=True)[:TRIALS]
    pairs = [divmod(index, cost.shape[1]) for index in order.tolist()]
    return [found.people.joined(features[f], label) for f, label in pairs]


def _mixtures(equations: _LabelEquations, left: Tensor, accuracy: Tensor) -> Tensor:
    """Features that would leave such rows, `(F, r)`, from rows of every size."""
    lengths = vector_norm(left, dim=1)
    rows = left[(lengths > 3 * accuracy).nonzero().flatten()]
    if len(rows) > ROWS:
        order = vector_norm(rows, dim=1).argsort(descending=True)
        rows = rows[order[torch.linspace(0, len(order) - 1, ROWS).long()]]
    found = rows / (rows @ equations.anchor)[:, None]
    return found[found.isfinite().all(1)]


def _cost_with(
    equations: _LabelEquations, people: People, left: Tensor, features: Tensor
) -> Tensor:
    """Cost if a person with any one of these features and any label joined, `(F, K)`.

    A label changes one row only, its own.
    """
    accuracy = equations.accuracy(people)
    predictions = equations.predictions(features)
    without = left - torch.einsum("fk,fr->fkr", predictions, features)
    own = without + features[:, None]
    rounded = equations.precision / 2 * vector_norm(features, dim=1)
    other_rows = equations.cost(without, accuracy)
    own_row = equations.cost(own, accuracy + rounded[:, None])
    return (other_rows.sum(1, keepdim=True) - other_rows + own_row).nan_to_num(nan=torch.inf)
