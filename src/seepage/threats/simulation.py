"""The adversary's run of the client."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.clients import Client
from seepage.core import Batch, Lesson, Mixing, Task, Update
from seepage.defenses import mix


@dataclass(frozen=True, eq=False)
class Simulation:
    """What the client would share for a candidate, as far as the adversary knows the client.

    Args:
        client: The client, with what is known of its defense.
        task: What was broadcast.
        mixing: How the client mixed its data, if the candidate stands for the data before that.
    """

    client: Client
    task: Task
    mixing: Mixing | None = None

    def __call__(self, inputs: Tensor, labels: Tensor) -> Update:
        """Run the client's own code without its randomness, differentiable in the inputs."""
        batch = self._mixed(Batch(inputs, labels))
        return self.client.expected(self.task, batch.inputs, batch.labels)

    def trained_on(self, inputs: Tensor) -> Tensor:
        """What one client would run the network on for this candidate."""
        unlabelled = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
        batch = self._mixed(Batch(inputs, unlabelled))
        return self.client.chain.rehearse(Lesson.plain(self.task, batch)).batch.inputs

    def _mixed(self, batch: Batch) -> Batch:
        if self.mixing is None:
            return batch
        return mix(batch, self.mixing, classes=self.task.classes)
