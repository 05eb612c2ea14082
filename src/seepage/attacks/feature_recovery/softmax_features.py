"""Features of an ordinary classifier, where there are fewer people than classes."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.attacks.applicability import applies_to, require_several
from seepage.attacks.exact_batch.span_factors import require_at_least_one
from seepage.attacks.feature_recovery.features import (
    Features,
    NotToldApartWarning,
    make_reconstruction,
)
from seepage.attacks.labels.infer_labels import recover_labels
from seepage.core import Observation, Reconstruction, Rng, Task
from seepage.core.device import precision
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.core.progress import report
from seepage.core.rng import require_key
from seepage.numerics.least_squares import least_squares
from seepage.probing.first_layer import input_readers
from seepage.probing.heads import Head, classifier_head
from seepage.probing.usable_update import require_continuous, require_usable


@dataclass(frozen=True, eq=False)
class SoftmaxEquations:
    """a R^T U = dL/dA and a R^T 1 = dL/db, where R = softmax(U A^T + b) - Y.

    The rows of dL/dA span the features U as long as there are fewer people than classes, so with
    an orthonormal basis V of that span U = M V^T. The unknowns are M `(B, B)` and the scale a, one
    over the batch size unless something scaled the update; there are K - 1 independent equations
    for each of the B columns, and as many for the bias.

    Every column is divided by its length: the last ones, in which people of one label differ, are
    small, and would be taken for rounding.

    Args:
        weight: A V, `(K, B)`.
        offset: b, `(K,)`.
        labels: Y, `(B, K)`, in the order of the features.
        wanted: dL/dA V, `(K, B)`.
        bias: dL/db, `(K,)`; None where the update does not hold it.
    """

    weight: Tensor
    offset: Tensor
    labels: Tensor
    wanted: Tensor
    bias: Tensor | None

    def __call__(self, unknowns: Tensor) -> Tensor:
        """What is left of every equation; unknowns are M, row by row, and log a."""
        mixed, scale = self.split(unknowns)
        shares = self.chances(mixed) - self.labels
        left = [(scale * shares.T @ mixed - self.wanted) / self._lengths]
        if self.bias is not None:
            left.append((scale * shares.sum(0) - self.bias)[:, None] / self.bias.norm())
        return torch.cat([part.flatten() for part in left])

    def derivative(self, unknowns: Tensor) -> Tensor:
        """Of every equation by every unknown."""
        mixed, scale = self.split(unknowns)
        chances = self.chances(mixed)
        shares, people = chances - self.labels, len(mixed)
        # By M_ic of R_ik, (B, K, B).
        turned = chances[:, :, None] * (self.weight - (chances @ self.weight)[:, None, :])
        identity = torch.eye(people, dtype=mixed.dtype, device=mixed.device)
        products = torch.einsum("ikc,ia->kaic", turned, mixed)
        products += torch.einsum("ik,ac->kaic", shares, identity)
        by_mixed = scale * products / self._lengths[:, None, None]
        by_scale = scale * shares.T @ mixed / self._lengths
        rows = [torch.cat([by_mixed.flatten(2), by_scale[..., None]], 2).flatten(0, 1)]
        if self.bias is not None:
            sums = turned.transpose(0, 1).flatten(1), shares.sum(0)[:, None]
            rows.append(scale * torch.cat(sums, 1) / self.bias.norm())
        return torch.cat(rows)

    def start(self, logits: Tensor) -> Tensor:
        """The unknowns that explain most if these were the logits, `(B, K)`."""
        shares = torch.softmax(logits, 1) - self.labels
        scale = torch.as_tensor(1 / len(shares)).to(shares)
        if self.bias is not None:
            total = shares.sum(0)
            fitted = total @ self.bias / total.square().sum()
            scale = fitted if float(fitted) > 0 else scale
        mixed = torch.linalg.pinv(scale * shares.T) @ self.wanted
        return torch.cat([mixed.flatten(), scale.log()[None]])

    def split(self, unknowns: Tensor) -> tuple[Tensor, Tensor]:
        """M and a."""
        people = self.labels.shape[0]
        return unknowns[:-1].reshape(people, people), unknowns[-1].exp()

    def chances(self, mixed: Tensor) -> Tensor:
        """softmax(M (A V)^T + b), `(B, K)`."""
        return torch.softmax(mixed @ self.weight.T + self.offset, 1)

    @cached_property
    def _lengths(self) -> Tensor:
        lengths: Tensor = self.wanted.norm(dim=0)
        return lengths


def layer_name(head: Head) -> str:
    """The name of the last layer, as `named_modules` spells it."""
    return head.weight.removesuffix("weight").removesuffix(".")


def read_classifier(observation: Observation, *, needed_by: str) -> tuple[Head, Tensor]:
    """The last layer, and the known labels as probabilities `(B, K)`.

    Raises:
        MissingKnowledge: Labels are unknown.
        NotApplicable: There is no such layer, or the loss is not its cross-entropy.
    """
    require_usable(observation.update, observation.task)
    require_continuous(observation.task)
    labels = _probabilities(observation, needed_by)
    _require_softmax(observation, labels, needed_by)
    return classifier_head(observation.task), labels


def find_missing(gradient: Tensor) -> Tensor:
    """Which entries of the last layer's gradient a defense has taken away, `(K, d)`.

    Entries are products of features and of softmax shares, and shares hardly vanish, so that a
    column of zeros may be that of a dead feature. Any other zero was put there, and then columns
    of zeros may have been put there as well.
    """
    there = gradient != 0
    return ~there & bool((~there & there.any(0)).any())


def _probabilities(observation: Observation, needed_by: str) -> Tensor:
    labels = observation.labels
    if labels is None:
        raise MissingKnowledge(
            "labels",
            needed_by=needed_by,
            hint="use knows_labels=True, or InferLabels to recover them",
        )
    return one_hot(labels, observation.task.classes) if labels.ndim == 1 else labels


def _require_softmax(observation: Observation, labels: Tensor, needed_by: str) -> None:
    """Refuse another loss than cross-entropy, told by its gradient for the labels of the batch."""
    task, known = observation.task, observation.labels
    assert known is not None
    reference = next(iter(task.parameters.values()))
    shape = len(labels), task.classes
    logits = Rng(0).fork("logits").normal(shape, like=reference).requires_grad_()
    (found,) = torch.autograd.grad(task.loss(logits, known).sum(), logits)
    expected = logits.softmax(1) - labels
    if not torch.allclose(found, expected.to(found), atol=1e-2 if found.itemsize < 4 else 1e-4):
        raise NotApplicable(
            f"{needed_by} reads the gradient of cross-entropy, and the loss of {task.name} "
            "has another one; use systematic without features"
        )


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
        require_at_least_one(steps=self.steps, starts=self.starts)

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features, in the order of the labels."""
        require_key(rng)
        head, labels = read_classifier(observation, needed_by="softmax_features")
        with precision("float32"):
            wanted, basis, noise = _equations(head, observation, labels)
            best, left = self._best(wanted, head, rng)
        mixed, _ = wanted.split(best)
        dtype = next(iter(observation.task.parameters.values())).dtype
        layer = layer_name(head)
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
        _require_input_at_the_end(observation.task)
        features = self.recover(observation, rng=rng)
        assert observation.labels is not None
        return make_reconstruction(observation, features, observation.labels, began)

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


def _require_input_at_the_end(task: Task) -> None:
    """Raise `NotApplicable` unless the classifier reads the input itself."""
    layer = layer_name(classifier_head(task))
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
    if float(find_missing(seen).double().mean()) > _MISSING:
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


def _require_fewer_inputs_than_classes(observation: Observation) -> None:
    require_several(observation)
    _require_input_at_the_end(observation.task)
    if len(recover_labels(observation)) >= observation.task.classes:
        raise NotApplicable("there are as many people as classes, or more")


@applies_to(require=_require_fewer_inputs_than_classes, needs_labels=True)
def softmax_features(*, steps: int = 200, starts: int = 24) -> SoftmaxFeatures:
    """What the last layer of an ordinary classifier reads, for fewer people than classes.

    As an attack it returns inputs where that layer reads them, as in logistic regression;
    `recover` gives the features of any network that ends in a linear layer and a softmax.

    Args:
        steps: Of least squares, from each start.
        starts: Of least squares, at most.

    Example:
        >>> softmax_features(starts=5).starts
        5

    References:
        Huang et al., 2021, Lemma B.1 (huang2021evaluating), for the span; the method is ours
    """
    return SoftmaxFeatures(steps=steps, starts=starts)
