"""Count labels with one prototype per class; exact if inputs of a class have equal features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.labels.label_evidence import Evidence


def nearest_counts(estimate: Tensor, total: int) -> Tensor:
    """The non-negative integers with this sum that are nearest to an estimate, `(K,)`.

        argmin ||n - estimate||^2   over   n in {0, 1, ...}^K, sum n = total

    Each unit is added or taken where it costs least, which is optimal for a separable convex
    cost. Of equal choices the first class is taken.

    Example:
        >>> nearest_counts(torch.tensor([1.6, -0.3, 0.7]), 2).tolist()
        [1, 0, 1]
    """
    counts = estimate.clamp_min(0).round()
    while counts.sum() > total:
        cost = torch.where(counts > 0, estimate - counts, torch.inf)
        counts[cost.argmin()] -= 1
    while counts.sum() < total:
        counts[(counts - estimate).argmin()] += 1
    return counts.long()


ITERATIONS = 30
PRESENT = 0.3
CLOSE, CONFIDENT = 0.1, 0.3


@dataclass(frozen=True, eq=False)
class Prototypes:
    """Estimated counts, and two numbers to judge them by.

    Args:
        counts: Of each class, not whole, `(K,)`.
        misfit: Relative difference between the observed gradient and the prototypes'.
        confidence: What the network gives its prototypes' own classes, on average. Near one,
            people hardly move the gradient and any number of them would fit.
    """

    counts: Tensor
    misfit: float
    confidence: float

    @property
    def explained(self) -> bool:
        """Whether the prototypes fit, and are not so well known that any number of them would."""
        return self.misfit < CLOSE and self.confidence < CONFIDENT


def fit_prototypes(evidence: Evidence, size: int) -> Prototypes:
    """Solve for the counts n_k and one feature vector h_k per class.

        n_k     = sum_c n_c p_ck     - B dL/db_k
        n_k h_k = sum_c n_c p_ck h_c - B dL/dW_k,      p_c = softmax(W h_c)

    by damped iteration from the one feature vector that explains the gradient best. The equations
    are exact if people of one class share their features, and contract while the softmax is far
    from its corners.

    Args:
        evidence: In units of a mean gradient.
        size: Number B of people.

    Deviations:
        The paper reads h_k off one row, dL/dW_k / dL/db_k, which mixes in everybody else's
        features by their p_k; here that part is taken off, which duplicates need.

    References:
        Ma et al., 2023 (ma2023instance)
    """
    features = evidence.centre.repeat(evidence.classes, 1)
    estimate = size * (evidence.predictions(evidence.centre) - evidence.signal)
    counts = _normalised(estimate, size)
    for _ in range(ITERATIONS):
        predictions = evidence.predictions(features)
        estimate = predictions.T @ counts - size * evidence.signal
        sums = predictions.T @ (counts[:, None] * features) - size * evidence.gradient
        present = estimate > PRESENT
        own = torch.where(present[:, None], sums / estimate[:, None], features)
        features = (features + own) / 2
        counts = (counts + _normalised(estimate, size)) / 2
    return _judged(evidence, size, estimate, features)


def _judged(evidence: Evidence, size: int, estimate: Tensor, features: Tensor) -> Prototypes:
    counts = nearest_counts(estimate, size).to(estimate)
    predictions = evidence.predictions(features)
    residuals = predictions - torch.eye(evidence.classes, dtype=predictions.dtype)
    explained = residuals.T @ (counts[:, None] * features) / size
    difference = (explained - evidence.gradient).norm() / evidence.gradient.norm()
    confidence = predictions.diagonal() @ counts / size
    return Prototypes(estimate, float(difference), float(confidence))


def _normalised(estimate: Tensor, size: int) -> Tensor:
    """The estimate without what is too small to be a person, scaled to the right total."""
    kept = torch.where(estimate > PRESENT, estimate, 0.0)
    if not bool(kept.any()):
        kept = torch.softmax(estimate, dim=0)
    return kept * size / kept.sum()
