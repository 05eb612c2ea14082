"""What feature recovery reads and finds: the last layer, and the inputs of one layer."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.attacks._agreement import residual
from seepage.attacks.labels._label_evidence import require_classes
from seepage.core import Certificate, Observation, Reconstruction, Rng, Trace
from seepage.core._usable_update import require_continuous, require_usable
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.probing._heads import Head, classifier_head


class NotToldApartWarning(UserWarning):
    """The span of the features is exact, but some example in it was not found."""


@dataclass(frozen=True, eq=False)
class Features:
    """Inputs of one fully connected layer, as far as an update gives them away.

    Args:
        layer: Name of the layer, as in `named_modules`.
        values: `(B, d)`, one row for each input, in no particular order unless `in_order`.
        span: `(d, k)`, orthonormal columns that span the inputs, even if not all were told apart.
        scaled: Whether the rows have their true length and sign, or only a direction.
        residual: Relative difference between what the features explain and what was observed.
        told_apart: Whether only noise is left unexplained. Otherwise some features may be wrong.
        in_order: Whether feature i belongs to an input with the i-th known label.
    """

    layer: str
    values: Tensor
    span: Tensor
    scaled: bool
    residual: float
    told_apart: bool = True
    in_order: bool = False


@runtime_checkable
class FeatureRecovery(Protocol):
    """A method that finds the inputs of a layer in an update."""

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features."""


@dataclass(frozen=True)
class Fallback:
    """Tries methods in turn and takes the first whose features explain the update.

    If none explains it up to rounding, the one with the smallest residual is taken. A method may
    apply to a head although its equations are nearly singular there, and wrong features mislead
    more than none.

    Args:
        methods: In the order in which they are tried.
        enough: Relative residual below which the other methods are not tried.

    Example:
        >>> from seepage.attacks.feature_recovery import exact_features, softmax_features
        >>> len(Fallback((exact_features(), softmax_features())).methods)
        2
    """

    methods: tuple[FeatureRecovery, ...]
    enough: float = field(default=1e-6, kw_only=True)

    def __post_init__(self) -> None:
        if not self.methods:
            raise InvalidValue("expected one method or more, got none")

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features.

        Raises:
            NotApplicable: No method applies; the message gives all reasons.
        """
        reasons: list[str] = []
        best, heard = None, []
        for method in self.methods:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    found = method.recover(observation, rng=rng)
                except NotApplicable as reason:
                    reasons.append(f"{type(method).__name__}: {reason}")
                    continue
            if not (found.values.isfinite().all() and math.isfinite(found.residual)):
                reasons.append(f"{type(method).__name__}: its equations have no finite solution")
                continue
            if best is None or found.residual < best.residual:
                best, heard = found, said
            if best.residual < self.enough:
                break
        if best is None:
            raise NotApplicable("; ".join(reasons))
        # Warnings of the other methods do not concern these features.
        for warning in heard:
            warnings.warn(warning.message, stacklevel=2)
        return best


def guess_inputs(observation: Observation, features: Features, labels: Tensor) -> Reconstruction:
    """Turn features that are normalised inputs, in the order of the labels, into a guess."""
    inputs, left = observation.task.to_inputs(features.values), (features.residual,)
    certificate = Certificate(residual(observation, inputs, labels))
    return Reconstruction(inputs, labels, Trace(left, left), certificate)


def read_classifier(observation: Observation, *, needed_by: str) -> tuple[Head, Tensor]:
    """Find the last layer, and the known labels as probabilities `(B, K)`.

    Raises:
        MissingKnowledge: Labels are unknown.
        NotApplicable: There is no such layer, or the loss is not its cross-entropy.
    """
    task = observation.task
    require_usable(observation.update, task)
    require_continuous(task)
    require_classes(task)
    labels = observation.require_labels(needed_by)
    probabilities = one_hot(labels, task.classes) if labels.ndim == 1 else labels
    # Recognise cross-entropy by its gradient for the labels of the batch.
    shape = len(labels), task.classes
    logits = Rng(0).fork("logits").normal(shape, like=task.reference).requires_grad_()
    (found,) = torch.autograd.grad(task.loss(logits, labels).sum(), logits)
    expected = (logits.softmax(1) - probabilities).to(found)
    if not torch.allclose(found, expected, atol=1e-2 if found.itemsize < 4 else 1e-4):
        raise NotApplicable(
            f"{needed_by} reads the gradient of cross-entropy, and the loss of {task.name} "
            "has another one; use systematic without features"
        )
    return classifier_head(task), probabilities


def find_missing(gradient: Tensor) -> Tensor:
    """Which entries of the last layer's gradient a defense removed, `(K, d)`.

    An entry is a sum of products of features and softmax shares, and shares are hardly ever zero.
    So a column of zeros may be that of a dead feature, but any other zero was set by a defense. If
    there are such zeros, the columns of zeros may have been set by it as well.
    """
    there = gradient != 0
    return ~there & bool((~there & there.any(0)).any())
