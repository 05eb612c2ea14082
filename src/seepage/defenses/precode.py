"""PRECODE: a variational bottleneck, so that the gradient is computed on a random code."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from seepage.core import PreparedBatch, Rng, Task
from seepage.core.errors import InvalidValue
from seepage.core.protocols import Stage
from seepage.defenses.chain import OnInputs
from seepage.probing.heads import head_of


class VariationalBottleneck(nn.Module):
    """A layer behind a random code: r -> (mu, log var), z = mu + std * noise, layer(decode(z))."""

    noise: Tensor

    def __init__(self, layer: nn.Linear, code: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(layer.in_features, 2 * code)
        self.decoder = nn.Linear(code, layer.in_features)
        self.layer = layer
        self.register_buffer("noise", torch.zeros(1, code), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """Encode, add the noise that is set, decode."""
        if len(self.noise) not in (1, len(features)):
            raise InvalidValue(
                f"PRECODE drew noise for {len(self.noise)} examples, but got {len(features)}; "
                "it does not fit ClipEach or local batches"
            )
        mean, log_variance = self.encoder(features).chunk(2, dim=1)
        decoded: Tensor = self.decoder(mean + torch.exp(log_variance / 2) * self.noise)
        logits: Tensor = self.layer(decoded)
        return logits


@dataclass(frozen=True, repr=False)
class Precode(OnInputs):
    """Put a variational bottleneck before the last layer of the network.

    The client draws z ~ N(mu(x), var(x)) anew for every example. The server knows the bottleneck
    but not the draw, and simulates the mean code.

    Args:
        code: Length of the code.
        seed: Seed of the bottleneck's weights.

    Deviations:
        The loss sees only the outputs, so it leaves out the divergence of the code from its prior,
        which the paper weighs by 1e-3. Local steps share one draw.

    References:
        Scheliga et al., 2022 (scheliga2022precode)
    """

    stage: ClassVar[Stage] = "network"

    code: int = 256
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.code < 1:
            raise InvalidValue(f"expected a code of length >= 1, got {self.code!r}")

    def broadcast(self, task: Task) -> Task:
        """Insert the bottleneck, without noise."""
        name, head = head_of(task, needed_by=self)
        model = copy.deepcopy(task.model)
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            torch.default_generator.manual_seed(self.seed)
            bottleneck = VariationalBottleneck(copy.deepcopy(head), self.code)
        model.set_submodule(name, bottleneck.to(head.weight))
        return replace(task, model=model, name=f"{task.name} behind {self}")

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Draw noise for every example."""
        model = copy.deepcopy(prepared.task.model)
        found = [m for m in model.modules() if isinstance(m, VariationalBottleneck)]
        if not found:
            raise InvalidValue(
                f"{prepared.task.name} has no bottleneck; use client.broadcast(task)"
            )
        shape = (len(prepared.batch), self.code)
        found[-1].noise = rng.normal(shape, like=found[-1].noise)
        return replace(prepared, task=replace(prepared.task, model=model))
