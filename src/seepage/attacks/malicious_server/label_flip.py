"""Label flipping: permute the classifier's rows, so that every prediction is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from seepage.attacks.malicious_server.planting import default_to_search, set_parameters
from seepage.core import ActiveAttack, Attack, Observation, Reconstruction, Rng, Task
from seepage.core.errors import InvalidValue, SeepageError
from seepage.core.protocols import attack_many, needs_labels
from seepage.probing.heads import classifier_head


@dataclass(frozen=True, kw_only=True)
class LabelFlip:
    """Permutes rows of the last layer, which makes small gradients large; see `label_flip`.

    The gradient of an example that a trained network knows is nearly zero. With the rows permuted
    its prediction is wrong, and the gradient as large as that of an untrained network. Then an
    attack of an honest server follows.
    """

    attack: Attack
    rows: Sequence[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", tuple(self.rows))
        if self.rows and (len(self.rows) != 2 or self.rows[0] == self.rows[1]):
            raise InvalidValue(f"expected two different rows to swap, or none, got {self.rows!r}")

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """Permute the rows of the classifier; nothing is random."""
        head = classifier_head(task)
        if not all(0 <= row < task.classes for row in self.rows):
            raise InvalidValue(f"expected rows in 0..{task.classes - 1}, got {self.rows!r}")
        order = torch.arange(task.classes)
        if self.rows:
            order[list(self.rows)] = torch.tensor(self.rows[::-1])
        else:
            order = order.roll(1)
        names = [name for name in (head.weight, head.bias) if name is not None]
        permuted = {name: task.parameters[name][order] for name in names}
        return set_parameters(task, permuted, note="with flipped labels")

    @property
    def needs_labels(self) -> bool:
        """If the inner attack does."""
        return needs_labels(self.attack)

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack the update as it is."""
        return self.attack(observation, rng=rng)

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction | SeepageError]:
        """Attack several updates of the same planted network, side by side where the attack can."""
        return attack_many(self.attack, observations, rngs=rngs)


def label_flip(*, attack: Attack | None = None, rows: Sequence[int] = ()) -> ActiveAttack:
    """Permute rows of the classifier, so that a trained network's gradients become large.

    Args:
        attack: What attacks the update; `inverting_gradients()` if not given.
        rows: Two rows to swap; empty moves every row to the next class, which hits every label.

    Deviations:
        The paper swaps two rows, for which one label of the client must be known.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    return LabelFlip(attack=default_to_search(attack), rows=rows)
