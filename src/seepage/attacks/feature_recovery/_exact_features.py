"""Recover the inputs of a two-layer head, exactly if the update has no noise or pruning."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from seepage.attacks.exact_batch._complementarity import Complementarity
from seepage.attacks.exact_batch._span_factors import (
    Candidates,
    Factors,
    column_space,
    empty_candidates,
)
from seepage.attacks.feature_recovery._feature_span import (
    FeatureSpan,
    feature_span,
    find_shared_column,
)
from seepage.attacks.feature_recovery._features import Features, NotToldApartWarning
from seepage.attacks.feature_recovery._head_equations import (
    HeadEquations,
    read_equations,
    reconstruct_inputs,
    refine_features,
    restore_lengths,
)
from seepage.attacks.labels._infer_labels import CountAware
from seepage.core import BaseAttack, Observation, Reconstruction, Rng
from seepage.core._device import precision
from seepage.core._progress import report
from seepage.core._rng import require_key
from seepage.core.errors import NotApplicable, require_at_least
from seepage.probing._heads import NOTHING, TwoLayerHead, two_layer_head

# How far features of one class are spread around its mean, relative to the mean; all are tried.
_SPREADS = (0.03, 0.1, 0.3, 1.0)
# Equations for each unknown of an example; more would only cost time.
_EQUATIONS = 64
# With fewer equations for each unknown, wrong directions solve them as well.
_ENOUGH = 8
# If nearly every start ends at an example, rounds without gain mean that the update is blurred.
_PATIENCE, _BETTER = 2, 0.9
_EXPLAINED = 1e-4
_PROMISING = 0.3
# Local steps blur the rest of the update several times more than the span. Two examples taken for
# one leave more than that.
_BLURRED, _LEFT = 10, 1e-3
# Two starts that end this close, relative to what is left, have both reached the noise.
_SETTLED = 1e-3


def _choose_best(wanted: HeadEquations, guesses: Iterable[Tensor]) -> Tensor:
    """The best of the guesses; stops drawing them once one solves the equations, or two agree."""
    best, least = None, float("inf")
    for guess in guesses:
        misfit = wanted.misfit(guess)
        settled = abs(misfit - least) < _SETTLED * least
        if misfit < least:
            best, least = guess, misfit
        if least < _EXPLAINED or settled:
            break
    assert best is not None
    return best


def _class_means(head: TwoLayerHead, classes: Tensor) -> Tensor:
    """Estimate the mean feature of each class, `(C, d)`, by linear regression on the weights.

        dL/dA_kj = sum_i R_ik sigma(w_j . z_i)  is about  w_j . (sum_i R_ik s z_i) + const

    R is negative for an example's own class and smaller for all others. The regression is a
    first-order moment without the noise of the parts of order zero and one.
    """
    ones = head.weight.new_ones(len(head.weight), 1)
    regressors = torch.cat([head.weight, ones], dim=1)
    ridge = 1e-9 * regressors.square().sum(0).mean()
    slopes = _solve_ridge(regressors, head.last[classes].T, ridge).T
    return -slopes[:, :-1]


def _solve_ridge(regressors: Tensor, wanted: Tensor, ridge: Tensor) -> Tensor:
    """Ridge regression, min ||X s - y||^2 + ridge ||s||^2, by the smaller of X^T X and X X^T."""
    wide = regressors.shape[0] < regressors.shape[1]
    normal = regressors @ regressors.T if wide else regressors.T @ regressors
    normal = normal + ridge * torch.eye(len(normal)).to(normal)
    if wide:
        return regressors.T @ cast(Tensor, torch.linalg.solve(normal, wanted))
    return cast(Tensor, torch.linalg.solve(normal, regressors.T @ wanted))


def _scale_to_unit(directions: Tensor, head: TwoLayerHead) -> Tensor:
    """Scale directions so that the neurons' inputs have size one, where activations bend."""
    size = (directions @ head.weight.T).square().mean(1, keepdim=True).sqrt()
    return directions / size.clamp_min(1e-300)


def _spread_features(
    head: TwoLayerHead, equations: HeadEquations, means: Tensor, labels: Tensor, *, rng: Rng
) -> Tensor:
    """Draw a feature for each label, `(B, d)`; those of one class spread around its mean `(C, d)`.

    If each class is taken for one example, the second-order moment of what the means leave
    unexplained holds the differences between the examples of a class.
    """
    classes, group = torch.unique(labels, return_inverse=True)
    if len(classes) == len(labels):
        return means[group]
    left = -equations.solve(means)[2]
    drawn = torch.zeros_like(means[group])
    for c in range(len(classes)):
        members = torch.nonzero(group == c)[:, 0]
        if len(members) > 1:
            drawn[members] = _draw_apart(
                head, means[c], left[classes[c]], len(members), rng.fork(c)
            )
    length = means.norm(dim=1)[group][:, None]
    options = [means[group] + spread * length * drawn for spread in _SPREADS]
    best: Tensor = min(options, key=equations.misfit)
    return best


def _draw_apart(head: TwoLayerHead, mean: Tensor, left: Tensor, count: int, rng: Rng) -> Tensor:
    """Draw unit directions `(count, d)` in the space of what a class mean leaves unexplained.

    The largest eigenvectors of sum_j left_j H2(w_j), orthogonal to the mean, span that space. No
    neuron reads what is orthogonal to all rows of the weight, so they are looked for among these.
    """
    readable = torch.linalg.qr(torch.cat([mean[None], head.weight]).T).Q
    weight = head.weight @ readable / head.weight.square().mean().sqrt()
    moment = (weight * left[:, None]).T @ weight / len(weight)
    identity = torch.eye(len(moment)).to(mean)
    unit = mean @ readable / mean.norm()
    across = identity - torch.outer(unit, unit)
    values, vectors = torch.linalg.eigh(across @ (moment - left.mean() * identity) @ across)
    largest = values.abs().argsort(descending=True)[: count - 1]
    draw = rng.normal((count, count - 1), like=values)
    directions = (draw - draw.mean(0)) @ (readable @ vectors[:, largest]).T
    units: Tensor = directions / directions.norm(dim=1, keepdim=True)
    return units


def _separate_features(
    head: TwoLayerHead,
    span: FeatureSpan,
    equations: HeadEquations,
    *,
    search: Complementarity,
    rng: Rng,
) -> Tensor | None:
    """Find features `(B, d)` up to their lengths; None if some example was not found.

    With ReLU the columns of dL/dZ are zero at silent neurons and equal what the head sends down at
    the others, which singles them out in the span of dL/dW (see `Complementarity`). P with
    dL/dZ = left P then gives the features, P^-1 mixtures. The equations of the last layer are not
    used in this search, so they show when all examples are right.

    Neurons that share one column of A, such as the random ones of the paper, come first. All of
    them are sent the same number, so an example's column holds only this number and zero, and
    nearly every start ends at an example. If that is not enough, all neurons are used.
    """
    best, least = None, float("inf")
    for number, (some, within) in enumerate(_split_head(head, span)):
        key = rng.fork("group", number)
        patience = search.rounds if some is head else _PATIENCE
        found = _search_span(some, within, equations, search=search, patience=patience, rng=key)
        misfit = float("inf") if found is None else equations.misfit(found)
        if misfit < least:
            best, least = found, misfit
        if least < _EXPLAINED:
            break
    return best


def _split_head(
    head: TwoLayerHead, span: FeatureSpan
) -> Iterator[tuple[TwoLayerHead, FeatureSpan]]:
    """Yield parts of a head, each with its part of the gradient, and then the whole head."""
    common = find_shared_column(head)
    if common is not None:
        chosen = torch.nonzero(common & (span.left != 0).any(1))[:, 0]
        if len(chosen) >= _ENOUGH * (span.batch_size + 1):
            part = replace(
                head,
                weight=head.weight[chosen],
                bias=head.bias[chosen],
                above=head.above[:, chosen],
                first=None if head.first is None else head.first[chosen],
                last=head.last[:, chosen],
            )
            # Random starts in orthonormal coordinates favour no example.
            left, turn = torch.linalg.qr(span.left[chosen])
            yield part, replace(span, left=left, mixtures=turn @ span.mixtures)
    yield head, span


def _search_span(
    head: TwoLayerHead,
    span: FeatureSpan,
    equations: HeadEquations,
    *,
    search: Complementarity,
    patience: int,
    rng: Rng,
) -> Tensor | None:
    sent = head.above.T @ column_space(head.last, at_most=span.batch_size)
    above = column_space(sent, at_most=sent.shape[1])
    total = span.left.new_zeros(span.batch_size)
    factors = Factors(span.left, span.mixtures, total, span.noise, above)
    live = torch.nonzero(factors.live)[:, 0]
    drawn = rng.fork("neurons").permutation(len(live)).to(live.device)
    chosen = live[drawn[: _EQUATIONS * (span.batch_size + above.shape[1])]]
    some = replace(factors, span=factors.span[chosen], above=above[chosen])
    found, best, least, idle = empty_candidates(factors.span), None, float("inf"), 0
    for number in range(search.rounds):
        before = found.directions
        key = rng.fork("round", number)
        found = found.join(search(some, found, rng=key)).select_independent()
        if len(found) < span.batch_size:
            continue
        idle += 1
        if idle > patience:
            break
        if torch.equal(found.directions, before):
            continue
        features = _read_features(head, span, found)
        misfit = equations.misfit(features)
        report(number + 1, search.rounds, misfit)
        if misfit < _BETTER * least:
            idle = 0
        if misfit < least:
            best, least = features, misfit
        if least < _EXPLAINED or (not span.clean and number > 3):
            break
    return best


def _read_features(head: TwoLayerHead, span: FeatureSpan, found: Candidates) -> Tensor:
    """Solve for the features of these directions, with the sign that fits the active neurons."""
    directions = found.directions.T
    flat = torch.nan_to_num(torch.linalg.solve_ex(directions, span.mixtures)[0])
    flat = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-300)
    loud = (span.left @ directions).square().T
    share = (loud * (head.hidden(flat) > 0)).sum(1) / loud.sum(1)
    return torch.where(share[:, None] < 0.5, -flat, flat)


@dataclass(frozen=True, kw_only=True)
class ExactFeatures(BaseAttack):
    """Recovers what a two-layer head reads; see `exact_features`.

    The rows of dL/dW span the features exactly, and the equations dL/dA = R^T sigma(Z W^T) are
    many more than the unknowns. Behind ReLU the examples are first separated within the span.
    Otherwise, or if noise, pruning or local steps blur the span, least squares on the equations of
    the last layer starts from the labels, in the span or in the whole space. The features that
    explain the update best are kept; choosing them does not need the truth.
    """

    search: Complementarity = field(default_factory=Complementarity)
    steps: int = 12
    starts: int = 2

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps, starts=self.starts)

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features."""
        require_key(rng)
        with precision("float32"):
            head = two_layer_head(observation)
            if head.activation.name == "identity":
                raise NotApplicable(
                    f"there is no activation between {head.layer!r} and the last layer, so the "
                    "update holds only sums of features; feature recovery needs an activation"
                )
            span = feature_span(head, observation.batch_size)
            size = span.batch_size if span is not None else observation.batch_size
            assert size is not None
            wanted = read_equations(head)
            _require_equations(head, wanted, span, size)
            best = _choose_best(wanted, self._guess(observation, head, wanted, span, size, rng))
        residual = wanted.misfit(best)
        clean = span if span is not None and span.clean else None
        untouched = clean is not None and not clean.filled
        mingled = untouched and residual > max(_LEFT, _BLURRED * (clean.noise if clean else 0.0))
        if mingled:
            warnings.warn(
                f"not all of {len(best)} examples were told apart: their features leave "
                f"{residual:.2g} of the gradient of the last layer unexplained; the span is still "
                "exact, and more rounds or starts may find the others",
                NotToldApartWarning,
                stacklevel=2,
            )
        basis = clean.basis if clean is not None else torch.linalg.qr(best.T).Q
        values, scaled = restore_lengths(head, wanted, best, observation)
        dtype = observation.task.reference.dtype
        values, basis = values.to(dtype), basis.to(dtype)
        return Features(head.layer, values, basis, scaled, residual, told_apart=not mingled)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Recover the inputs, if the head reads them."""
        return reconstruct_inputs(self, observation, rng)

    def _guess(
        self,
        observation: Observation,
        head: TwoLayerHead,
        wanted: HeadEquations,
        span: FeatureSpan | None,
        size: int,
        rng: Rng,
    ) -> Iterator[Tensor]:
        if head.activation.rectifies and span is not None:
            apart = _separate_features(
                head, span, wanted, search=self.search, rng=rng.fork("separation")
            )
            if apart is not None:
                yield apart
                if wanted.misfit(apart) < _PROMISING:
                    yield self._refine(wanted, span, _scale_to_unit(apart, head))
        labels = observation.labels
        if labels is None or labels.ndim != 1:
            labels = CountAware()(replace(observation, labels=None, batch_size=size))
        means = _class_means(head, torch.unique(labels))
        means = self._refine(wanted, span, _scale_to_unit(means, head))
        for number in range(self.starts):
            start = _spread_features(head, wanted, means, labels, rng=rng.fork("start", number))
            yield self._refine(wanted, span, start)

    def _refine(self, wanted: HeadEquations, span: FeatureSpan | None, start: Tensor) -> Tensor:
        if span is not None and span.clean:
            basis = span.basis
            return refine_features(wanted.within(basis), start @ basis, steps=self.steps) @ basis.T
        # Noise hides the digits beyond single precision, which is twice as fast.
        names = ("weight", "bias", "wanted", "seen")
        single = replace(wanted, **{name: getattr(wanted, name).float() for name in names})
        return refine_features(single, start.float(), steps=self.steps).double()


def _require_equations(
    head: TwoLayerHead, wanted: HeadEquations, span: FeatureSpan | None, size: int
) -> None:
    """Raise `NotApplicable` if there are more unknowns than equations."""
    classes, neurons = wanted.wanted.shape
    inside = size if span is not None and span.clean else head.weight.shape[1]
    rank = max(classes - 1, 1)
    unknown = size * (inside + rank)
    if int(wanted.seen.sum()) == 0:
        raise NotApplicable(NOTHING)
    if neurons * rank < unknown:
        raise NotApplicable(
            f"{neurons} neurons give {neurons * rank} equations for {unknown} unknowns of "
            f"{size} examples; feature recovery needs {-(-unknown // rank)} neurons or more"
        )


def exact_features(*, rounds: int = 24, steps: int = 12, starts: int = 2) -> ExactFeatures:
    """Recover what a two-layer head reads from the gradients of both its layers.

    It is exact if nothing hides the features. As an attack it returns inputs if the head reads
    them; `recover` gives the features of any network with such a head.

    Args:
        rounds: Largest number of rounds of the search behind ReLU.
        steps: Steps of least squares from each start.
        starts: Largest number of starts; more are tried only while the equations do not hold.

    Example:
        >>> exact_features(starts=5).starts
        5

    References:
        Liu et al., 2024, appendices B and F (liu2024systematic), for the setting; Huang et al.,
        2021, Lemma B.1 (huang2021evaluating), for the span. The method is ours.
    """
    return ExactFeatures(search=Complementarity(rounds=rounds), steps=steps, starts=starts)
