"""One cell of the grid: everything that decides a result."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.audit.victims import Victims
from seepage.clients import Client
from seepage.core import Attack, Task
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
    """

    task: Task
    client: Client
    threat: Threat
    attack: Attack
    attack_name: str
    victims: Victims
    seed: int

    def __str__(self) -> str:
        """One line for progress."""
        people = ", ".join(map(str, self.victims.people))
        who = f"{self.victims.data} #{people}"
        return f"{self.attack_name} on {who} behind {self.client.defense}"
