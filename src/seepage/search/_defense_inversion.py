"""Adapt a simulation to a defense, by what the observed update shows of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from seepage.core import Attack, Observation, Protection, Rng, Simulate, Task, Update
from seepage.core._chain import OnAggregate
from seepage.core._client import Client
from seepage.defenses import Chain, Clip, Dropout, Prune, Sign, TopK, chain


@dataclass(frozen=True, eq=False)
class AttackPlan:
    """An attack and its observation; each defense inversion returns a better plan."""

    attack: Attack
    observation: Observation

    @property
    def client(self) -> Client:
        """The simulated client."""
        client = self.observation.simulate.client
        assert client is not None
        return client

    @property
    def defense(self) -> Chain:
        """The simulated defense."""
        return self.client.chain

    @property
    def unknowns(self) -> int:
        """How many numbers are searched for; one input if the batch size is unknown."""
        size = self.observation.batch_size or 1
        return size * math.prod(self.observation.task.domain.shape)

    def after(self, link: Protection) -> Sequence[Protection]:
        """The links after this one, which may hide what it did."""
        places = [known is link for known in self.defense.links]
        return self.defense.links[places.index(True) + 1 :]

    def replace_link(self, link: Protection, stand_in: Protection) -> AttackPlan:
        """Simulate `stand_in` instead of a link."""
        links = (stand_in if known is link else known for known in self.defense.links)
        client = replace(self.client, defense=chain(*links))
        return self._replace_simulation(self.observation.simulate.with_client(client))

    def replace_task(self, task: Task) -> AttackPlan:
        """Simulate another network."""
        return self._replace_simulation(self.observation.simulate.with_task(task))

    def invert(self, inverters: Mapping[type, Inverter]) -> AttackPlan:
        """Read off the update what each link of a kind that has an inverter did to it."""
        plan = self
        # Start with the last link: earlier links can only be read once its effect is known.
        for link in reversed(self.defense.links):
            if type(link) in inverters:
                plan = inverters[type(link)](link, plan)
        return plan

    def _replace_simulation(self, simulation: Simulate) -> AttackPlan:
        return replace(self, observation=replace(self.observation, simulate=simulation))


Inverter = Callable[[Any, AttackPlan], AttackPlan]
"""What a link of a defense did to an update: the link and a plan to a better plan."""


@dataclass(frozen=True, eq=False, repr=False)
class Tolerance(OnAggregate):
    """Move every entry towards the observed one, by no more than the defense may have moved it.

        g*_i + sign(d_i) max(|d_i| - limit_i, 0),   d_i = g_i - g*_i

    With limit 0 this is g, so the entry is compared exactly. With an infinite limit it is g*, so
    the entry is ignored. In between, differences within the limit count as zero.

    The update may hold only some of the tensors.

    Args:
        observed: g*.
        limit: How far the defense may have moved each entry.
        factor: The factor that the client multiplied g by.

    References:
        Tobin, 1958 (tobin1958estimation) on values of which only a bound is known
    """

    observed: Update
    limit: Update
    factor: float = field(default=1.0, kw_only=True)

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Move the entries; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Move the entries, differentiably."""
        observed, limit = (
            replace(whole, tensors={name: whole.tensors[name] for name in update.tensors}).flat()
            for whole in (self.observed, self.limit)
        )
        away = update.flat() * self.factor - observed
        beyond = (away.abs() - limit).clamp_min(0)
        return update.unflatten(observed + away.sign() * beyond)


Sparse = Prune | TopK | Dropout


def read_survivors(link: Sparse, plan: AttackPlan) -> AttackPlan:
    """Compare the entries that survived; pruned entries must only be small enough.

    This needs to see which entries survived, so only links that keep zeros may follow: no noise and
    no sum over clients. Otherwise, and if fewer entries survived than there are unknowns, the
    pruning is not simulated and pruned entries are compared with zero. That is nearly right for
    them, and found more than pruning the candidate's update did. The mean of dropout is simulated.
    """
    observed = plan.observation.update
    seen = all(isinstance(later, Sparse | Clip | Tolerance) for later in plan.after(link))
    if isinstance(link, Dropout) and not seen:
        return plan
    enough = int((observed.flat() != 0).sum()) >= plan.unknowns
    if not isinstance(link, Dropout) and not (seen and enough):
        return plan.replace_link(link, chain())
    sole = len(plan.defense.update_defenses) == 1
    bound = _largest_removed(link if sole else None, observed)
    limit = torch.where(observed.flat() != 0, 0.0, bound)
    factor = 1 / (1 - link.rate) if isinstance(link, Dropout) and link.rescale else 1.0
    return plan.replace_link(link, Tolerance(observed, observed.unflatten(limit), factor=factor))


def _largest_removed(link: Sparse | None, observed: Update) -> Tensor:
    """The largest magnitude that a link can have removed, for every entry `(P,)` or for all."""
    if link is None or isinstance(link, Dropout):
        return observed.flat().new_tensor(torch.inf)
    if isinstance(link, Prune) and link.scope == "tensor":
        return observed.map(lambda t: _smallest_survivor(t).expand_as(t)).flat()
    return _smallest_survivor(observed.flat())


def _smallest_survivor(entries: Tensor) -> Tensor:
    """The smallest magnitude that survived; infinite if nothing did."""
    return torch.where(entries != 0, entries.abs(), torch.inf).min()


@dataclass(frozen=True, repr=False)
class UnitScale(OnAggregate):
    """Divide every tensor by its root mean square, which for a tensor of signs is 1."""

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Divide; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Divide by a number that is not differentiated."""
        return update.map(
            lambda t: t / t.detach().square().mean().sqrt().clamp_min(torch.finfo(t.dtype).tiny)
        )


def _read_signs(link: Sign, plan: AttackPlan) -> AttackPlan:
    """Match the gradient itself to the signs, with every tensor on the same scale.

    Many inputs have the right signs. Simulating the signs, smoothed or with a surrogate slope,
    finds inputs that resemble the truth less than those whose gradient lies along the signs.
    """
    return plan.replace_link(link, UnitScale())


INVERSIONS: Mapping[type, Inverter] = MappingProxyType(
    {Prune: read_survivors, Sign: _read_signs, TopK: read_survivors}
)
"""How to invert each class of defense whose simulation misleads a search."""


def searchable(attack: Attack, observation: Observation) -> Observation:
    """Make the simulation of an observation smooth enough to search.

    Pruning a candidate's update keeps other entries than the client did, until the candidate is
    nearly right. Removed entries have no slope, and entries kept in vain count in full: a search
    that simulated the pruning found less than one that did not. The update shows which entries
    survived, so those are compared, and the others must only be small enough to have been removed.
    At the truth this gives the observed update, as pruning does. The same holds for signs.
    """
    if observation.simulate.client is None:
        return observation
    return AttackPlan(attack, observation).invert(INVERSIONS).observation
