"""Malicious servers that plant a classifier: with flipped labels, or fishing for one class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.malicious_server._planting import default_to_search, set_parameters
from seepage.core import (
    ActiveAttack,
    Attack,
    AttackWrapper,
    Observation,
    Prepared,
    Rng,
    Task,
    Update,
)
from seepage.core._usable_update import require_usable
from seepage.core.errors import InvalidValue, NotApplicable, require_at_least, require_positive
from seepage.probing._heads import classifier_head


@dataclass(frozen=True, kw_only=True)
class LabelFlip(AttackWrapper):
    """Permutes rows of the last layer, which makes small gradients large; see `label_flip`.

    The gradient of an example that a trained network knows is nearly zero. With the rows permuted
    its prediction is wrong, and the gradient as large as that of an untrained network. Then an
    attack of an honest server follows.
    """

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


# Relative to the largest bias gradient; a class with less holds no example.
_ABSENT = 1e-3


@dataclass(frozen=True, kw_only=True)
class ClassFishing(AttackWrapper):
    """Silences every class but one; see `class_fishing`.

        W_k = 0, b_k = margin for k != c;   W_c, b_c as they are

    The network then predicts "not c" for every example. The gradient that enters the layers below
    the classifier is sum_k (p_k - y_k) W_k = (p_c - y_c) W_c, which is zero for examples of other
    classes. So is their part in row c of the classifier's own gradient; the other rows follow from
    it, since p_k = 1/(K - 1). So the update of the one example of class c is known exactly, and an
    attack on a single input does the rest. The bias shows the weight of one example in the update:
    dL/db_c = p_c - y_c is -1 for an example of class c, whatever the input. If several examples
    share the class, their mean comes back.

    Deviations:
        The paper matches the gradient below the classifier; here the classifier's gradient is
        restored as well. After several local steps the silenced rows have moved, and other classes
        show in the update.
    """

    target: int = 0
    margin: float = 1e3

    # The label is that of the class it fishes for.
    needs_labels = False

    def __post_init__(self) -> None:
        require_at_least(0, target=self.target)
        require_positive(margin=self.margin)

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """Silence all classes but the target; nothing is random."""
        weight, bias = _find_head(task)
        if self.target >= task.classes:
            raise InvalidValue(f"expected a target in 0..{task.classes - 1}, got {self.target}")
        values = task.parameters
        others = torch.arange(task.classes, device=values[bias].device) != self.target
        silenced = {
            weight: torch.where(others[:, None], 0.0, values[weight]),
            bias: torch.where(others, self.margin, values[bias]),
        }
        return set_parameters(task, silenced, note=f"fishing for class {self.target}")

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Reduce the update to that of one example."""
        require_usable(seen.update, seen.task)
        labels = torch.tensor([self.target], device=next(iter(seen.update)).device)
        update = self._isolate(seen, labels)
        return Prepared(replace(seen, update=update, batch_size=1, labels=labels))

    def _isolate(self, observation: Observation, labels: Tensor) -> Update:
        """The update that one example of the class would have shared."""
        task, update = observation.task, observation.update
        weight, bias = _find_head(task)
        share = update.tensors[bias]
        if float(share[self.target].abs()) <= _ABSENT * float(share.abs().max()):
            raise NotApplicable(
                f"no example of this batch is of class {self.target}; fish for another class"
            )
        # Any input will do: it shows the weight of one example in a mean, a sum or a local step.
        noise = task.move_inputs(task.domain.sample(1, rng=Rng(0)))
        with torch.no_grad():
            whole = observation.simulate(noise, labels).tensors[bias]
        factor = (whole[self.target] / share[self.target]).abs()
        scaled = update.map(lambda t: t * factor)
        restored = {name: self._restore_rows(scaled.tensors[name]) for name in (weight, bias)}
        return replace(scaled, tensors={**scaled.tensors, **restored})

    def _restore_rows(self, gradient: Tensor) -> Tensor:
        """Compute every row from the target's: p_k - y_k is -1 there and 1/(K - 1) elsewhere."""
        row = gradient[self.target]
        whole = (-row / (len(gradient) - 1)).expand_as(gradient).clone()
        whole[self.target] = row
        return whole


def _find_head(task: Task) -> tuple[str, str]:
    head = classifier_head(task)
    if head.bias is None:
        raise NotApplicable(
            f"expected a classifier with a bias to fish with, got none in {task.name}"
        )
    return head.weight, head.bias


def class_fishing(
    *, attack: Attack | None = None, target: int = 0, margin: float = 1e3
) -> ActiveAttack:
    """Silence all classes but one, so that a large batch becomes a batch of one.

    Args:
        attack: What attacks the update of one example; `inverting_gradients()` if not given.
        target: The class to fish for.
        margin: Bias of all other classes.

    References:
        Wen et al., 2022 (wen2022fishing)
    """
    return ClassFishing(attack=default_to_search(attack), target=target, margin=margin)
