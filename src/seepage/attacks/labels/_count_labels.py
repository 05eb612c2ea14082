"""Count the labels of a batch, and its examples, from the gradient of the classifier head."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from seepage.attacks.labels._label_evidence import (
    EXACT,
    Evidence,
    measure_gain,
    read_evidence,
    reads_classes,
)
from seepage.attacks.labels._peel_examples import count_visible, peel_examples, write_equations
from seepage.core import Observation, Rng, Update
from seepage.core.errors import NotApplicable
from seepage.numerics._row_span import main_direction

_WHOLE = 0.15
_ITERATIONS = 30
_PRESENT = 0.3
_CLOSE, _CONFIDENT = 0.1, 0.3
# Of simulated updates of each class: inputs in each, entries that are compared, and classes.
_DUMMIES, _ENTRIES, _MOST_CLASSES = 16, 2**16, 128


def count_classes(observation: Observation) -> Tensor:
    """Estimated number of examples of each class, `(K,)`, with the batch size as their sum.

    A single example has the class whose bias gradient is lowest. Without a bias, and with features
    of both signs, it is the class whose row is opposed to all others; of two classes both are, and
    features like those of noise decide. For more examples, from the strongest evidence to the
    weakest:

    1. Prototypes, one feature vector per class, if they explain the gradient. They do while the
       network is untrained.
    2. Examples peeled off one by one, while fewer than K - 1 are visible: mostly right for few
       examples, whatever the network. Without a bias only if they explain everything.
    3. n = B (1/K - dL/db) for all other examples, as if the network predicted every class equally
       often. For a large batch and a trained network this is the whole answer, and little better
       than assuming that all classes are equally frequent: examples that the network knows well
       leave no trace in the update.

    Counts, unlike signs, need the scale of the update, which is measured on a simulation. They are
    wrong where the simulation misleads: behind clipping that the adversary does not know, and after
    local steps so large that the update is far from proportional to a gradient.

    Where no head holds the labels, as behind a softmax or another loss, the update is compared with
    simulated ones of each class: mostly right for one example, and for several of an untrained
    network.

    Raises:
        MissingKnowledge: The batch size is not known.
        NotApplicable: Targets are no classes, or too many to simulate.
    """
    size = observation.require_batch_size("counting labels")
    try:
        held = read_evidence(observation)
    except NotApplicable as reason:
        return _match_classes(observation, size, reason)
    evidence = measure_gain(observation, size).undo(held)
    if size == 1:
        return one_hot(_read_one(evidence), evidence.classes)
    counts, explained = _fit_prototypes(evidence, size)
    return _round_counts(counts, size) if explained else _count_by_peeling(evidence, size)


def _read_one(evidence: Evidence) -> Tensor:
    """The class of a single example, from the rows (p_k - 1[k = y]) h^T.

    Along h all rows but that of the class have one sign. So of both directions the right one leaves
    no entry on the wrong side but one. Where rounding of weights hides that, the signal decides.
    """
    if evidence.oriented or evidence.classes == 2:
        return evidence.signal.argmin()
    largest = float(evidence.gradient.abs().max())
    rows = evidence.gradient / largest
    each = rows @ main_direction(rows)
    left, right = (_sum_negative(shares) for shares in (each, -each))
    if abs(left - right) <= evidence.rounding / largest * math.sqrt(rows.numel()):
        return evidence.signal.argmin()
    return each.argmin() if left < right else each.argmax()


def _sum_negative(shares: Tensor) -> float:
    """The sum of all negative entries but the lowest, without their sign."""
    below = (-shares).clamp_min(0)
    return float(below.sum() - below.max())


def _match_classes(observation: Observation, size: int, reason: NotApplicable) -> Tensor:
    """Counts from updates that are simulated for noise of each class.

        argmin || g - sum_k n_k g_k ||^2   over   n >= 0,

    scaled to the size of the batch. For one example it is the class with the largest cosine.

    References:
        Wainakh et al., 2022 (wainakh2022user), whose LLG* measures impacts on dummy inputs
    """
    from scipy.optimize import nnls

    task = observation.task
    if not reads_classes(task) or task.classes > _MOST_CLASSES:
        raise reason
    inputs = task.move_inputs(task.domain.sample(_DUMMIES, rng=Rng(0).fork("dummies")))
    labels = torch.arange(task.classes, device=inputs.device)
    rows = torch.stack(
        [_read_end(observation.simulate(inputs, k.repeat(_DUMMIES))) for k in labels]
    )
    seen = _read_end(observation.update)
    if size == 1:
        found = torch.cosine_similarity(rows, seen[None], dim=1)
    else:
        found = torch.from_numpy(nnls(rows.T.numpy(), seen.numpy())[0])
    if not (bool(found.isfinite().all()) and float(found.max()) > 0):
        raise reason
    if size == 1:
        return one_hot(found.argmax(), task.classes)
    return _round_counts(found * size / found.sum(), size)


def _read_end(update: Update) -> Tensor:
    """Entries of the last layers, which show the labels most clearly."""
    return update.descent().flat()[-_ENTRIES:].detach().double().cpu()


def _count_by_peeling(evidence: Evidence, size: int) -> Tensor:
    """Count the examples found, and guess the rest."""
    visible = count_visible(evidence)
    if visible > min(size, evidence.classes - 2) or evidence.precision > EXACT:
        return _calibrate_counts(size * evidence.signal, size)
    equations = write_equations(evidence, size)
    found = peel_examples(equations, limit=visible)
    if not (found.solved or evidence.biased):
        # The lengths of features are only roughly known, so a partial explanation misleads.
        return _calibrate_counts(size * evidence.signal, size)
    known = torch.bincount(found.labels, minlength=evidence.classes)
    left = equations.residual(found.features, found.labels) @ equations.anchor
    return known + _calibrate_counts(left, size - len(found.labels))


def _calibrate_counts(signal: Tensor, size: int) -> Tensor:
    """The whole counts nearest to n = B/K - B dL/db, from B dL/db."""
    return _round_counts(size / len(signal) - signal, size)


def _round_counts(estimate: Tensor, total: int) -> Tensor:
    """The non-negative integers with this sum that are nearest to an estimate, `(K,)`.

        argmin ||n - estimate||^2   over   n in {0, 1, ...}^K, sum n = total

    Each unit is added or taken where it costs least, which is optimal for a separable convex
    cost. The first class wins a tie. A number taken off all classes changes nothing, since the sum
    is given; so behind strong noise, where millions are estimated, no units are taken one by one.

    Example:
        >>> _round_counts(torch.tensor([1.6, -0.3, 0.7]), 2).tolist()
        [1, 0, 1]
    """
    ordered = estimate.double().sort(descending=True).values
    level = (ordered.cumsum(0) - total) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    if (most := level.max()) > 1:
        estimate = estimate.double() - most
    counts = estimate.clamp_min(0).round()
    while counts.sum() > total:
        cost = torch.where(counts > 0, estimate - counts, torch.inf)
        counts[cost.argmin()] -= 1
    while counts.sum() < total:
        counts[(counts - estimate).argmin()] += 1
    return counts.long()


def estimate_batch_size(observation: Observation, *, limit: int = 64) -> int | None:
    """Estimate the batch size from the update alone; None where the update does not show it.

    While it is below K - 1, the rank of the head's gradient is the number of visible examples. It
    is returned if that many examples explain the gradient: as prototypes with counts that are
    nearly whole, or peeled off one by one to the last digit.

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
    rescale = _scale_by_size(observation, evidence)
    if rescale is None:
        return None
    visible = count_visible(rescale(1))
    if visible < evidence.classes - 1:
        scaled = rescale(visible)
        if (
            _gives_whole_counts(scaled, visible)
            or peel_examples(write_equations(scaled, visible), limit=visible).solved
        ):
            return visible
    sizes = [size for size in range(1, limit + 1) if _gives_whole_counts(rescale(size), size)]
    if not sizes or sizes[0] < visible or any(size % sizes[0] for size in sizes):
        return None
    return sizes[0] if 2 * sizes[0] in sizes else None


def _scale_by_size(
    observation: Observation, evidence: Evidence
) -> Callable[[int], Evidence] | None:
    """The evidence in units of a mean gradient, as a function of the batch size."""
    if not evidence.biased:
        return None
    two, four = measure_gain(observation, 2), measure_gain(observation, 4)
    if max(two.error, four.error) > EXACT:
        return None
    # A mean does not grow with the batch, and a sum grows in proportion.
    power = math.log2(four.factor / two.factor)
    return lambda size: evidence.divide_by(two.factor * (size / 2) ** power)


def _gives_whole_counts(evidence: Evidence, size: int) -> bool:
    counts, explained = _fit_prototypes(evidence, size)
    return explained and float((counts - counts.round()).abs().max()) < _WHOLE


def _fit_prototypes(evidence: Evidence, size: int) -> tuple[Tensor, bool]:
    """Solve for the counts n_k and one feature vector h_k per class.

        n_k     = sum_c n_c p_ck     - B dL/db_k
        n_k h_k = sum_c n_c p_ck h_c - B dL/dW_k,      p_c = softmax(W h_c)

    by damped iteration from the one feature vector that explains the gradient best. The equations
    are exact if examples of one class share their features. The iteration contracts while the
    softmax is far from its corners.

    Args:
        evidence: In units of a mean gradient.
        size: Number B of examples.

    Returns:
        The counts `(K,)`, not rounded, and whether to trust them: the prototypes reproduce the
        gradient, and the network is not so sure of them that any number of them would.

    Deviations:
        The paper reads h_k off one row, dL/dW_k / dL/db_k, which mixes in the features of all other
        examples by their p_k. Here that part is subtracted, which duplicates need.

    References:
        Ma et al., 2023 (ma2023instance)
    """
    features = evidence.centre.repeat(evidence.classes, 1)
    estimate = size * (evidence.predictions(evidence.centre) - evidence.signal)
    counts = _normalise_counts(estimate, size)
    for _ in range(_ITERATIONS):
        # Classes without an example add nothing, and there may be thousands of them.
        held = counts.nonzero().flatten()
        predictions = evidence.predictions(features[held])
        estimate = predictions.T @ counts[held] - size * evidence.signal
        present = (estimate > _PRESENT).nonzero().flatten()
        mixed = predictions[:, present].T @ (counts[held, None] * features[held])
        own = (mixed - size * evidence.gradient[present]) / estimate[present, None]
        features[present] = (features[present] + own) / 2
        counts = (counts + _normalise_counts(estimate, size)) / 2
    whole = _round_counts(estimate, size).to(estimate)
    held = whole.nonzero().flatten()
    predictions = evidence.predictions(features[held])
    residuals = predictions - one_hot(held, evidence.classes).to(predictions)
    gradient = residuals.T @ (whole[held, None] * features[held]) / size
    misfit = (gradient - evidence.gradient).norm() / evidence.gradient.norm()
    confidence = predictions.gather(1, held[:, None])[:, 0] @ whole[held] / size
    return estimate, float(misfit) < _CLOSE and float(confidence) < _CONFIDENT


def _normalise_counts(estimate: Tensor, size: int) -> Tensor:
    """Drop counts too small to be an example, and scale the others to the right total."""
    kept = torch.where(estimate > _PRESENT, estimate, 0.0)
    if not bool(kept.any()):
        kept = torch.softmax(estimate, dim=0)
    return kept * size / kept.sum()
