"""Estimate features if the last layer's gradient is pruned, noisy or too small to solve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.feature_recovery._features import Features, find_missing, read_classifier
from seepage.clients._gradient import Gradient
from seepage.core import Observation, Rng
from seepage.core._rng import require_key
from seepage.core.errors import require_at_least, require_positive
from seepage.defenses._clip import AddGaussian, AddLaplace
from seepage.defenses._compress import Prune, TopK
from seepage.probing._heads import Head

# How far starts spread, so that examples of one label do not stay equal.
_SPREAD = 0.01
# Standard deviation t of the logarithm of the update's scale, if the client's rules give the scale
# and if not. Entries also tell it, but not if there are as many examples as classes.
_KNOWN, _UNKNOWN = 1e-2, 10.0
# Defenses that do not change the scale of an update.
_SCALE_KEPT = (AddGaussian, AddLaplace, Prune, TopK)


@dataclass(frozen=True, kw_only=True)
class EstimatedFeatures:
    """Estimates what the last layer of a classifier reads; see `estimated_features`.

        min_{U, a}  sum_known (a (R^T U)_kj - G_kj)^2 / (noise g)^2  +  sum_ij (U_ij - m_j)^2 / s^2
                    +  (log a - log a_0)^2 / t^2,   R = softmax(U A^T + b) - Y

    `SoftmaxFeatures` solves for the features, which needs every entry of G and fewer examples than
    classes. Pruning and dropout remove entries, noise blurs them, and large batches have more
    unknowns than equations. What is left still makes some features more likely than others: those
    that explain it and lie near the features of the adversary's own noise, which have mean m and
    size s. g is the size of the known entries. a_0 is the share of each example in the update, from
    which a may differ by t: hardly at all, unless something rescales the update.

    An example sends R back through the network, and R is estimated far better than single features.
    """

    noise: float = 1e-2
    steps: int = 300

    def __post_init__(self) -> None:
        require_positive(noise=self.noise)
        require_at_least(1, steps=self.steps)

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Estimate the features, in the order of the labels."""
        require_key(rng)
        head, labels = read_classifier(observation, needed_by="estimated_features")
        values, left = self._find_mode(head, observation, labels, rng)
        values = values.to(observation.task.reference)
        span = torch.linalg.qr(values.T).Q
        return Features(head.layer, values, span, True, left, in_order=True)

    def _find_mode(
        self, head: Head, observation: Observation, labels: Tensor, rng: Rng
    ) -> tuple[Tensor, float]:
        """Find the most likely features, and the share of the known entries they do not explain."""
        gradient, tensors = observation.update.descent().tensors, observation.task.parameters
        # A last layer is small, so launching work on a GPU costs more than it saves.
        seen = gradient[head.weight].detach().double().cpu()
        bias, offset = seen.new_zeros(len(seen)), head.offset
        if head.bias is not None:
            bias, offset = gradient[head.bias].detach().double().cpu(), tensors[head.bias]
        # dL/dA beside dL/db, (K, d + 1), and which of its entries are known.
        wanted = torch.cat([seen, bias[:, None]], 1)
        there = torch.cat([~find_missing(seen), (bias != 0)[:, None]], 1)
        sizes = torch.stack([_typical_size(seen), _typical_size(bias)]) * self.noise
        deviation = torch.cat([sizes[:1].expand(seen.shape[1]), sizes[1:]])
        weight = tensors[head.weight].detach().double().cpu()
        offset, labels = offset.detach().double().cpu(), labels.double().cpu()
        read = head.features.double().cpu()
        mean, size = read.mean(0), read.square().mean().sqrt()
        log_scale, scale_spread = _expected_scale(observation, len(labels))
        drawn = rng.fork("spread").normal((len(labels), len(mean)), like=mean)
        values = (mean + _SPREAD * size * drawn).requires_grad_()
        scale = values.new_tensor(log_scale).requires_grad_()
        search = torch.optim.LBFGS(
            [values, scale],
            max_iter=self.steps,
            history_size=20,
            tolerance_grad=1e-9,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

        def residual() -> Tensor:
            shares = torch.softmax(values @ weight.T + offset, 1) - labels
            ones = values.new_ones(len(values), 1)
            explained = scale.exp() * shares.T @ torch.cat([values, ones], 1)
            return torch.where(there, explained - wanted, 0.0)

        def evaluate() -> Tensor:
            search.zero_grad()
            left = residual() / deviation
            unlikely = (values - mean) / size
            rescaled = (scale - log_scale) / scale_spread
            cost = left.square().sum() + unlikely.square().sum() + rescaled.square()
            cost.backward()  # type: ignore[no-untyped-call]
            return cost

        search.step(evaluate)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            left = residual().norm() / wanted[there].norm()
        return values.detach(), float(left)


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
