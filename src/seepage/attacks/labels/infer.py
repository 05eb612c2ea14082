"""Any attack that needs labels, without knowing them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from seepage.attacks.labels.batch_size import estimate_batch_size
from seepage.attacks.labels.counting import CountAware
from seepage.attacks.labels.rules import LabelRule
from seepage.core import Attack, Observation, Reconstruction, Rng
from seepage.core.rng import require_key


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
        size = observation.batch_size or estimate_batch_size(observation)
        labels = self.rule(replace(observation, batch_size=size))
        return self.attack(replace(observation, labels=labels, batch_size=len(labels)), rng=rng)
