"""One cell of the grid: everything that decides a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from seepage.audit.victims import Victims
from seepage.clients import Client
from seepage.core import Attack, Metric, Task
from seepage.core.digest import digest, lasting
from seepage.core.version import __version__
from seepage.threats import Threat


@dataclass(frozen=True, eq=False)
class Case:
    """One attack on one client's update.

    Args:
        task: What was broadcast.
        client: Who shares, and behind which defense.
        threat: What the adversary knows.
        attack: What it does.
        attack_name: What records call it.
        victims: Whose data is private.
        seed: Of the client's randomness and, apart from it, the adversary's.
        metrics: What to measure; None takes all that fit the inputs.
    """

    task: Task
    client: Client
    threat: Threat
    attack: Attack
    attack_name: str
    victims: Victims
    seed: int
    metrics: Sequence[Metric] | None = None

    @cached_property
    def identity(self) -> dict[str, str]:
        """Everything that decides the result, by name, as words."""
        task, victims = self.task, self.victims
        metrics = "all" if self.metrics is None else ", ".join(m.name for m in self.metrics)
        return {
            "seepage": __version__,
            "data": victims.data,
            "people": str(victims.people),
            "inputs": victims.digest,
            "model": f"{task.name}, mode={task.mode!r}",
            "domain": repr(task.domain),
            "weights": task.digest,
            "local": repr(self.client.local),
            "defense": repr(self.client.defense),
            "threat": repr(self.threat),
            "attack": self.attack_name,
            "options": lasting(self.attack),
            "metrics": metrics,
            "seed": str(self.seed),
        }

    @cached_property
    def id(self) -> str:
        """A hash of the identity: equal for equal cases in every process and on every machine."""
        return digest(json.dumps(self.identity))

    @property
    def name(self) -> str:
        """What records call the attack."""
        return self.attack_name

    @property
    def alike(self) -> tuple[str, ...]:
        """What cases must share to run together: they differ in people and seed alone."""
        shape = tuple(self.victims.batch.inputs.shape)
        parts = (self.task.digest, self.client, self.threat, self.attack_name, shape)
        return tuple(map(repr, parts))

    @property
    def description(self) -> str:
        """One line that says more, for plans."""
        return f"{self} ({self.task.name}, {self.client.local}, seed {self.seed})"

    def __str__(self) -> str:
        """One line for progress."""
        people = ", ".join(map(str, self.victims.people))
        who = f"{self.victims.data} #{people}"
        return f"{self.attack_name} on {who} behind {self.client.defense}"
