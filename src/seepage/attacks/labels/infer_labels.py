"""Infer labels and batch size from the update, for any attack that needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log2

import torch
from torch import Tensor

from seepage.attacks.labels.label_equations import peel, visible_people, write_equations
from seepage.attacks.labels.label_evidence import EXACT, Evidence, measure_gain, read_evidence
from seepage.attacks.labels.label_rules import LabelRule, require_batch_size, sort_labels
from seepage.attacks.labels.prototypes import fit_prototypes, nearest_counts
from seepage.core import Attack, Observation, Reconstruction, Rng
from seepage.core.rng import require_key


@dataclass(frozen=True)
class CountAware:
    """Labels with their duplicates, by `count_classes`.

    Example:
        >>> import seepage as sp
        >>> batch = sp.data.bundled("photos", size=4)
        >>> client = sp.Client(sp.Gradient())
        >>> seen = sp.Threat().observe(client, sp.zoo.lenet(), batch, rng=sp.rng(0))
        >>> CountAware()(seen).tolist() == sorted(batch.labels.tolist())
        True

    References:
        Ma et al., 2023 (ma2023instance), who count instances of each class
    """

    def __call__(self, observation: Observation) -> Tensor:
        """Return the labels `(B,)`, sorted."""
        require_batch_size(observation, self)
        counts = count_classes(observation)
        return sort_labels(torch.arange(len(counts)).repeat_interleave(counts), observation)


def count_classes(observation: Observation) -> Tensor:
    """Estimated number of people of each class, `(K,)`, with the batch size as their sum.

    One person has the class whose bias gradient is lowest. For more, from the strongest evidence
    to the weakest:

    1. Prototypes, one feature vector per class, if they explain the gradient: so it is while the
       network is untrained.
    2. People peeled off one by one, while fewer than K - 1 are visible: mostly right for few
       people, whatever the network. Without a bias only if they explain everything.
    3. For everybody else n = B (1/K - dL/db): the network is taken to predict every class equally
       often. It is the whole answer for a large batch and a trained network, and little better
       than a guess that all classes are equally frequent: people whom the network knows well leave
       no trace in the update.

    Counts, unlike signs, need the scale of the update, which is measured on a simulation. They are
    wrong where it misleads: behind clipping that the adversary does not know, and after local
    steps so large that the update is far from proportional to a gradient.

    Raises:
        MissingKnowledge: The batch size is not known.
        NotApplicable: The update holds no classifier head, or none trained by cross-entropy.
    """
    size = require_batch_size(observation, "counting labels")
    evidence = measure_gain(observation, size).undo(read_evidence(observation))
    if size == 1:
        return torch.bincount(evidence.signal.argmin()[None], minlength=evidence.classes)
    fit = fit_prototypes(evidence, size)
    return nearest_counts(fit.counts, size) if fit.explained else _count_by_peeling(evidence, size)


def _count_by_peeling(evidence: Evidence, size: int) -> Tensor:
    """Counts of the people found, and a guess of the rest."""
    visible = visible_people(evidence)
    if visible > min(size, evidence.classes - 2) or evidence.precision > EXACT:
        return _calibrate_counts(size * evidence.signal, size)
    equations = write_equations(evidence, size)
    found = peel(equations, limit=visible)
    if not (found.solved or evidence.biased):
        # Lengths of features are known roughly only, so that half an explanation misleads.
        return _calibrate_counts(size * evidence.signal, size)
    known = torch.bincount(found.people.labels, minlength=evidence.classes)
    left = equations.signal(equations.residual(found.people))
    return known + _calibrate_counts(left, size - len(found.people))


def _calibrate_counts(signal: Tensor, size: int) -> Tensor:
    """The whole counts nearest to n = B/K - B dL/db, from B dL/db."""
    return nearest_counts(size / len(signal) - signal, size)


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


def recover_labels(observation: Observation, rule: LabelRule | None = None) -> Tensor:
    """The labels `(B,)`, if they are not known by this rule, which is `CountAware` by default.

    An unknown batch size is estimated where the update gives it away.
    """
    if observation.labels is not None:
        return observation.labels
    size = observation.batch_size or estimate_batch_size(observation)
    return (rule or CountAware())(replace(observation, batch_size=size))


@dataclass(frozen=True)
class InferLabels:
    """Recover the labels from the update, then attack as if they had been known.

    Known labels are used as they are. An unknown batch size is estimated where the update gives
    it away; where it does not, a rule that needs it says so.

    Args:
        attack: What attacks.
        rule: What recovers the labels.

    Example:
        >>> from seepage.attacks.linear_systems import AnalyticFC
        >>> InferLabels(AnalyticFC())
        InferLabels(attack=AnalyticFC(), rule=CountAware())

    References:
        Zhao et al., 2020 (zhao2020idlg)
    """

    attack: Attack
    rule: LabelRule = field(default_factory=CountAware)

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Infer what is missing and attack."""
        require_key(rng)
        if observation.labels is not None:
            return self.attack(observation, rng=rng)
        labels = recover_labels(observation, self.rule)
        return self.attack(replace(observation, labels=labels, batch_size=len(labels)), rng=rng)
