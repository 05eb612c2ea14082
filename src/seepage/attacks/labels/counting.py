"""How many people there are of each class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.labels.equations import visible_people, write_equations
from seepage.attacks.labels.evidence import Evidence, read_evidence
from seepage.attacks.labels.gain import EXACT, measure_gain
from seepage.attacks.labels.peeling import peel
from seepage.attacks.labels.prototypes import fit_prototypes
from seepage.attacks.labels.rounding import nearest_counts
from seepage.attacks.labels.rules import handed_over, required_size
from seepage.core import Observation


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
        required_size(observation, self)
        counts = count_classes(observation)
        return handed_over(torch.arange(len(counts)).repeat_interleave(counts), observation)


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
    size = required_size(observation, "counting labels")
    evidence = measure_gain(observation, size).undo(read_evidence(observation))
    if size == 1:
        return torch.bincount(evidence.signal.argmin()[None], minlength=evidence.classes)
    fit = fit_prototypes(evidence, size)
    return nearest_counts(fit.counts, size) if fit.explained else _peeled(evidence, size)


def _peeled(evidence: Evidence, size: int) -> Tensor:
    """Counts of the people found, and a guess of the rest."""
    visible = visible_people(evidence)
    if visible > min(size, evidence.classes - 2) or evidence.precision > EXACT:
        return _calibrated(size * evidence.signal, size)
    equations = write_equations(evidence, size)
    found = peel(equations, limit=visible)
    if not (found.solved or evidence.biased):
        # Lengths of features are known roughly only, so that half an explanation misleads.
        return _calibrated(size * evidence.signal, size)
    known = torch.bincount(found.people.labels, minlength=evidence.classes)
    left = equations.signal(equations.residual(found.people))
    return known + _calibrated(left, size - len(found.people))


def _calibrated(signal: Tensor, size: int) -> Tensor:
    """The whole counts nearest to n = B/K - B dL/db, from B dL/db."""
    return nearest_counts(size / len(signal) - signal, size)
