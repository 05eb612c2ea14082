"""Features of a two-layer head, exactly where nothing hides them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seepage.attacks.exact_batch import Complementarity
from seepage.attacks.feature_recovery.equations import Equations, equations
from seepage.attacks.feature_recovery.features import Features
from seepage.attacks.feature_recovery.head import NOTHING, TwoLayerHead, two_layer_head
from seepage.attacks.feature_recovery.label_starts import class_means, scaled_to, spread
from seepage.attacks.feature_recovery.least_squares import refine
from seepage.attacks.feature_recovery.lengths import with_lengths
from seepage.attacks.feature_recovery.reconstruction import as_reconstruction
from seepage.attacks.feature_recovery.separation import EXPLAINED, separated
from seepage.attacks.feature_recovery.span import Span, feature_span
from seepage.attacks.labels import CountAware
from seepage.core import Observation, Reconstruction, Rng
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.precision import precision
from seepage.core.rng import require_key


class NotToldApartWarning(UserWarning):
    """The span of the features is exact, but not everybody in it was found."""


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
        for name in ("steps", "starts"):
            if getattr(self, name) < 1:
                raise InvalidValue(f"expected {name} >= 1, got {getattr(self, name)!r}")

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
        return as_reconstruction(self.recover, observation, rng=rng)

    def _best(
        self,
        observation: Observation,
        head: TwoLayerHead,
        wanted: Equations,
        span: Span | None,
        people: int,
        rng: Rng,
    ) -> Tensor:
        best, least = None, float("inf")
        for guess in self._guesses(observation, head, wanted, span, people, rng):
            misfit = wanted.misfit(guess)
            settled = abs(misfit - least) < _SETTLED * least
            if misfit < least:
                best, least = guess, misfit
            if least < EXPLAINED or settled:
                break
        assert best is not None
        return best

    def _guesses(
        self,
        observation: Observation,
        head: TwoLayerHead,
        wanted: Equations,
        span: Span | None,
        people: int,
        rng: Rng,
    ) -> Iterator[Tensor]:
        if head.activation.rectifies and span is not None:
            apart = separated(head, span, wanted, search=self.search, rng=rng.fork("separation"))
            if apart is not None:
                yield apart
                if wanted.misfit(apart) < _PROMISING:
                    yield self._refined(wanted, span, scaled_to(apart, head))
        labels = _labels(observation, people)
        classes = torch.unique(labels)
        means = self._refined(wanted, span, scaled_to(class_means(head, classes), head))
        for number in range(self.starts):
            start = spread(head, wanted, means, labels, rng=rng.fork("start", number))
            yield self._refined(wanted, span, start)

    def _refined(self, wanted: Equations, span: Span | None, start: Tensor) -> Tensor:
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
        wanted: Equations,
        span: Span | None,
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
        values, scaled = with_lengths(head, wanted, best, observation)
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
    head: TwoLayerHead, wanted: Equations, span: Span | None, people: int
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
