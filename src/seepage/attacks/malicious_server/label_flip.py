"""Label flipping: permute the classifier's rows, so that every prediction is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.inverting_gradients import inverting_gradients
from seepage.attacks.malicious_server.planting import passive_attack, with_parameters
from seepage.core import ActiveAttack, Attack, Observation, Reconstruction, Rng, Task
from seepage.core.errors import InvalidValue, SeepageError
from seepage.probing.heads import classifier_head
from seepage.search.many import attack_many


@dataclass(frozen=True, kw_only=True)
class LabelFlip:
    """Permutes rows of the last layer, which makes small gradients of a trained network large.

    A trained network tells its classes apart, so the gradient of an example it knows is nearly
    zero and says little. With the rows permuted its answer is wrong, and the gradient as large as
    that of an untrained network. What follows is an attack by an honest server's means.

    Args:
        attack: What attacks the update.
        rows: The rows to swap; empty moves every row to the next class, which hits every label.

    Deviations:
        The paper swaps two rows, which takes knowing one label of the client.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """

    attack: Attack
    rows: Sequence[int] = ()

    def __post_init__(self) -> None:
        """Check the rows."""
        object.__setattr__(self, "rows", tuple(self.rows))
        if self.rows and (len(self.rows) != 2 or self.rows[0] == self.rows[1]):
            raise InvalidValue(f"expected two different rows to swap, or none, got {self.rows!r}")

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """The network with rows of its classifier in another order; nothing is random."""
        head = classifier_head(task)
        order = self._order(task.classes)
        names = [name for name in (head.weight, head.bias) if name is not None]
        permuted = {name: task.parameters[name][order] for name in names}
        return with_parameters(task, permuted, note="with flipped labels")

    def _order(self, classes: int) -> Tensor:
        if not self.rows:
            return torch.arange(classes).roll(1)
        if not all(0 <= row < classes for row in self.rows):
            raise InvalidValue(f"expected rows in 0..{classes - 1}, got {self.rows!r}")
        order = torch.arange(classes)
        order[list(self.rows)] = torch.tensor(self.rows[::-1])
        return order

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack the update as it is."""
        return self.attack(observation, rng=rng)

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction | SeepageError]:
        """Attack several updates of the same planted network, side by side where the attack can."""
        return attack_many(self.attack, observations, rngs=rngs)


def label_flip(*, attack: Attack | None = None, rows: Sequence[int] = ()) -> ActiveAttack:
    """Rows of the classifier permuted, so that a trained network's gradients say more.

    Args:
        attack: What attacks the update; `inverting_gradients()` if not given.
        rows: Two rows to swap; none moves every row to the next class.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    return LabelFlip(attack=passive_attack(attack, inverting_gradients()), rows=rows)
