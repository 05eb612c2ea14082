"""Rectified heads: everybody's direction in the span, one person at a time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.exact_batch import Complementarity
from seepage.attacks.exact_batch.span_factors import Candidates, Factors, column_space, none_yet
from seepage.attacks.feature_recovery.feature_span import FeatureSpan
from seepage.attacks.feature_recovery.head_equations import HeadEquations
from seepage.core import Rng
from seepage.core.errors import NotApplicable
from seepage.core.progress import report
from seepage.probing.heads import TwoLayerHead

_ENTRIES = 200_000
# The 99.9 % point of sqrt(N) times the Kolmogorov-Smirnov distance.
_SUSPICIOUS = 1.95


class NotGaussianWarning(UserWarning):
    """The weights that the tensor method reads moments from do not look Gaussian."""


@dataclass(frozen=True, eq=False)
class GaussianNeurons:
    """The neurons to use.

    Args:
        chosen: Their numbers, `(v,)`.
        deviation: Of their weights.
        statistic: sqrt(N) times the Kolmogorov-Smirnov distance from a Gaussian; below 1.95 for
            999 of 1000 layers that are.
    """

    chosen: Tensor
    deviation: float
    statistic: float


def gaussian_neurons(head: TwoLayerHead) -> GaussianNeurons:
    """The neurons that the head was given at random; warn unless their weights look Gaussian.

    Those of the paper have one column of A in common, which training would have moved apart. Where
    no such column holds for most neurons, it is the largest group whose weights have one size: a
    row of d standard normal numbers has a root mean square within a few 1 / sqrt(2 d) of one.

    References:
        Liu et al., 2024, appendix F (liu2024systematic) on the columns of A
    """
    chosen = torch.nonzero(_alike(head))[:, 0]
    weight = head.weight[chosen]
    deviation = float(weight.square().mean().sqrt())
    statistic = _distance_from_normal(weight.flatten() / deviation)
    if statistic > _SUSPICIOUS:
        warnings.warn(
            f"the weights of {head.layer!r} are not Gaussian (sqrt(N) times the Kolmogorov-Smirnov "
            f"distance is {statistic:.1f}, above {_SUSPICIOUS}), so the moments of tensor_features "
            "are biased; exact_features() does not need Gaussian weights",
            NotGaussianWarning,
            stacklevel=2,
        )
    return GaussianNeurons(chosen, deviation, statistic)


def one_column(head: TwoLayerHead) -> Tensor | None:
    """Which neurons `(m,)` have one column of A in common, if most do."""
    columns = head.above.T
    common: Tensor = (columns == columns.median(0).values).all(1)
    return common if 2 * int(common.sum()) > len(common) > 1 else None


def _alike(head: TwoLayerHead) -> Tensor:
    """Which neurons belong to the largest group, `(m,)`."""
    common = one_column(head)
    if common is not None:
        return common
    size = head.weight.square().mean(1).sqrt()
    usual = float(size.median())
    if usual == 0:
        raise NotApplicable(f"half of the neurons of {head.layer!r} have no weight at all")
    near: Tensor = (size / usual - 1).abs() < 6 / (2 * head.weight.shape[1]) ** 0.5
    return near


def _distance_from_normal(values: Tensor) -> float:
    """sqrt(N) sup_x |F_N(x) - Phi(x)|, where the values are: no copy to the host, no scipy."""
    stride = max(1, len(values) // _ENTRIES)
    some = values[::stride].sort().values
    below = torch.special.ndtr(some)
    steps = torch.arange(len(some) + 1, dtype=some.dtype, device=some.device) / len(some)
    distance = torch.maximum((steps[1:] - below).max(), (below - steps[:-1]).max())
    return float(distance * math.sqrt(len(some)))


# Equations for each unknown of a person: more of them only cost time.
_EQUATIONS = 64
# Below so many for each unknown, others than people solve them as well.
_ENOUGH = 8
# Where nearly every start ends at somebody, rounds without gain tell that the update is blurred.
_PATIENCE, _BETTER = 2, 0.9
EXPLAINED = 1e-4


def separated(
    head: TwoLayerHead,
    span: FeatureSpan,
    equations: HeadEquations,
    *,
    search: Complementarity,
    rng: Rng,
) -> Tensor | None:
    """Features `(B, d)` up to their lengths, or None if not everybody was found.

    With ReLU the columns of dL/dZ are zero at silent neurons and what the head sends down at the
    others, which singles them out in the span of dL/dW (see `Complementarity`); P with
    dL/dZ = left P then gives the features, P^-1 mixtures. The equations of the last layer, which
    had no part in it, say when everybody is right.

    Neurons with one column of A in common, such as the random ones of the paper, come first: all of
    them are sent the same number, so that a person's column holds no other than that and zero, and
    nearly every start ends at somebody. Where they do not say enough all neurons are asked.
    """
    best, least = None, float("inf")
    for number, (some, within) in enumerate(_groups(head, span)):
        key = rng.fork("group", number)
        patience = search.rounds if some is head else _PATIENCE
        found = _searched(some, within, equations, search=search, patience=patience, rng=key)
        misfit = float("inf") if found is None else equations.misfit(found)
        if misfit < least:
            best, least = found, misfit
        if least < EXPLAINED:
            break
    return best


def _groups(head: TwoLayerHead, span: FeatureSpan) -> Iterator[tuple[TwoLayerHead, FeatureSpan]]:
    """Parts of a head, each with its part of the gradient."""
    common = one_column(head)
    if common is not None:
        chosen = torch.nonzero(common & (span.left != 0).any(1))[:, 0]
        if len(chosen) >= _ENOUGH * (span.people + 1):
            part = replace(
                head,
                weight=head.weight[chosen],
                bias=head.bias[chosen],
                above=head.above[:, chosen],
                first=None if head.first is None else head.first[chosen],
                last=head.last[:, chosen],
            )
            # Starts that are random in orthonormal coordinates favour nobody.
            left, turn = torch.linalg.qr(span.left[chosen])
            yield part, replace(span, left=left, mixtures=turn @ span.mixtures)
    yield head, span


def _searched(
    head: TwoLayerHead,
    span: FeatureSpan,
    equations: HeadEquations,
    *,
    search: Complementarity,
    patience: int,
    rng: Rng,
) -> Tensor | None:
    above = head.above.T @ column_space(head.last, at_most=span.people)
    factors = Factors(
        span.left,
        span.mixtures,
        span.left.new_zeros(span.people),
        span.noise,
        column_space(above, at_most=above.shape[1]),
    )
    some = _some_neurons(factors, rng.fork("neurons"))
    found, best, least, idle = none_yet(factors.span), None, float("inf"), 0
    for number in range(search.rounds):
        before = found.directions
        key = rng.fork("round", number)
        found = found.joined(search(some, found, rng=key)).independent()
        if len(found) < span.people:
            continue
        idle += 1
        if idle > patience:
            break
        if torch.equal(found.directions, before):
            continue
        features = _features(head, span, found)
        misfit = equations.misfit(features)
        report(number + 1, search.rounds, misfit)
        if misfit < _BETTER * least:
            idle = 0
        if misfit < least:
            best, least = features, misfit
        if least < EXPLAINED or (not span.clean and number > 3):
            break
    return best


def _some_neurons(factors: Factors, rng: Rng) -> Factors:
    assert factors.above is not None
    unknowns = factors.people + factors.above.shape[1]
    live = torch.nonzero(factors.live)[:, 0]
    chosen = live[rng.permutation(len(live)).to(live.device)[: _EQUATIONS * unknowns]]
    return Factors(
        factors.span[chosen],
        factors.mixtures,
        factors.total,
        factors.noise,
        factors.above[chosen],
    )


def _features(head: TwoLayerHead, span: FeatureSpan, found: Candidates) -> Tensor:
    """Of these directions, each with the sign that agrees with which neurons are active."""
    directions = found.directions.T
    flat = torch.nan_to_num(torch.linalg.solve_ex(directions, span.mixtures)[0])
    flat = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-300)
    loud = (span.left @ directions).square().T
    forwards = head.hidden(flat) > 0
    share = (loud * forwards).sum(1) / loud.sum(1)
    return torch.where(share[:, None] < 0.5, -flat, flat)
