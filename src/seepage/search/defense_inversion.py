"""Adapt a simulation to a defense by what the observed update shows of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from seepage.clients.client import Client
from seepage.core import Attack, Observation, Protection, Rng, Simulate, Task, Update
from seepage.defenses import Chain, Clip, Dropout, Prune, Sign, TopK, chain
from seepage.defenses.chain import OnAggregate


@dataclass(frozen=True, eq=False)
class AttackPlan:
    """An attack and what it is given; each reading returns a better one.

    Args:
        attack: What attacks.
        observation: What was observed, whose simulation is of a client of ours.
    """

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
        """What is simulated of the defense."""
        return self.client.chain

    @property
    def unknowns(self) -> int:
        """How many numbers are sought; one input where the batch size is unknown."""
        size = self.observation.batch_size or 1
        return size * math.prod(self.observation.task.domain.shape)

    def after(self, link: Protection) -> Sequence[Protection]:
        """The links that come after one; what they hide cannot be read off."""
        places = [known is link for known in self.defense.links]
        return self.defense.links[places.index(True) + 1 :]

    def replace_link(self, link: Protection, stand_in: Protection) -> AttackPlan:
        """The plan with something else simulated in the place of a link."""
        links = (stand_in if known is link else known for known in self.defense.links)
        client = replace(self.client, defense=chain(*links))
        return self._simulating(self.observation.simulate.with_client(client))

    def running(self, task: Task) -> AttackPlan:
        """The plan with another network simulated."""
        return self._simulating(self.observation.simulate.with_task(task))

    def _simulating(self, simulation: Simulate) -> AttackPlan:
        return replace(self, observation=replace(self.observation, simulate=simulation))


@dataclass(frozen=True, eq=False, repr=False)
class Tolerance(OnAggregate):
    """Move every entry towards the observed one, by no more than the defense may have moved it.

        g*_i + sign(d_i) max(|d_i| - limit_i, 0),   d_i = g_i - g*_i

    With limit 0 this is g, and the entry is compared as it is; with an infinite one it is g*, and
    the entry says nothing. Between them, whatever lies within the limit explains what was seen.

    Of an update that holds some of the tensors, those are moved.

    Args:
        observed: g*.
        limit: For every entry, how far the defense may have moved it.
        factor: What the client multiplied g with.

    References:
        Tobin, 1958 (tobin1958estimation) on values of which only a bound is known
    """

    observed: Update
    limit: Update
    factor: float = field(default=1.0, kw_only=True)

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Move; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Move, differentiably."""
        observed, limit = (_part(whole, update).flat() for whole in (self.observed, self.limit))
        away = update.flat() * self.factor - observed
        beyond = (away.abs() - limit).clamp_min(0)
        return update.unflatten(observed + away.sign() * beyond)


def _part(whole: Update, update: Update) -> Update:
    return replace(whole, tensors={name: whole.tensors[name] for name in update.tensors})


Sparse = Prune | TopK | Dropout


def read_survivors(link: Sparse, plan: AttackPlan) -> AttackPlan:
    """Compare what survived; what was pruned for being small must only be as small.

    Only what keeps zeros may follow: behind noise, or in a sum over clients, nobody sees which
    entries survived. There, and where fewer survived than there are unknowns, which leaves the
    input open, what was pruned is compared as if it had not been: zero is nearly right for it, and
    that brought back more than pruning the candidate's. The mean of dropout is simulated there.
    """
    observed = plan.observation.update
    seen = all(isinstance(later, Sparse | Clip | Tolerance) for later in plan.after(link))
    if isinstance(link, Dropout) and not seen:
        return plan
    enough = int((observed.flat() != 0).sum()) >= plan.unknowns
    if not isinstance(link, Dropout) and not (seen and enough):
        return plan.replace_link(link, chain())
    sole = len(plan.defense.update_defenses) == 1
    bound = _bound(link, observed) if sole else _unbounded(observed)
    limit = torch.where(observed.flat() != 0, 0.0, bound)
    factor = 1 / (1 - link.rate) if isinstance(link, Dropout) and link.rescale else 1.0
    return plan.replace_link(link, Tolerance(observed, observed.unflatten(limit), factor=factor))


def _bound(link: Sparse, observed: Update) -> Tensor:
    """The largest magnitude that can have been removed, for every entry `(P,)`."""
    if isinstance(link, Dropout):
        return _unbounded(observed)
    if isinstance(link, Prune) and link.scope == "tensor":
        return observed.map(lambda t: _smallest(t).expand_as(t)).flat()
    flat = observed.flat()
    return _smallest(flat).expand_as(flat)


def _unbounded(observed: Update) -> Tensor:
    return torch.full_like(observed.flat(), torch.inf)


def _smallest(entries: Tensor) -> Tensor:
    """The smallest survivor; where nothing survived, anything may have been removed."""
    return torch.where(entries != 0, entries.abs(), torch.inf).min()


@dataclass(frozen=True, repr=False)
class UnitScale(OnAggregate):
    """Divide every tensor by its root mean square, which for a tensor of signs is 1."""

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Divide; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Divide, by a number that is not differentiated."""
        return update.map(_scaled)


def read_signs(link: Sign, plan: AttackPlan) -> AttackPlan:
    """Match the gradient itself to the signs, tensor by tensor on the same scale.

    Many inputs have the right signs. Of those a search finds by simulating them, smoothed or with
    a made-up slope, fewer resemble the truth than of those whose gradient lies along the signs.
    """
    return plan.replace_link(link, UnitScale())


def _scaled(tensor: Tensor) -> Tensor:
    size = tensor.detach().square().mean().sqrt()
    return tensor / size.clamp_min(torch.finfo(tensor.dtype).tiny)


MISLEADING: Mapping[type, Callable[[Any, AttackPlan], AttackPlan]] = MappingProxyType(
    {Prune: read_survivors, Sign: read_signs, TopK: read_survivors}
)
"""By class of defense, what is read off the update instead."""


def searchable(attack: Attack, observation: Observation) -> Observation:
    """The observation with a simulation whose slope leads to the truth.

    Pruning a candidate's update leaves other entries than the client's did until the candidate is
    nearly right. Those it removes have no slope, and those it keeps in vain count in full: a search
    that knew of the pruning found less than one that did not. The update shows which entries
    survived, so those are compared, and the others must only be small enough to have been removed.
    At the truth this gives the observed update, as pruning does. Signs are alike.

    Args:
        attack: What searches.
        observation: What was observed.
    """
    if observation.simulate.client is None:
        return observation
    plan = AttackPlan(attack, observation)
    for link in reversed(plan.defense.links):
        if type(link) in MISLEADING:
            plan = MISLEADING[type(link)](link, plan)
    return plan.observation
