"""Infer labels and batch size from the update, for any attack that needs them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seepage.attacks.labels.count_labels import count_classes, estimate_batch_size
from seepage.attacks.labels.label_rules import LabelRule, require_batch_size, sort_labels
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


def recover_labels(observation: Observation, rule: LabelRule | None = None) -> Tensor:
    """The labels `(B,)`: known, or recovered by the rule, which is `CountAware` by default.

    An unknown batch size is estimated where the update shows it.
    """
    if observation.labels is not None:
        return observation.labels
    size = observation.batch_size or estimate_batch_size(observation)
    return (rule or CountAware())(replace(observation, batch_size=size))


@dataclass(frozen=True)
class InferLabels:
    """Recover the labels from the update, then attack as if they had been known.

    Known labels are used as they are. An unknown batch size is estimated where the update shows
    it. Elsewhere a rule that needs it raises an error.

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
