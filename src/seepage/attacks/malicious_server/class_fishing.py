"""Class fishing: silence all classes but one, so that one input dominates the update."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.inverting_gradients import inverting_gradients
from seepage.attacks.malicious_server.planting import passive_attack, with_parameters
from seepage.core import ActiveAttack, Attack, Observation, Reconstruction, Rng, Task, Update
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key
from seepage.probing.heads import Head, classifier_head
from seepage.probing.usable_update import require_usable

# Softmax of the others leaks less than this of a whole person.
NOBODY = 1e-3


@dataclass(frozen=True, kw_only=True)
class ClassFishing:
    """Silences every class but one, so that the update is that of a batch of one.

        W_k = 0, b_k = margin for k != c;   W_c, b_c as they are

    Everybody's prediction is then "not c". The gradient that enters the network below the
    classifier is sum_k (p_k - y_k) W_k = (p_c - y_c) W_c, which is zero for everybody whose class
    is not c. Row c of the classifier's own gradient is theirs alone as well; the other rows follow
    from it, since p_k = 1/(K - 1). So the update of the one person of class c is known exactly,
    and an attack on a single input does the rest. How much one person weighs in it tells the bias:
    dL/db_c = p_c - y_c is -1 of a person of class c, whatever the input. Where several share the
    class, their mean comes back.

    Args:
        attack: What attacks the update of one person.
        target: The class c to fish for.
        margin: Bias of all other classes.

    Deviations:
        The paper matches what is below the classifier; here the classifier's gradient is restored
        as well. After several local steps the silenced rows have moved and the others are heard.

    References:
        Wen et al., 2022 (wen2022fishing)
    """

    attack: Attack
    target: int = 0
    margin: float = 1e3

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.target < 0:
            raise InvalidValue(f"expected target >= 0, got {self.target!r}")
        if not self.margin > 0:
            raise InvalidValue(f"expected margin > 0, got {self.margin!r}")

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """The network with one class left to learn; nothing is random."""
        weight, bias = self._head(task)
        if self.target >= task.classes:
            raise InvalidValue(f"expected a target in 0..{task.classes - 1}, got {self.target}")
        others = torch.arange(task.classes, device=bias.device) != self.target
        silenced = {
            self._names(task)[0]: torch.where(others[:, None], 0.0, weight),
            self._names(task)[1]: torch.where(others, self.margin, bias),
        }
        return with_parameters(task, silenced, note=f"fishing for class {self.target}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Reduce the update to one person's and attack it."""
        require_key(rng)
        task = observation.task
        require_usable(observation.update, task)
        labels = torch.tensor([self.target], device=next(iter(observation.update)).device)
        update = self._alone(observation, labels)
        alone = replace(observation, update=update, batch_size=1, labels=labels)
        return self.attack(alone, rng=rng)

    def _alone(self, observation: Observation, labels: Tensor) -> Update:
        """What one person of the class would have shared."""
        task, update = observation.task, observation.update
        weight, bias = self._names(task)
        share = update.tensors[bias]
        if float(share[self.target].abs()) <= NOBODY * float(share.abs().max()):
            raise NotApplicable(
                f"nobody in this batch is of class {self.target}, so nothing was caught; fish for "
                "another class"
            )
        # Any input will do. A mean, a sum and a learning rate all weigh one person differently.
        anybody = task.move_inputs(task.domain.sample(1, rng=Rng(0)))
        with torch.no_grad():
            whole = observation.simulate(anybody, labels).tensors[bias]
        factor = (whole[self.target] / share[self.target]).abs()
        scaled = update.map(lambda t: t * factor)
        restored = {n: self._restored(scaled.tensors[n]) for n in (weight, bias)}
        return replace(scaled, tensors={**scaled.tensors, **restored})

    def _restored(self, gradient: Tensor) -> Tensor:
        """Every row from the row of the target: p_k - y_k is -1 there and 1/(K - 1) elsewhere."""
        row = gradient[self.target]
        whole = (-row / (len(gradient) - 1)).expand_as(gradient).clone()
        whole[self.target] = row
        return whole

    def _head(self, task: Task) -> tuple[Tensor, Tensor]:
        weight, bias = self._names(task)
        return task.parameters[weight], task.parameters[bias]

    def _names(self, task: Task) -> tuple[str, str]:
        head: Head = classifier_head(task)
        if head.bias is None:
            raise NotApplicable(
                f"expected a classifier with a bias to fish with, got none in {task.name}"
            )
        return head.weight, head.bias


def class_fishing(
    *, attack: Attack | None = None, target: int = 0, margin: float = 1e3
) -> ActiveAttack:
    """All classes but one silenced, so that a large batch becomes a batch of one.

    Args:
        attack: What attacks the update of one person; `inverting_gradients()` if not given.
        target: The class to fish for.
        margin: Bias of all other classes.

    References:
        Wen et al., 2022 (wen2022fishing)
    """
    inner = passive_attack(attack, inverting_gradients())
    return ClassFishing(attack=inner, target=target, margin=margin)
