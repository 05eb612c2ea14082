"""One cell of the grid: everything that decides a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from seepage import __version__
from seepage.audit.record import Defense
from seepage.audit.targets import Strangers, Victims
from seepage.bounds import Bound
from seepage.clients import Client
from seepage.core import ActiveAttack, Attack, Batch, Metric, Observation, Rng, Task
from seepage.core.construct import Component
from seepage.core.digest import digest, stable_repr
from seepage.core.errors import InvalidValue
from seepage.threats import Threat

Identity = dict[str, Any]


def describe_defense(client: Client) -> Defense:
    """The client's defense as values, link by link."""
    return tuple(map(Component.of, client.chain.links))


def _identify_client(task: Task, client: Client, victims: Victims | Strangers) -> Identity:
    """Who shares what, as plain data by name."""
    return {
        "seepage": __version__,
        "data": victims.data,
        "people": list(victims.people),
        "inputs": victims.digest,
        "model": f"{task.name}, mode={task.mode!r}",
        "domain": repr(task.domain),
        "weights": task.digest,
        "batch_size": len(victims.people),
        "local": asdict(Component.of(client.local)),
        "defense": [asdict(link) for link in describe_defense(client)],
        # Results of audits in which all clients drew the same noise are not reused.
        "keys": "one per client",
    }


def client_key(seed: int, client: Client, victims: Victims) -> Rng:
    """Return the key of everything that a simulated client draws.

    It is computed from the private data, which makes it reproducible for whoever has the data and
    out of reach for an attack, which has not. Every client has another key, and so has every
    defense of the same client: otherwise the difference of two updates is free of noise. The attack
    does not count, so that all attacks see the same update.

    Args:
        seed: Of the case.
        client: Who shares, and behind which defense.
        victims: Whose data is private.
    """
    return Rng(seed).fork("client", victims.secret, stable_repr(client.chain))


def _hash_identity(identity: Identity) -> str:
    """Equal for equal identities in every process and on every machine."""
    return digest(json.dumps(identity))


def named(victims: Victims | Strangers) -> str:
    """Whose data it is, for one line."""
    return f"{victims.data} #{', '.join(map(str, victims.people))}"


def require_permission(name: str | Component, attack: Attack, threat: Threat) -> None:
    """Raise `InvalidValue` if an attack needs a server that cheats and the threat has none."""
    if isinstance(attack, ActiveAttack) and threat.server != "malicious":
        raise InvalidValue(
            f"{name} plants a network of its own, which an honest server does not do; set "
            "server = 'malicious' in the threat"
        )


@dataclass(frozen=True, eq=False)
class Case:
    """One attack on one client's update.

    Args:
        task: What is trained; an attack that plants broadcasts another network in its place.
        client: Who shares, and behind which defense.
        threat: What the adversary knows.
        attack: What it does.
        attack_name: What records call it.
        victims: Whose data is private.
        seed: Of the adversary's randomness and, together with the private data, of the client's.
        metrics: What to measure; None takes all that fit the inputs.
    """

    task: Task
    client: Client
    threat: Threat
    attack: Attack
    attack_name: str | Component
    victims: Victims | Strangers
    seed: int
    metrics: Sequence[Metric] | None = None

    def __post_init__(self) -> None:
        """Refuse a server that would have to cheat and may not."""
        require_permission(self.attack_name, self.attack, self.threat)

    @cached_property
    def broadcast(self) -> Task:
        """The network the client receives: the task, or what the server planted."""
        if not isinstance(self.attack, ActiveAttack):
            return self.task
        return self.attack.plant(self.task, rng=Rng(self.seed).fork("adversary", "plant"))

    @cached_property
    def identity(self) -> Identity:
        """Everything that decides the result, as plain data by name."""
        metrics = "all" if self.metrics is None else ", ".join(m.name for m in self.metrics)
        return {
            **_identify_client(self.task, self.client, self.victims),
            "threat": asdict(Component.of(self.threat)),
            "attack": asdict(Component.of(self.attack_name)),
            "options": stable_repr(self.attack),
            "metrics": metrics,
            "seed": self.seed,
        }

    @cached_property
    def id(self) -> str:
        """A hash of the identity: equal for equal cases in every process and on every machine."""
        return _hash_identity(self.identity)

    def observe(self) -> Observation:
        """What the adversary sees: the captured update, or one that the client computes now."""
        tapped = self.victims.tapped
        if tapped is not None:
            known = self.client.defense if self.threat.knows_defense else None
            return tapped.observe(self.task, defense=known)
        assert isinstance(self.victims, Victims)  # strangers are known by their update alone
        key = client_key(self.seed, self.client, self.victims)
        return self.threat.observe(self.client, self.broadcast, self.private, rng=key)

    @property
    def private(self) -> Batch:
        """The private batch, where the network is."""
        assert isinstance(self.victims, Victims)  # strangers are known by their update alone
        reference = next(iter(self.task.parameters.values()))
        return self.victims.batch.to(device=reference.device, dtype=reference.dtype)

    @property
    def name(self) -> str:
        """What records call the attack."""
        return str(self.attack_name)

    @property
    def alike(self) -> tuple[str, ...]:
        """What cases must share to run together.

        They may differ in people, in seed, and in what is done to a finished update: up to there
        all such clients compute the same.
        """
        size, tapped = len(self.victims.people), self.victims.tapped
        # Captures bring weights of their own, so that what was captured has to be the same.
        captured = None if tapped is None else tapped.digest
        network = (self.task.digest, self.task.domain)
        client = self.client.local if self.client.chain.only_changes_update else self.client
        # One attack runs for all, so that its name does not do: two audits may use it otherwise.
        attack = (self.name, stable_repr(self.attack))
        return tuple(map(repr, (*network, client, self.threat, *attack, size, captured)))

    @property
    def description(self) -> str:
        """One line that says more, for plans."""
        return f"{self} ({self.task.name}, {self.client.local}, seed {self.seed})"

    def __str__(self) -> str:
        """One line for progress."""
        behind = f" behind {self.client.defense}" if self.client.chain.links else ""
        return f"{self.attack_name} on {named(self.victims)}{behind}"


def known(victims: Victims | Strangers) -> Victims:
    """Raise `InvalidValue` unless the private batch is at hand, where bounds are evaluated."""
    if isinstance(victims, Strangers):
        raise InvalidValue(
            f"a bound is evaluated at the private inputs, which nobody has for {victims.data}; "
            "leave bounds out, or give the truth"
        )
    return victims


@dataclass(frozen=True, eq=False)
class BoundCase:
    """One bound on all attacks on one client's update.

    Args:
        task: What was broadcast, in the mode the client runs it.
        client: Who shares, and behind which defense.
        bound: What is computed.
        name: What records call it.
        victims: Whose data is private.
        seed: Of the directions that some bounds sample.
    """

    task: Task
    client: Client
    bound: Bound
    name: str | Component
    victims: Victims
    seed: int

    @cached_property
    def identity(self) -> Identity:
        """Everything that decides the result, as plain data by name."""
        return {
            **_identify_client(self.task, self.client, self.victims),
            "bound": asdict(Component.of(self.name)),
            "options": stable_repr(self.bound),
            "seed": self.seed,
        }

    @cached_property
    def id(self) -> str:
        """A hash of the identity: equal for equal cases in every process and on every machine."""
        return _hash_identity(self.identity)

    @property
    def alike(self) -> tuple[str, ...]:
        """What cases must share to run together: nothing runs together with a bound."""
        return (self.id,)

    @property
    def description(self) -> str:
        """One line that says more, for plans."""
        return f"{self} ({self.task.name}, {self.client.local}, seed {self.seed})"

    def __str__(self) -> str:
        """One line for progress."""
        return f"bound {self.name} for {named(self.victims)} behind {self.client.defense}"
