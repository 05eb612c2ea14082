"""Estimate features where the last layer's gradient is pruned, noisy or too small to solve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

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

# How far starts spread, so that people of one label do not stay one person.
_SPREAD = 0.01
# How far the logarithm of the update's scale strays from what it is by the rules, where these are
# known and where not. Entries tell it as well, but not those of as many people as classes.
_KNOWN, _UNKNOWN = 1e-2, 10.0
# What leaves the scale of an update as it is.
_SCALE_KEPT = (AddGaussian, AddLaplace, Prune, TopK)


@dataclass(frozen=True, kw_only=True)
class EstimatedFeatures:
    """Estimates what the last layer of a classifier reads from whatever its gradient still says.

        min_{U, a}  sum_known (a (R^T U)_kj - G_kj)^2 / (noise g)^2  +  sum_ij (U_ij - m_j)^2 / s^2
                    +  (log a - log a_0)^2 / t^2,   R = softmax(U A^T + b) - Y

    `SoftmaxFeatures` solves for the features, which takes every entry of G and fewer people than
    classes. Pruning and dropout take entries away, noise blurs them, and large batches have more
    unknowns than equations. What is left still makes some features likelier than others: those
    that explain it and lie about where features of the adversary's own noise do, at m with a size
    of s. g is the size of the entries that are there, and a_0 the share of each person, from which
    a strays by t: hardly, unless something rescales the update.

    What a person sends back through the network is R, which is estimated far better than the
    single features are.

    Args:
        noise: Of every entry, relative to their size.
        steps: Of L-BFGS, at most.

    References:
        Liu and Nocedal, 1989 (liu1989limited), for the search. The method is ours.
    """

    noise: float = 1e-2
    steps: int = 300

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 < self.noise < float("inf"):
            raise InvalidValue(f"expected noise > 0, got {self.noise!r}")
        if self.steps < 1:
            raise InvalidValue(f"expected steps >= 1, got {self.steps!r}")

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Estimate the features, in the order of the labels."""
        require_key(rng)
        head, labels = read_classifier(observation, needed_by="likely_features")
        posterior = _posterior(head, observation, labels, self.noise)
        values, left = posterior.mode(steps=self.steps, rng=rng)
        values = values.to(next(iter(observation.task.parameters.values())))
        span = torch.linalg.qr(values.T).Q
        return Features(layer_name(head), values, span, True, left, in_order=True)


@dataclass(frozen=True, eq=False)
class _Posterior:
    """Of features `(B, d)`, given what is there of the gradient; in double precision.

    Args:
        weight: A, `(K, d)`.
        offset: b, `(K,)`.
        labels: Y, `(B, K)`.
        wanted: dL/dA beside dL/db, `(K, d + 1)`; the last column is zero where there is none.
        there: Which of its entries are known.
        noise: Standard deviation of each column's entries, `(d + 1,)`.
        mean: m, `(d,)`.
        size: s.
        usual: log a_0.
        strays: t.
    """

    weight: Tensor
    offset: Tensor
    labels: Tensor
    wanted: Tensor
    there: Tensor
    noise: Tensor
    mean: Tensor
    size: Tensor
    usual: float
    strays: float

    def mode(self, *, steps: int, rng: Rng) -> tuple[Tensor, float]:
        """The likeliest features, and the share of what is known that they leave unexplained."""
        drawn = rng.fork("spread").normal((len(self.labels), len(self.mean)), like=self.mean)
        values = (self.mean + _SPREAD * self.size * drawn).requires_grad_()
        scale = values.new_tensor(self.usual).requires_grad_()
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
            left = self._left(values, scale) / self.noise
            unlikely = (values - self.mean) / self.size
            rescaled = (scale - self.usual) / self.strays
            cost = left.square().sum() + unlikely.square().sum() + rescaled.square()
            cost.backward()  # type: ignore[no-untyped-call]
            return cost

        search.step(evaluate)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            left = self._left(values, scale).norm() / self.wanted[self.there].norm()
        return values.detach(), float(left)

    def _left(self, values: Tensor, scale: Tensor) -> Tensor:
        """What the features leave of every entry, `(K, d + 1)`, and nothing of missing ones."""
        shares = torch.softmax(values @ self.weight.T + self.offset, 1) - self.labels
        ones = values.new_ones(len(values), 1)
        explained = scale.exp() * shares.T @ torch.cat([values, ones], 1)
        return torch.where(self.there, explained - self.wanted, 0.0)


def _posterior(head: Head, observation: Observation, labels: Tensor, noise: float) -> _Posterior:
    gradient, tensors = observation.update.descent().tensors, observation.task.parameters
    # A last layer is small, so launching work on a GPU costs more than it saves.
    seen = gradient[head.weight].detach().double().cpu()
    bias, offset = seen.new_zeros(len(seen)), head.offset
    if head.bias is not None:
        bias, offset = gradient[head.bias].detach().double().cpu(), tensors[head.bias]
    read = head.features.double().cpu()
    there = torch.cat([~find_missing(seen), (bias != 0)[:, None]], 1)
    wanted = torch.cat([seen, bias[:, None]], 1)
    sizes = torch.stack([_size(seen), _size(bias)]) * noise
    usual, strays = _scale(observation, len(labels))
    return _Posterior(
        weight=tensors[head.weight].detach().double().cpu(),
        offset=offset.detach().double().cpu(),
        labels=labels.double().cpu(),
        wanted=wanted,
        there=there,
        noise=torch.cat([sizes[:1].expand(seen.shape[1]), sizes[1:]]),
        mean=read.mean(0),
        size=read.square().mean().sqrt(),
        usual=usual,
        strays=strays,
    )


def _scale(observation: Observation, people: int) -> tuple[float, float]:
    """The logarithm of each person's share in the update, and how far it may stray from there."""
    client = observation.simulate.client
    if client is None:
        return -math.log(people), _UNKNOWN
    local, guards = client.local, client.chain.update_defenses
    summed = isinstance(local, Gradient) and local.reduction == "sum"
    kept = isinstance(local, Gradient) and all(isinstance(link, _SCALE_KEPT) for link in guards)
    return 0.0 if summed else -math.log(people), _KNOWN if kept else _UNKNOWN


def _size(entries: Tensor) -> Tensor:
    """Root mean square of the entries that are there."""
    there = entries[entries != 0]
    return there.square().mean().sqrt() if len(there) else entries.new_ones(())


def estimated_features(*, noise: float = 1e-2, steps: int = 300) -> EstimatedFeatures:
    """What the last layer of a classifier probably reads, where `softmax_features` cannot tell.

    Behind pruning, dropout and noise, and for as many people as classes or more. Not an attack of
    its own: `recover` gives features for `systematic` and `teacher_forced`, and the latter uses it
    by itself.

    Args:
        noise: Of every entry of the gradient, relative to their size.
        steps: Of L-BFGS, at most.

    Example:
        >>> estimated_features(noise=0.1).noise
        0.1

    References:
        Liu and Nocedal, 1989 (liu1989limited), for the search; the method is ours
    """
    return EstimatedFeatures(noise=noise, steps=steps)
