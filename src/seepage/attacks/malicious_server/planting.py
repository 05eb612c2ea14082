"""Sending another network than the one that is being trained."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.linear_systems.analytic_fc import analytic_fc
from seepage.core import ActiveAttack, Attack, Observation, Reconstruction, Rng, Task
from seepage.core.errors import InvalidValue, NotApplicable


def with_parameters(task: Task, values: Mapping[str, Tensor], *, note: str) -> Task:
    """The task with other values of some parameters, named after what was done to them."""
    model = copy.deepcopy(task.model)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            own[name].copy_(value)
    return replace(task, model=model, name=f"{task.name} {note}")


def behind(task: Task, front: Callable[[nn.Module], nn.Module], *, note: str) -> Task:
    """The task with its network wrapped by another module, which computes with the input."""
    if not task.domain.sample(1, rng=Rng(0)).is_floating_point():
        raise NotApplicable(
            f"expected inputs that can be computed with, got {task.domain}, which a network looks "
            "up; plant in the classifier instead"
        )
    wrapped = front(copy.deepcopy(task.model))
    reference = next(iter(task.parameters.values()))
    return replace(task, model=wrapped.to(reference), name=f"{task.name} {note}")


@dataclass(frozen=True, kw_only=True)
class PlantedLayer:
    """Places a fully connected layer with a bias before the network, which gives its input away.

    The layer is the identity, so the network computes what it computed before.

    Args:
        attack: What attacks the update.

    References:
        Geiping et al., 2020, Sec. 4.3 and Proposition 1 (geiping2020inverting)
    """

    attack: Attack

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """The network behind an identity; nothing is random."""
        shape = tuple(task.domain.shape)
        entries = math.prod(shape)
        first = nn.Linear(entries, entries)
        with torch.no_grad():
            first.weight.copy_(torch.eye(entries))
            first.bias.zero_()
        parts = (("flatten", nn.Flatten()), ("first", first), ("shape", nn.Unflatten(1, shape)))
        return behind(
            task,
            lambda network: nn.Sequential(OrderedDict([*parts, ("network", network)])),
            note="behind a fully connected layer",
        )

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack the update as it is."""
        return self.attack(observation, rng=rng)


def first_layer_fc(*, attack: Attack | None = None) -> ActiveAttack:
    """A fully connected identity before the network, which gives one input away in closed form.

    Args:
        attack: What attacks the update; `analytic_fc()` if not given.

    References:
        Geiping et al., 2020, Sec. 4.3 (geiping2020inverting)
    """
    return PlantedLayer(attack=passive_attack(attack, analytic_fc()))


def passive_attack(attack: Attack | None, default: Attack) -> Attack:
    """The attack asked for, which must not plant: what it planted would be overwritten."""
    if isinstance(attack, ActiveAttack):
        raise InvalidValue(
            f"expected an attack that only reads an update, got {attack}, which plants a network "
            "of its own; give it a passive one"
        )
    return default if attack is None else attack
