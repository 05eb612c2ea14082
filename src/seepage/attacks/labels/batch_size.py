"""How many people are in the batch, where the update gives it away."""

from __future__ import annotations

from collections.abc import Callable
from math import log2

from seepage.attacks.labels.equations import visible_people, write_equations
from seepage.attacks.labels.evidence import Evidence, read_evidence
from seepage.attacks.labels.gain import EXACT, measure_gain
from seepage.attacks.labels.peeling import peel
from seepage.attacks.labels.prototypes import fit_prototypes
from seepage.core import Observation

WHOLE = 0.15

Scaled = Callable[[int], Evidence]


def estimate_batch_size(observation: Observation, *, limit: int = 64) -> int | None:
    """Size of the batch from the update alone, or None if it cannot be told.

    The rank of the head's gradient is the number of people who are visible, while it is below
    K - 1. It is returned if that many people explain the gradient: as prototypes with counts that
    are nearly whole, or peeled off one by one to the last digit.

    Otherwise: a mean gradient holds the shares n_k / B of the classes, which are fractions with
    the denominator B. The smallest size for which every estimated count is nearly whole is
    returned, if all other such sizes are its multiples, its double is one of them and the rank
    does not exceed it. So a batch whose counts share a factor is taken for a smaller one.

    Needs a trained bias, without which the lengths of features are not known, and a client whose
    update is proportional to a gradient within 2 %.

    Args:
        observation: What the adversary sees; a batch size in it is not used.
        limit: Largest size to consider.
    """
    evidence = read_evidence(observation)
    scaled = _scaling(observation, evidence)
    if scaled is None:
        return None
    visible = visible_people(scaled(1))
    if visible < evidence.classes - 1 and _explained(scaled(visible), visible):
        return visible
    sizes = [size for size in range(1, limit + 1) if _whole(scaled(size), size)]
    if not sizes or sizes[0] < visible or any(size % sizes[0] for size in sizes):
        return None
    return sizes[0] if 2 * sizes[0] in sizes else None


def _scaling(observation: Observation, evidence: Evidence) -> Scaled | None:
    """The evidence in units of a mean gradient, for any size."""
    if not evidence.biased:
        return None
    two, four = measure_gain(observation, 2), measure_gain(observation, 4)
    if max(two.error, four.error) > EXACT:
        return None
    # A mean does not grow with the batch, and a sum grows in proportion.
    power = log2(four.factor / two.factor)
    return lambda size: evidence.divided_by(two.factor * (size / 2) ** power)


def _explained(evidence: Evidence, size: int) -> bool:
    return _whole(evidence, size) or peel(write_equations(evidence, size), limit=size).solved


def _whole(evidence: Evidence, size: int) -> bool:
    fit = fit_prototypes(evidence, size)
    distance = (fit.counts - fit.counts.round()).abs().max()
    return fit.explained and float(distance) < WHOLE
