"""What the malicious servers share, and the simplest of them: a planted first layer."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool1d, avg_pool2d

from seepage.attacks.linear_systems._analytic_fc import analytic_fc
from seepage.core import ActiveAttack, Attack, AttackWrapper, Rng, Task
from seepage.core.errors import InvalidValue, NotApplicable


def set_parameters(task: Task, values: Mapping[str, Tensor], *, note: str) -> Task:
    """Copy the task with other values of some parameters; add a note to its name."""
    model = copy.deepcopy(task.model)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
    return replace(task, model=model, name=f"{task.name} {note}")


def wrap_network(task: Task, front: Callable[[nn.Module], nn.Module], *, note: str) -> Task:
    """Copy the task with its network inside a module that computes with the input first."""
    if task.domain.discrete:
        raise NotApplicable(
            f"expected continuous inputs, got {task.domain}; plant in the classifier instead"
        )
    wrapped = front(copy.deepcopy(task.model))
    return replace(task, model=wrapped.to(task.reference), name=f"{task.name} {note}")


def require_passive(attack: Attack) -> Attack:
    """Reject an attack that plants a network itself, which would be overwritten."""
    if isinstance(attack, ActiveAttack):
        raise InvalidValue(
            f"expected an attack that only reads an update, got {attack}, which plants a network "
            "of its own; give it a passive one"
        )
    return attack


def default_to_search(attack: Attack | None) -> Attack:
    """The attack, which must be passive; `inverting_gradients()` if not given."""
    from seepage.attacks._inverting_gradients import inverting_gradients

    return inverting_gradients() if attack is None else require_passive(attack)


def fill_holes(shape: tuple[int, ...], index: Tensor, values: Tensor) -> Tensor:
    """An input with these values at these entries; the others are means of known neighbours.

    Holes take the mean of the known entries next to them, ring by ring. A channel without any known
    entry takes the mean of the others.

    Args:
        shape: `(C, H, W)` or `(C, L)`.
        index: `(n, axes)`; entries that occur several times are averaged.
        values: `(n,)`.

    Example:
        >>> fill_holes((1, 5), torch.tensor([[0, 0], [0, 4]]), torch.tensor([1.0, 3.0])).tolist()
        [[1.0, 1.0, 2.0, 3.0, 3.0]]
    """
    count, total = values.new_zeros(shape), values.new_zeros(shape)
    count.index_put_(tuple(index.T), torch.ones_like(values), accumulate=True)
    total.index_put_(tuple(index.T), values, accumulate=True)
    known = count > 0
    filled = torch.where(known, total / count.clamp_min(1), 0.0)
    pool = avg_pool1d if len(shape) == 2 else avg_pool2d
    for _ in range(max(shape[1:])):
        around = pool(known.to(filled)[None], 3, 1, 1)[0]
        mean = pool(filled[None], 3, 1, 1)[0] / around.clamp_min(1e-12)
        ring = ~known & (around > 0)
        filled, known = torch.where(ring, mean, filled), known | ring
    shared = (filled * known).sum(0) / known.sum(0).clamp_min(1)
    return torch.where(known, filled, shared)


@dataclass(frozen=True, kw_only=True)
class PlantedLayer(AttackWrapper):
    """Plants a fully connected layer with a bias before the network, which gives its input away.

    The layer is the identity, so the network computes what it computed before.
    """

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """Put an identity before the network; nothing is random."""
        shape = tuple(task.domain.shape)
        entries = math.prod(shape)
        first = nn.Linear(entries, entries)
        with torch.no_grad():
            first.weight.copy_(torch.eye(entries))
            first.bias.zero_()
        parts = (("flatten", nn.Flatten()), ("first", first), ("shape", nn.Unflatten(1, shape)))
        return wrap_network(
            task,
            lambda network: nn.Sequential(OrderedDict([*parts, ("network", network)])),
            note="behind a fully connected layer",
        )


def first_layer_fc(*, attack: Attack | None = None) -> ActiveAttack:
    """Plant a fully connected identity before the network, which gives one input in closed form.

    Args:
        attack: What attacks the update; `analytic_fc()` if not given.

    References:
        Geiping et al., 2020, Sec. 4.3 and Proposition 1 (geiping2020inverting)
    """
    return PlantedLayer(attack=require_passive(attack or analytic_fc()))
