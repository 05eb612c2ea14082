"""One cell of the grid: everything that decides a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch

from seepage import __version__
from seepage.attacks._unmixed import Unmixed
from seepage.audit._record import Defense
from seepage.audit._targets import Target
from seepage.bounds._bound import Bound
from seepage.core import ActiveAttack, Attack, Batch, Metric, Observation, Rng, Task, Update
from seepage.core._client import Client
from seepage.core._construct import Component
from seepage.core._digest import digest, stable_repr
from seepage.core._once import once
from seepage.core._rng import require_seed
from seepage.core.errors import InvalidValue
from seepage.rehearsal._attack_protocols import Searches
from seepage.threats._threat import Threat

Identity = dict[str, Any]
ControlKind = Literal["canary", "noise", "search"]


def describe_defense(client: Client) -> Defense:
    """Describe the client's defense as values, link by link."""
    return tuple(map(Component.of, client.chain.links))


def describe_threat(threat: Threat) -> Component:
    """Describe a threat as values; one round is not named."""
    known = Component.of(threat)
    if threat.rounds > 1:
        return known
    return replace(known, arguments={k: v for k, v in known.arguments.items() if k != "rounds"})


def is_own(link: object) -> bool:
    """Whether a defense is a user's, and not one of Seepage."""
    return not type(link).__module__.startswith("seepage.")


def _require_simulated(client: Client, task: Task) -> None:
    """Raise if a user's defense shares something unlike what its `expected` says."""
    for link in client.chain.update_defenses:
        if link.consumes == "aggregate" and is_own(link):
            drawn = {n: Rng(0).fork(n).normal(p.shape, like=p) for n, p in task.parameters.items()}
            sent, again = (link(Update(drawn), rng=Rng(i)).flat().detach() for i in range(2))
            told = link.expected(Update(drawn)).flat().detach()
            # Signs and the largest hundredth of the entries are more alike than that.
            if torch.equal(sent, again) and told @ sent < 0.1 * told.norm() * sent.norm():
                raise InvalidValue(
                    f"{link!r} draws nothing, but shares an update unlike the one that its "
                    "`expected` gives, so no attack can simulate it; see testing.check_defense"
                )


def client_key(seed: int, client: Client, target: Target) -> Rng:
    """Return the key of everything that a simulated client draws.

    It is computed from the private data, which no attack has. Every client and every defense has
    another key: otherwise the difference of two updates would be free of noise. All attacks see the
    same update.
    """
    return Rng(seed).fork("client", target.secret, stable_repr(client.chain))


def require_permission(name: str | Component, attack: Attack, threat: Threat) -> None:
    """Raise `InvalidValue` if an attack needs a malicious server, or uses one of several rounds."""
    if isinstance(attack, ActiveAttack) and threat.server != "malicious":
        raise InvalidValue(
            f"{name} plants a network of its own, which an honest server does not do; set "
            "server = 'malicious' in the threat"
        )
    if threat.rounds > 1 and not isinstance(attack, Unmixed):
        raise InvalidValue(
            f"{name} attacks one update, but the threat has {threat.rounds} rounds; give it "
            "unmix = true, which uses all of them, or leave rounds out of the threat"
        )


class _GridCell:
    """What the case of an attack and of a bound have in common."""

    task: Task
    client: Client
    target: Target
    seed: int

    @cached_property
    def identity(self) -> Identity:
        """Everything that decides the result, as plain data by name."""
        task, client, target = self.task, self.client, self.target
        # A captured update brings the weights that were broadcast.
        sent = task if target.captured is None else target.captured.observe(task).task
        return {
            "seepage": __version__,
            "data": target.data,
            "people": list(target.people),
            "inputs": target.digest,
            "model": f"{task.name}, mode={task.mode!r}",
            "domain": repr(task.domain),
            "weights": sent.digest,
            "batch_size": len(target.people),
            "local": asdict(Component.of(client.local)),
            "defense": [asdict(link) for link in describe_defense(client)],
            "keys": "one per client",
            **self._identify(),
        }

    def _identify(self) -> Identity:
        raise NotImplementedError

    @cached_property
    def id(self) -> str:
        """A hash of the identity: equal for equal cases in every process and on every machine."""
        return digest(json.dumps(self.identity))

    @property
    def private(self) -> Batch:
        """The private batch, on the device of the network and in its precision."""
        return self.task.move_batch(self.target.require_batch())

    @property
    def description(self) -> str:
        """One line for plans, longer than `str`."""
        return f"{self} ({self.task.name}, {self.client.local}, seed {self.seed})"

    @property
    def _examples(self) -> str:
        return f"{self.target.data} #{', '.join(map(str, self.target.people))}"


def _replace_by_noise(seen: Observation, rng: Rng) -> Observation:
    """Replace the update by normal noise; each tensor keeps its norm."""
    drawn = {}
    for name, tensor in seen.update.tensors.items():
        noise = rng.fork(name).normal(tuple(tensor.shape)).to(tensor)
        drawn[name] = noise * (tensor.norm() / noise.norm().clamp(min=1e-12))
    others = tuple(
        _replace_by_noise(other, rng.fork("round", number))
        for number, other in enumerate(seen.others, start=1)
    )
    return replace(seen, update=replace(seen.update, tensors=drawn), others=others)


@once
def observe_target(
    target: Target, client: Client, threat: Threat, task: Task, seed: int
) -> Observation:
    """What the adversary sees: the captured update, or one that the client computes now."""
    _require_simulated(client, task)
    if target.captured is not None:
        known = client.defense if threat.knows_defense else None
        return target.captured.observe(task, defense=known)
    private = task.move_batch(target.require_batch())
    return threat.observe(client, task, private, rng=client_key(seed, client, target))


@dataclass(frozen=True, eq=False)
class Case(_GridCell):
    """One attack on one client's update.

    Args:
        task: What is trained; an attack that plants a network broadcasts that one instead.
        client: Who shares, and behind which defense.
        threat: What the adversary knows.
        attack: What it does.
        attack_name: What records call it.
        target: Whose data is private.
        seed: Of the adversary's randomness and, together with the private data, of the client's.
        metrics: What to measure besides what verdicts read; None takes all that fit the inputs.
        control: For a control, what is attacked: canaries, noise of the norms of their update, or
            canaries by the search alone.
        others: For a control, people whom its guess has no part of.
    """

    task: Task
    client: Client
    threat: Threat
    attack: Attack
    attack_name: str | Component
    target: Target
    seed: int
    metrics: Sequence[Metric] | None = None
    control: ControlKind | None = None
    others: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", require_seed(self.seed))
        require_permission(self.attack_name, self.attack, self.threat)

    @cached_property
    def broadcast(self) -> Task:
        """The network the client receives: the task, or what the server planted."""
        if not isinstance(self.attack, ActiveAttack):
            return self.task
        return self.attack.plant(self.task, rng=Rng(self.seed).fork("adversary", "plant"))

    def _identify(self) -> Identity:
        metrics = "all" if self.metrics is None else ", ".join(m.name for m in self.metrics)
        judged = {} if self.metrics is None else {"judged by": "any list of metrics"}
        return {
            "threat": asdict(describe_threat(self.threat)),
            "attack": asdict(Component.of(self.attack_name)),
            "options": stable_repr(self.attack),
            "metrics": metrics,
            **judged,
            "seed": self.seed,
            "control": self.control,
            "others": [target.digest for target in self.others],
        }

    def observe(self) -> Observation:
        """What the adversary sees: the captured update, or one that the client computes now."""
        captured = self.target.captured is not None
        task = self.task if captured else self.broadcast
        seen = observe_target(self.target, self.client, self.threat, task, self.seed)
        if captured or self.control != "noise":
            return seen
        key = client_key(self.seed, self.client, self.target)
        return _replace_by_noise(seen, key.fork("noise"))

    def search_alone(self) -> list[Case]:
        """The same control for the search alone; empty if the attack has no closed form."""
        if not isinstance(self.attack, Searches):
            return []
        try:
            alone = self.attack.search_alone(self.observe())
        except Exception:  # noqa: BLE001 - the control fails as well, and says why
            return []
        return [replace(self, attack=alone, control="search", others=())] if alone else []

    @property
    def name(self) -> str:
        """What records call the attack."""
        return str(self.attack_name)

    @property
    def batch_key(self) -> tuple[str, ...]:
        """What cases must share to run together.

        They may differ in examples, seed and what is done to a finished update.
        """
        size, captured = len(self.target.people), self.target.captured
        # Captures bring weights of their own, so they have to be the same.
        capture = None if captured is None else captured.digest
        network = (self.task.digest, self.task.domain)
        client = self.client.local if self.client.chain.only_changes_update else self.client
        # Two audits may use one name for different attacks.
        attack = (self.name, stable_repr(self.attack))
        return tuple(map(repr, (*network, client, self.threat, *attack, size, capture)))

    def __str__(self) -> str:
        behind = f" behind {self.client.defense}" if self.client.chain.links else ""
        control = f"{self.control} control: " if self.control else ""
        return f"{control}{self.attack_name} on {self._examples}{behind}"


@dataclass(frozen=True, eq=False)
class BoundCase(_GridCell):
    """One bound on all attacks on one client's update.

    Args:
        task: What was broadcast, in the mode the client runs it.
        client: Who shares, and behind which defense.
        bound: What is computed.
        name: What records call it.
        target: Whose data is private; its batch must be known.
        seed: Of the directions that some bounds sample.
    """

    task: Task
    client: Client
    bound: Bound
    name: str | Component
    target: Target
    seed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", require_seed(self.seed))
        self.target.require_batch()

    def _identify(self) -> Identity:
        return {
            "bound": asdict(Component.of(self.name)),
            "options": stable_repr(self.bound),
            "seed": self.seed,
        }

    @property
    def batch_key(self) -> tuple[str, ...]:
        """What cases must share to run together: a bound always runs alone."""
        return (self.id,)

    def __str__(self) -> str:
        return f"bound {self.name} for {self._examples} behind {self.client.defense}"
