"""Starts from labels: the row of a class is mostly about the people of that class."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.feature_recovery.equations import Equations
from seepage.attacks.feature_recovery.head import TwoLayerHead
from seepage.core import Rng

_APART = (0.03, 0.1, 0.3, 1.0)


def class_means(head: TwoLayerHead, classes: Tensor) -> Tensor:
    """About the mean feature of each class, `(C, d)`, by linear regression on the weights.

        dL/dA_kj = sum_i R_ik sigma(w_j . z_i)  is about  w_j . (sum_i R_ik s z_i) + const

    and R is negative for the own class and smaller for all others. The regression is a first-order
    moment from which the parts of order zero and one no longer add noise.
    """
    ones = head.weight.new_ones(len(head.weight), 1)
    regressors = torch.cat([head.weight, ones], dim=1)
    normal = regressors.T @ regressors
    ridge = 1e-9 * normal.diagonal().mean() * torch.eye(len(normal)).to(normal)
    slopes: Tensor = torch.linalg.solve(normal + ridge, regressors.T @ head.last.T).T
    return -slopes[classes, :-1]


def scaled_to(directions: Tensor, head: TwoLayerHead) -> Tensor:
    """The same, as long as makes the neurons' inputs of size one, where activations bend."""
    size = (directions @ head.weight.T).square().mean(1, keepdim=True).sqrt()
    scaled: Tensor = directions / size.clamp_min(1e-300)
    return scaled


def spread(
    head: TwoLayerHead, equations: Equations, means: Tensor, labels: Tensor, *, rng: Rng
) -> Tensor:
    """A feature for each label, `(B, d)`, those of one class spread out around its mean.

    What the means `(C, d)` leave unexplained, when everybody of a class is taken for one person,
    has the differences between them as its second-order moment.
    """
    classes, group = torch.unique(labels, return_inverse=True)
    if len(classes) == len(labels):
        return means[group]
    hidden = equations.hidden(means)
    shares = equations.shares(hidden)
    left = -equations.residual(hidden, shares)
    drawn = torch.zeros_like(means[group])
    for c in range(len(classes)):
        members = torch.nonzero(group == c)[:, 0]
        if len(members) > 1:
            drawn[members] = _apart(head, means[c], left[classes[c]], len(members), rng.fork(c))
    length = means.norm(dim=1)[group][:, None]
    options = [means[group] + apart * length * drawn for apart in _APART]
    best: Tensor = min(options, key=equations.misfit)
    return best


def _apart(head: TwoLayerHead, mean: Tensor, left: Tensor, people: int, rng: Rng) -> Tensor:
    """Unit directions `(people, d)` in the space that the unexplained rest of a class points to.

    It is that of the largest eigenvalues of sum_j left_j H2(w_j), across the mean itself.
    """
    weight = head.weight / head.weight.square().mean().sqrt()
    moment = (weight * left[:, None]).T @ weight / len(weight)
    identity = torch.eye(len(mean)).to(mean)
    unit = mean / mean.norm()
    across = identity - torch.outer(unit, unit)
    values, vectors = torch.linalg.eigh(across @ (moment - left.mean() * identity) @ across)
    largest = values.abs().argsort(descending=True)[: people - 1]
    draw = rng.normal((people, people - 1), like=values)
    draw = draw - draw.mean(0)
    directions = draw @ vectors[:, largest].T
    units: Tensor = directions / directions.norm(dim=1, keepdim=True)
    return units
