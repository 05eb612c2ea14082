"""The adversary's run of the client."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from seepage.clients import Client
from seepage.core import Task, Update


@dataclass(frozen=True, eq=False)
class Simulation:
    """What the client would share for a candidate, as far as the adversary knows the client."""

    client: Client
    task: Task

    def __call__(self, inputs: Tensor, labels: Tensor) -> Update:
        """Run the client's own code without its randomness, differentiable in the inputs."""
        return self.client.expected(self.task, inputs, labels)
