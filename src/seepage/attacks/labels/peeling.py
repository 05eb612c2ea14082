"""Take people out of the gradient one by one, the plainest first."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.linalg import vector_norm

from seepage.attacks.labels.equations import Equations, People

STEPS, DAMPINGS = 15, 7
ROWS, TRIALS = 32, 4
CLEAR = 2.0
SOLVED = 0.6


@dataclass(frozen=True, eq=False)
class Explanation:
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


def peel(equations: Equations, *, limit: int) -> Explanation:
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


def _clear_part(path: list[Explanation]) -> Explanation:
    """The last explanation before one more person hardly lowers the cost."""
    for before, after in pairwise(path):
        if before.cost - after.cost < CLEAR:
            return before
    return path[-1]


def refine(equations: Equations, people: People) -> People:
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


def _explain(equations: Equations, people: People) -> Explanation:
    accuracy = equations.accuracy(people)
    cost = equations.cost(equations.residual(people), accuracy)
    return Explanation(people, float(cost.sum()), float((cost - accuracy.log()).mean()))


def _one_more(equations: Equations, found: Explanation) -> list[People]:
    """The most promising ways to add a person."""
    left = equations.residual(found.people)
    features = _mixtures(equations, left, equations.accuracy(found.people))
    cost = _cost_with(equations, found.people, left, features)
    order = cost.flatten().argsort(stable=True)[:TRIALS]
    pairs = [divmod(index, cost.shape[1]) for index in order.tolist()]
    return [found.people.joined(features[f], label) for f, label in pairs]


def _mixtures(equations: Equations, left: Tensor, accuracy: Tensor) -> Tensor:
    """Features that would leave such rows, `(F, r)`, from rows of every size."""
    lengths = vector_norm(left, dim=1)
    rows = left[(lengths > 3 * accuracy).nonzero().flatten()]
    if len(rows) > ROWS:
        order = vector_norm(rows, dim=1).argsort(descending=True)
        rows = rows[order[torch.linspace(0, len(order) - 1, ROWS).long()]]
    found = rows / (rows @ equations.anchor)[:, None]
    return found[found.isfinite().all(1)]


def _cost_with(equations: Equations, people: People, left: Tensor, features: Tensor) -> Tensor:
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
