"""Estimate features if the last layer's gradient is pruned, noisy or too small to solve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.exact_batch.span_factors import require_at_least_one
from seepage.attacks.feature_recovery.features import Features
from seepage.attacks.feature_recovery.softmax_features import (
    find_missing,
    layer_name,
    read_classifier,
)
from seepage.clients import Gradient
from seepage.core import Observation, Rng
from seepage.core.errors import InvalidValue
from seepage.core.rng import require_key
from seepage.defenses import AddGaussian, AddLaplace, Prune, TopK
from seepage.probing.heads import Head

# How far starts spread, so that examples of one label do not stay equal.
_SPREAD = 0.01
# Standard deviation t of the logarithm of the update's scale, if the client's rules give the scale
# and if not. Entries also tell it, but not if there are as many examples as classes.
_KNOWN, _UNKNOWN = 1e-2, 10.0
# Defenses that do not change the scale of an update.
_SCALE_KEPT = (AddGaussian, AddLaplace, Prune, TopK)


@dataclass(frozen=True, kw_only=True)
class EstimatedFeatures:
    """Estimates what the last layer of a classifier reads from what is left of its gradient.

        min_{U, a}  sum_known (a (R^T U)_kj - G_kj)^2 / (noise g)^2  +  sum_ij (U_ij - m_j)^2 / s^2
                    +  (log a - log a_0)^2 / t^2,   R = softmax(U A^T + b) - Y

    `SoftmaxFeatures` solves for the features, which needs every entry of G and fewer examples than
    classes. Pruning and dropout remove entries, noise blurs them, and large batches have more
    unknowns than equations. What is left still makes some features more likely than others: those
    that explain it and lie near the features of the adversary's own noise, which have mean m and
    size s. g is the size of the known entries. a_0 is the share of each example in the update, from
    which a may differ by t: hardly at all, unless something rescales the update.

    An example sends R back through the network, and R is estimated far better than single features.

    References:
        Liu and Nocedal, 1989 (liu1989limited), for the search. The method is ours.
    """

    noise: float = 1e-2
    steps: int = 300

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 < self.noise < float("inf"):
            raise InvalidValue(f"expected noise > 0, got {self.noise!r}")
        require_at_least_one(steps=self.steps)

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Estimate the features, in the order of the labels."""
        require_key(rng)
        head, labels = read_classifier(observation, needed_by="estimated_features")
        posterior = _read_posterior(head, observation, labels, self.noise)
        values, left = posterior.find_mode(steps=self.steps, rng=rng)
        values = values.to(next(iter(observation.task.parameters.values())))
        span = torch.linalg.qr(values.T).Q
        return Features(layer_name(head), values, span, True, left, in_order=True)


@dataclass(frozen=True, eq=False)
class _Posterior:
    """The posterior of features `(B, d)` given the known part of the gradient, in float64.

    Args:
        weight: A, `(K, d)`.
        offset: b, `(K,)`.
        labels: Y, `(B, K)`.
        wanted: dL/dA beside dL/db, `(K, d + 1)`; the last column is zero without a bias.
        there: Which of its entries are known.
        noise: Standard deviation of each column's entries, `(d + 1,)`.
        mean: m, `(d,)`.
        size: s.
        log_scale: log a_0.
        scale_spread: t.
    """

    weight: Tensor
    offset: Tensor
    labels: Tensor
    wanted: Tensor
    there: Tensor
    noise: Tensor
    mean: Tensor
    size: Tensor
    log_scale: float
    scale_spread: float

    def find_mode(self, *, steps: int, rng: Rng) -> tuple[Tensor, float]:
        """Find the most likely features, and the share of the known entries they do not explain."""
        drawn = rng.fork("spread").normal((len(self.labels), len(self.mean)), like=self.mean)
        values = (self.mean + _SPREAD * self.size * drawn).requires_grad_()
        scale = values.new_tensor(self.log_scale).requires_grad_()
        search = torch.optim.LBFGS(
            [values, scale],
            max_iter=steps,
            history_size=20,
            tolerance_grad=1e-9,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

        def evaluate() -> Tensor:
            search.zero_grad()
            left = self._residual(values, scale) / self.noise
            unlikely = (values - self.mean) / self.size
            rescaled = (scale - self.log_scale) / self.scale_spread
            cost = left.square().sum() + unlikely.square().sum() + rescaled.square()
            cost.backward()  # type: ignore[no-untyped-call]
            return cost

        search.step(evaluate)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            left = self._residual(values, scale).norm() / self.wanted[self.there].norm()
        return values.detach(), float(left)

    def _residual(self, values: Tensor, scale: Tensor) -> Tensor:
        """The residual of every known entry, `(K, d + 1)`; zero for missing ones."""
        shares = torch.softmax(values @ self.weight.T + self.offset, 1) - self.labels
        ones = values.new_ones(len(values), 1)
        explained = scale.exp() * shares.T @ torch.cat([values, ones], 1)
        return torch.where(self.there, explained - self.wanted, 0.0)


def _read_posterior(
    head: Head, observation: Observation, labels: Tensor, noise: float
) -> _Posterior:
    gradient, tensors = observation.update.descent().tensors, observation.task.parameters
    # A last layer is small, so launching work on a GPU costs more than it saves.
    seen = gradient[head.weight].detach().double().cpu()
    bias, offset = seen.new_zeros(len(seen)), head.offset
    if head.bias is not None:
        bias, offset = gradient[head.bias].detach().double().cpu(), tensors[head.bias]
    read = head.features.double().cpu()
    sizes = torch.stack([_typical_size(seen), _typical_size(bias)]) * noise
    log_scale, scale_spread = _expected_scale(observation, len(labels))
    return _Posterior(
        weight=tensors[head.weight].detach().double().cpu(),
        offset=offset.detach().double().cpu(),
        labels=labels.double().cpu(),
        wanted=torch.cat([seen, bias[:, None]], 1),
        there=torch.cat([~find_missing(seen), (bias != 0)[:, None]], 1),
        noise=torch.cat([sizes[:1].expand(seen.shape[1]), sizes[1:]]),
        mean=read.mean(0),
        size=read.square().mean().sqrt(),
        log_scale=log_scale,
        scale_spread=scale_spread,
    )


def _expected_scale(observation: Observation, batch_size: int) -> tuple[float, float]:
    """The logarithm of each example's share in the update, and its standard deviation."""
    client = observation.simulate.client
    if client is None or not isinstance(client.local, Gradient):
        return -math.log(batch_size), _UNKNOWN
    kept = all(isinstance(link, _SCALE_KEPT) for link in client.chain.update_defenses)
    summed = client.local.reduction == "sum"
    return 0.0 if summed else -math.log(batch_size), _KNOWN if kept else _UNKNOWN


def _typical_size(entries: Tensor) -> Tensor:
    """Root mean square of the entries that are not zero; 1 if all are."""
    there = entries[entries != 0]
    return there.square().mean().sqrt() if len(there) else entries.new_ones(())


def estimated_features(*, noise: float = 1e-2, steps: int = 300) -> EstimatedFeatures:
    """Estimate what the last layer of a classifier reads if `softmax_features` does not apply.

    It works behind pruning, dropout and noise, and for as many examples as classes or more. It is
    not an attack of its own: `recover` gives features for `systematic` and `teacher_forced`, and
    the latter uses it by default.

    Args:
        noise: Noise of every entry of the gradient, relative to the size of the entries.
        steps: Largest number of L-BFGS steps.

    Example:
        >>> estimated_features(noise=0.1).noise
        0.1

    References:
        Liu and Nocedal, 1989 (liu1989limited), for the search; the method is ours
    """
    return EstimatedFeatures(noise=noise, steps=steps)
