"""Features of an ordinary classifier, where there are fewer people than classes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.feature_recovery.classifier import classified, layer_of, missing
from seepage.attacks.feature_recovery.dense_least_squares import least_squares
from seepage.attacks.feature_recovery.exact import NotToldApartWarning
from seepage.attacks.feature_recovery.features import Features
from seepage.attacks.feature_recovery.reconstruction import reconstructed
from seepage.attacks.feature_recovery.softmax_equations import SoftmaxEquations
from seepage.attacks.labels.head import Head, classifier_head
from seepage.attacks.linear_systems.input_layer import input_readers
from seepage.attacks.usable import require_usable
from seepage.core import Observation, Reconstruction, Rng, Task
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.precision import precision
from seepage.core.progress import report
from seepage.core.rng import require_key

# What rounding leaves of the largest singular value.
_ROUNDING = {True: 4e-7, False: 1e-12}
# What is left of columns of length one, by root mean square: where everybody was told apart, and
# where noise or a dead end leaves more. Starts that reach the same noise differ by less than that.
_EXPLAINED, _LEFT, _SETTLED = 3e-6, 1e-3, 1e-3
# Noise leaves this many times more of the equations than of the span, at most.
_BLURRED = 10
# The share of entries that may be missing.
_MISSING = 0.25
# How far starts spread from the logits of noise.
_SPREADS = (0.1, 0.3, 1.0)


@dataclass(frozen=True, kw_only=True)
class SoftmaxFeatures:
    """Recovers what the last layer of a classifier reads, from the gradient of that layer.

        dL/dA = a sum_i r_i u_i^T,   r_i = softmax(A u_i + b) - e_{y_i}

    The features u_i lie in the span of the rows, and r_i is known as soon as u_i is. For B people
    in K classes these are (K - 1) B equations in B^2 unknowns: enough while B < K, and the more to
    spare the smaller B is.
    Labels may repeat. Nothing is asked of the network below: every classifier that ends in a linear
    layer and a softmax gives its features away like this.

    Args:
        steps: Of least squares, from each start.
        starts: At most; more are tried only while the equations do not hold.

    References:
        Huang et al., 2021, Lemma B.1 (huang2021evaluating), for the span. The method is ours.
    """

    steps: int = 200
    starts: int = 24

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("steps", "starts"):
            if getattr(self, name) < 1:
                raise InvalidValue(f"expected {name} >= 1, got {getattr(self, name)!r}")

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features, in the order of the labels."""
        require_key(rng)
        head, labels = classified(observation, needed_by="softmax_features")
        with precision("float32"):
            wanted, basis, noise = _equations(head, observation, labels)
            best, left = self._best(wanted, head, rng)
        mixed, _ = wanted.split(best)
        dtype = next(iter(observation.task.parameters.values())).dtype
        layer = layer_of(head)
        if left > _LEFT:
            warnings.warn(
                f"not all of {len(labels)} people were told apart: their features leave "
                f"{left:.2g} of the gradient of {layer!r} unexplained; more starts may find the "
                "others, and noise or local steps hide them",
                NotToldApartWarning,
                stacklevel=2,
            )
        told_apart = left <= max(_LEFT, _BLURRED * noise)
        values = (mixed @ basis.T).to(dtype)
        return Features(
            layer, values, basis.to(dtype), True, left, told_apart=told_apart, in_order=True
        )

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """The inputs, where the classifier reads them: multinomial logistic regression."""
        require_key(rng)
        began = time.perf_counter()
        require_usable(observation.update, observation.task)
        require_input_at_the_end(observation.task)
        features = self.recover(observation, rng=rng)
        assert observation.labels is not None
        return reconstructed(observation, features, observation.labels, began)

    def _best(self, wanted: SoftmaxEquations, head: Head, rng: Rng) -> tuple[Tensor, float]:
        best, least = None, float("inf")
        for number, start in enumerate(self._starts(wanted, head, rng)):
            found, value = least_squares(wanted, start, steps=self.steps)
            left = (value / (len(wanted.labels) + 1)) ** 0.5
            settled = left > _LEFT and abs(left - least) < _SETTLED * least
            if left < least:
                best, least = found, left
            report(number + 1, self.starts, least)
            if least < _EXPLAINED or settled:
                break
        assert best is not None
        return best, least

    def _starts(self, wanted: SoftmaxEquations, head: Head, rng: Rng) -> Iterator[Tensor]:
        usual = head.logits.to(wanted.wanted).mean(0)
        for number in range(self.starts):
            key = rng.fork("start", number)
            drawn = key.normal(tuple(wanted.labels.shape), like=wanted.labels)
            yield wanted.start(usual + _SPREADS[number % len(_SPREADS)] * drawn)


def require_input_at_the_end(task: Task) -> None:
    """Raise `NotApplicable` unless the classifier reads the input itself."""
    layer = layer_of(classifier_head(task))
    if layer not in input_readers(task):
        raise NotApplicable(
            f"{layer!r} of {task.name} reads features and not the input; use recover(...) for the "
            "features, or teacher_forced(features=...) for the images"
        )


def _equations(
    head: Head, observation: Observation, labels: Tensor
) -> tuple[SoftmaxEquations, Tensor, float]:
    """The equations of the last layer, the span of the features, and what lies beside it."""
    gradient, tensors = observation.update.descent().tensors, observation.task.parameters
    seen = gradient[head.weight].double()
    people, classes = labels.shape
    if people > min(classes - 1, seen.shape[1]):
        raise NotApplicable(
            f"{people} people in {classes} classes, of whom the last layer reads {seen.shape[1]} "
            f"numbers, cannot be told apart; at most {min(classes - 1, seen.shape[1])} can"
        )
    # A few may be accidents, of classes that the network rules out.
    if float(missing(seen).double().mean()) > _MISSING:
        raise NotApplicable(
            f"entries of the gradient of {head.weight!r} are missing, as behind pruning or "
            "dropout; use likely_features, which estimates features from the others"
        )
    _, values, right = torch.linalg.svd(seen.cpu(), full_matrices=False)
    single = torch.equal(seen.float().double(), seen)
    if not values[people - 1] > _ROUNDING[single] * values[0]:
        raise NotApplicable(
            f"the gradient of {head.weight!r} has a rank below {people}, the number of people: "
            "some features are equal, or the network is so sure of some people that their gradient "
            "is lost in rounding"
        )
    basis = right[:people].T.to(seen)
    offset = (tensors[head.bias] if head.bias is not None else head.offset).double()
    bias = None if head.bias is None else gradient[head.bias].double()
    if bias is not None and not bool(bias.any()):  # a defense took it away
        bias = None
    weight = tensors[head.weight].double()
    wanted = SoftmaxEquations(weight @ basis, offset, labels.to(seen), seen @ basis, bias)
    beside = float(values[people]) if people < len(values) else 0.0
    return wanted, basis, beside / float(values[people - 1])
