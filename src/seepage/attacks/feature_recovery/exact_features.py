"""Recover the inputs of a two-layer head, exactly if the update has no noise or pruning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seepage.attacks.exact_batch.complementarity import Complementarity
from seepage.attacks.exact_batch.span_factors import (
    Candidates,
    Factors,
    column_space,
    empty_candidates,
    require_at_least_one,
)
from seepage.attacks.feature_recovery.feature_span import (
    FeatureSpan,
    feature_span,
    find_shared_column,
)
from seepage.attacks.feature_recovery.features import Features, NotToldApartWarning
from seepage.attacks.feature_recovery.head_equations import (
    HeadEquations,
    equations,
    reconstruct_inputs,
    refine,
    restore_lengths,
)
from seepage.attacks.labels.infer_labels import CountAware
from seepage.core import Observation, Reconstruction, Rng
from seepage.core.device import precision
from seepage.core.errors import NotApplicable
from seepage.core.progress import report
from seepage.core.rng import require_key
from seepage.probing.heads import NOTHING, TwoLayerHead, two_layer_head

_APART = (0.03, 0.1, 0.3, 1.0)


def _class_means(head: TwoLayerHead, classes: Tensor) -> Tensor:
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


def _scale_to_unit(directions: Tensor, head: TwoLayerHead) -> Tensor:
    """The same, as long as makes the neurons' inputs of size one, where activations bend."""
    size = (directions @ head.weight.T).square().mean(1, keepdim=True).sqrt()
    scaled: Tensor = directions / size.clamp_min(1e-300)
    return scaled


def spread(
    head: TwoLayerHead, equations: HeadEquations, means: Tensor, labels: Tensor, *, rng: Rng
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


# Equations for each unknown of a person: more of them only cost time.
_EQUATIONS = 64
# Below so many for each unknown, others than people solve them as well.
_ENOUGH = 8
# Where nearly every start ends at somebody, rounds without gain tell that the update is blurred.
_PATIENCE, _BETTER = 2, 0.9
_EXPLAINED = 1e-4


def _separate_features(
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
        if least < _EXPLAINED:
            break
    return best


def _groups(head: TwoLayerHead, span: FeatureSpan) -> Iterator[tuple[TwoLayerHead, FeatureSpan]]:
    """Parts of a head, each with its part of the gradient."""
    common = find_shared_column(head)
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
    found, best, least, idle = empty_candidates(factors.span), None, float("inf"), 0
    for number in range(search.rounds):
        before = found.directions
        key = rng.fork("round", number)
        found = found.join(search(some, found, rng=key)).select_independent()
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
        if least < _EXPLAINED or (not span.clean and number > 3):
            break
    return best


def _some_neurons(factors: Factors, rng: Rng) -> Factors:
    assert factors.above is not None
    unknowns = factors.batch_size + factors.above.shape[1]
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


_PROMISING = 0.3
# What local steps do to the span they do to the rest of the update, several times over; two people
# taken for one leave more.
_BLURRED, _LEFT = 10, 1e-3
# Two starts that end this close, relative to what is left, have both reached the noise.
_SETTLED = 1e-3


@dataclass(frozen=True, kw_only=True)
class ExactFeatures:
    """Recovers what a two-layer head reads, from the gradients of both its layers.

    The rows of dL/dW span the features exactly, and the equations dL/dA = R^T sigma(Z W^T) are
    many more than the unknowns. Behind ReLU everybody is separated within the span first;
    otherwise, and where noise, pruning or local steps blur the span, least squares on the
    equations of the last layer starts from the labels, in the span or in the whole space. What
    explains the update best is kept: the truth is not needed to tell.

    Args:
        search: For the directions of people behind ReLU.
        steps: Of least squares, from each start.
        starts: Of least squares at most; more are tried only while the equations do not hold.

    References:
        Liu et al., 2024, appendices B and F (liu2024systematic), for the setting; Huang et al.,
        2021, Lemma B.1 (huang2021evaluating), for the span. The method is ours.
    """

    search: Complementarity = field(default_factory=Complementarity)
    steps: int = 12
    starts: int = 2

    def __post_init__(self) -> None:
        """Check the numbers."""
        require_at_least_one(steps=self.steps, starts=self.starts)

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features."""
        require_key(rng)
        with precision("float32"):
            head = two_layer_head(observation)
            _require_bend(head)
            span = feature_span(head, observation.batch_size)
            people = span.people if span is not None else observation.batch_size
            assert people is not None
            wanted = equations(head)
            _require_equations(head, wanted, span, people)
            best = self._best(observation, head, wanted, span, people, rng)
        return self._found(head, wanted, span, best, observation)

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """The inputs, where the head reads them."""
        return reconstruct_inputs(self.recover, observation, rng=rng)

    def _best(
        self,
        observation: Observation,
        head: TwoLayerHead,
        wanted: HeadEquations,
        span: FeatureSpan | None,
        people: int,
        rng: Rng,
    ) -> Tensor:
        best, least = None, float("inf")
        for guess in self._guesses(observation, head, wanted, span, people, rng):
            misfit = wanted.misfit(guess)
            settled = abs(misfit - least) < _SETTLED * least
            if misfit < least:
                best, least = guess, misfit
            if least < _EXPLAINED or settled:
                break
        assert best is not None
        return best

    def _guesses(
        self,
        observation: Observation,
        head: TwoLayerHead,
        wanted: HeadEquations,
        span: FeatureSpan | None,
        people: int,
        rng: Rng,
    ) -> Iterator[Tensor]:
        if head.activation.rectifies and span is not None:
            apart = _separate_features(
                head, span, wanted, search=self.search, rng=rng.fork("separation")
            )
            if apart is not None:
                yield apart
                if wanted.misfit(apart) < _PROMISING:
                    yield self._refined(wanted, span, _scale_to_unit(apart, head))
        labels = _labels(observation, people)
        classes = torch.unique(labels)
        means = self._refined(wanted, span, _scale_to_unit(_class_means(head, classes), head))
        for number in range(self.starts):
            start = spread(head, wanted, means, labels, rng=rng.fork("start", number))
            yield self._refined(wanted, span, start)

    def _refined(self, wanted: HeadEquations, span: FeatureSpan | None, start: Tensor) -> Tensor:
        if span is not None and span.clean:
            basis = span.basis
            return refine(wanted.within(basis), start @ basis, steps=self.steps) @ basis.T
        # Noise leaves no more digits than single precision has, and half the time is twice as much.
        single = replace(
            wanted,
            weight=wanted.weight.float(),
            bias=wanted.bias.float(),
            wanted=wanted.wanted.float(),
            seen=wanted.seen.float(),
        )
        return refine(single, start.float(), steps=self.steps).double()

    def _found(
        self,
        head: TwoLayerHead,
        wanted: HeadEquations,
        span: FeatureSpan | None,
        best: Tensor,
        observation: Observation,
    ) -> Features:
        residual = wanted.misfit(best)
        clean = span is not None and span.clean
        untouched = span is not None and span.clean and not span.filled
        noise = span.noise if span is not None else 0.0
        mingled = untouched and residual > max(_LEFT, _BLURRED * noise)
        if mingled:
            warnings.warn(
                f"not all of {len(best)} people were told apart: their features leave "
                f"{residual:.2g} of the gradient of the last layer unexplained; the span is exact "
                "all the same, and more rounds or starts may find the others",
                NotToldApartWarning,
                stacklevel=2,
            )
        basis = span.basis if span is not None and clean else torch.linalg.qr(best.T).Q
        values, scaled = restore_lengths(head, wanted, best, observation)
        dtype = next(iter(observation.task.parameters.values())).dtype
        values, basis = values.to(dtype), basis.to(dtype)
        return Features(head.layer, values, basis, scaled, residual, told_apart=not mingled)


def _labels(observation: Observation, people: int) -> Tensor:
    if observation.labels is not None and observation.labels.ndim == 1:
        return observation.labels
    return CountAware()(replace(observation, labels=None, batch_size=people))


def _require_bend(head: TwoLayerHead) -> None:
    if head.activation.name == "identity":
        raise NotApplicable(
            f"nothing bends between {head.layer!r} and the last layer, so the update holds only "
            "sums of features; feature recovery needs an activation"
        )


def _require_equations(
    head: TwoLayerHead, wanted: HeadEquations, span: FeatureSpan | None, people: int
) -> None:
    """Refuse a head that leaves more unknowns than equations, and say how wide it must be."""
    classes, neurons = wanted.wanted.shape
    inside = people if span is not None and span.clean else head.weight.shape[1]
    rank = max(classes - 1, 1)
    unknown = people * (inside + rank)
    if int(wanted.seen.sum()) == 0:
        raise NotApplicable(NOTHING)
    if neurons * rank < unknown:
        raise NotApplicable(
            f"{neurons} neurons give {neurons * rank} equations for {unknown} unknowns of "
            f"{people} people; feature recovery needs {-(-unknown // rank)} neurons or more"
        )


def exact_features(*, rounds: int = 24, steps: int = 12, starts: int = 2) -> ExactFeatures:
    """What a two-layer head reads, exactly where nothing hides it.

    As an attack it returns inputs where the head reads them; `recover` gives the features of any
    network with such a head.

    Args:
        rounds: Of the search for people behind ReLU, at most.
        steps: Of least squares, from each start.
        starts: Of least squares, at most.

    Example:
        >>> exact_features(starts=5).starts
        5

    References:
        Liu et al., 2024 (liu2024systematic), for the setting; the method is ours
    """
    return ExactFeatures(search=Complementarity(rounds=rounds), steps=steps, starts=starts)
