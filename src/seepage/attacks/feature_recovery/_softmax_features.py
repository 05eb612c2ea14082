"""Features of an ordinary classifier, if the batch has fewer examples than classes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seepage.attacks._applicability import applies_to, require_several
from seepage.attacks.feature_recovery._features import (
    Features,
    NotToldApartWarning,
    find_missing,
    guess_inputs,
    read_classifier,
)
from seepage.attacks.labels._infer_labels import recover_labels
from seepage.attacks.labels._label_evidence import require_classes
from seepage.core import BaseAttack, Observation, Reconstruction, Rng, Task
from seepage.core._device import precision
from seepage.core._progress import report
from seepage.core._rng import require_key
from seepage.core.errors import NotApplicable, require_at_least
from seepage.numerics._least_squares import least_squares
from seepage.probing._first_layer import input_readers
from seepage.probing._heads import Head, classifier_head

# Rounding relative to the largest singular value: in single precision, and in double.
_ROUNDING = {True: 4e-7, False: 1e-12}
# Root mean square residual of columns of length one: all examples are told apart below the first
# value, and noise or a dead end leaves more than the second. Starts whose residuals differ by less
# than the third have reached the same noise.
_EXPLAINED, _LEFT, _SETTLED = 3e-6, 1e-3, 1e-3
# Noise leaves at most this many times more of the equations than of the span.
_BLURRED = 10
# The share of entries that may be missing.
_MISSING = 0.25
# How far starts spread from the logits of noise.
_SPREADS = (0.1, 0.3, 1.0)


@dataclass(frozen=True, eq=False)
class _SoftmaxEquations:
    """a R^T U = dL/dA and a R^T 1 = dL/db, where R = softmax(U A^T + b) - Y.

    With fewer examples than classes, the rows of dL/dA span the features U, so U = M V^T with an
    orthonormal basis V of that span. The unknowns are M `(B, B)` and the scale a, which is one over
    the batch size unless the update was rescaled. There are K - 1 independent equations for each of
    the B columns, and as many for the bias.

    Every column is divided by its length. The last columns, in which examples of one label differ,
    are small and would otherwise be taken for rounding.

    Args:
        weight: A V, `(K, B)`.
        offset: b, `(K,)`.
        labels: Y, `(B, K)`, in the order of the features.
        wanted: dL/dA V, `(K, B)`.
        bias: dL/db, `(K,)`; None if the update does not hold it.
    """

    weight: Tensor
    offset: Tensor
    labels: Tensor
    wanted: Tensor
    bias: Tensor | None

    def __call__(self, unknowns: Tensor) -> Tensor:
        """The residual of every equation; the unknowns are M, row by row, and log a."""
        mixed, scale = self.split(unknowns)
        shares = self._probabilities(mixed) - self.labels
        left = [(scale * shares.T @ mixed - self.wanted) / self._lengths]
        if self.bias is not None:
            left.append((scale * shares.sum(0) - self.bias)[:, None] / self.bias.norm())
        return torch.cat([part.flatten() for part in left])

    def derivative(self, unknowns: Tensor) -> Tensor:
        """The derivative of every equation by every unknown."""
        mixed, scale = self.split(unknowns)
        probabilities = self._probabilities(mixed)
        shares = probabilities - self.labels
        # By M_ic of R_ik, (B, K, B).
        averages = (probabilities @ self.weight)[:, None, :]
        turned = probabilities[:, :, None] * (self.weight - averages)
        identity = torch.eye(len(mixed), dtype=mixed.dtype, device=mixed.device)
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
        """The best unknowns for given logits `(B, K)`."""
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
        size = len(self.labels)
        return unknowns[:-1].reshape(size, size), unknowns[-1].exp()

    def _probabilities(self, mixed: Tensor) -> Tensor:
        """softmax(M (A V)^T + b), `(B, K)`."""
        return torch.softmax(mixed @ self.weight.T + self.offset, 1)

    @cached_property
    def _lengths(self) -> Tensor:
        lengths: Tensor = self.wanted.norm(dim=0)
        return lengths


@dataclass(frozen=True, kw_only=True)
class SoftmaxFeatures(BaseAttack):
    """Recovers what the last layer of a classifier reads; see `softmax_features`.

        dL/dA = a sum_i r_i u_i^T,   r_i = softmax(A u_i + b) - e_{y_i}

    The features u_i lie in the span of the rows, and u_i determines r_i. For B examples in K
    classes these are (K - 1) B equations in B^2 unknowns: enough if B < K, with more to spare for
    smaller B. Labels may repeat. The network below does not matter: every classifier that ends in a
    linear layer and a softmax gives its features away like this.
    """

    steps: int = 200
    starts: int = 24

    def __post_init__(self) -> None:
        require_at_least(1, steps=self.steps, starts=self.starts)

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features, in the order of the labels."""
        require_key(rng)
        head, labels = read_classifier(observation, needed_by="softmax_features")
        with precision("float32"):
            wanted, basis, noise = _read_equations(head, observation, labels)
            best, left = self._solve(wanted, head, rng)
        mixed, _ = wanted.split(best)
        dtype = observation.task.reference.dtype
        layer = head.layer
        if left > _LEFT:
            several = f"not all of {len(labels)} examples were told apart"
            warnings.warn(
                f"{several if len(labels) > 1 else 'no exact match'}: the features found leave "
                f"{left:.2g} of the gradient of {layer!r} unexplained; more starts may find more, "
                "unless noise or local steps hide it",
                NotToldApartWarning,
                stacklevel=2,
            )
        told_apart = left <= max(_LEFT, _BLURRED * noise)
        values = (mixed @ basis.T).to(dtype)
        return Features(
            layer, values, basis.to(dtype), True, left, told_apart=told_apart, in_order=True
        )

    # Its equations contain them.
    needs_labels = True

    def check(self, observation: Observation) -> None:
        """The targets are classes, and the classifier reads the input itself."""
        require_classes(observation.task)
        _require_input_at_the_end(observation.task)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Recover the inputs, if the classifier reads them: multinomial logistic regression."""
        features = self.recover(observation, rng=rng)
        return guess_inputs(observation, features, observation.require_labels("softmax_features"))

    def _solve(self, wanted: _SoftmaxEquations, head: Head, rng: Rng) -> tuple[Tensor, float]:
        best, least = None, float("inf")
        usual = head.logits.to(wanted.wanted).mean(0)
        for number in range(self.starts):
            key = rng.fork("start", number)
            drawn = key.normal(tuple(wanted.labels.shape), like=wanted.labels)
            start = wanted.start(usual + _SPREADS[number % len(_SPREADS)] * drawn)
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


def _require_input_at_the_end(task: Task) -> None:
    """Raise `NotApplicable` unless the classifier reads the input itself."""
    layer = classifier_head(task).layer
    if layer not in input_readers(task):
        raise NotApplicable(
            f"{layer!r} of {task.name} reads features and not the input; use recover(...) for the "
            "features, or teacher_forced(features=...) for the images"
        )


def _read_equations(
    head: Head, observation: Observation, labels: Tensor
) -> tuple[_SoftmaxEquations, Tensor, float]:
    """The equations of the last layer, the span of the features, and the noise outside it."""
    gradient, tensors = observation.update.descent().tensors, observation.task.parameters
    seen = gradient[head.weight].double()
    size, classes = labels.shape
    if size > min(classes - 1, seen.shape[1]):
        raise NotApplicable(
            f"{size} examples in {classes} classes with {seen.shape[1]} features each cannot be "
            f"told apart; at most {min(classes - 1, seen.shape[1])} can"
        )
    # A few zeros may be accidents, of classes that the network rules out.
    if float(find_missing(seen).double().mean()) > _MISSING:
        raise NotApplicable(
            f"entries of the gradient of {head.weight!r} are missing, as after pruning or "
            "dropout; use estimated_features, which estimates features from the others"
        )
    _, values, right = torch.linalg.svd(seen.cpu(), full_matrices=False)
    single = torch.equal(seen.float().double(), seen)
    if not values[size - 1] > _ROUNDING[single] * values[0]:
        raise NotApplicable(
            f"the gradient of {head.weight!r} has a rank below {size}, the number of examples: "
            "some features are equal, or the network is so sure of some examples that their "
            "gradient is lost in rounding"
        )
    basis = right[:size].T.to(seen)
    offset = (tensors[head.bias] if head.bias is not None else head.offset).double()
    bias = None if head.bias is None else gradient[head.bias].double()
    if bias is not None and not bool(bias.any()):  # a defense removed it
        bias = None
    weight = tensors[head.weight].double()
    wanted = _SoftmaxEquations(weight @ basis, offset, labels.to(seen), seen @ basis, bias)
    beside = float(values[size]) if size < len(values) else 0.0
    return wanted, basis, beside / float(values[size - 1])


def _require_fewer_inputs_than_classes(observation: Observation) -> None:
    require_several(observation)
    require_classes(observation.task)
    _require_input_at_the_end(observation.task)
    if len(recover_labels(observation)) >= observation.task.classes:
        raise NotApplicable("there are as many examples as classes, or more")


@applies_to(require=_require_fewer_inputs_than_classes, needs_labels=True)
def softmax_features(*, steps: int = 200, starts: int = 24) -> SoftmaxFeatures:
    """Recover what the last layer of a classifier reads, for fewer examples than classes.

    As an attack it returns inputs if that layer reads them, as in logistic regression; `recover`
    gives the features of any network that ends in a linear layer and a softmax.

    Args:
        steps: Steps of least squares from each start.
        starts: Largest number of starts; more are tried only while the equations do not hold.

    Example:
        >>> softmax_features(starts=5).starts
        5

    References:
        Huang et al., 2021, Lemma B.1 (huang2021evaluating), for the span; the method is ours
    """
    return SoftmaxFeatures(steps=steps, starts=starts)
