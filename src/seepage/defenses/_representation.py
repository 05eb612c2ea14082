"""Defenses of the representation before the last layer: prune it, or put a random code there.

The gradient of the last layer gives away what the layer read.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor, nn

from seepage.core import PreparedBatch, Rng, Task
from seepage.core._chain import OnInputs
from seepage.core._draws import PrivateDraws
from seepage.core._protocols import Stage
from seepage.core._rng import require_seed
from seepage.core.errors import InvalidValue
from seepage.probing._heads import head_of, representation

# Features whose slopes are computed at once.
_CHUNK = 64


@dataclass(frozen=True, repr=False)
class Soteria(OnInputs):
    """Prune from the last layer's gradient the features that mislead a reconstruction most.

    The gradient reveals the representation r before the last layer. Setting a feature r_i to zero
    there moves the input that fits it by about |r_i| / ||dr_i/dx||. With

        s_i = sum over the batch of ||dr_i/dx|| / |r_i|

    the fraction `ratio` of features with the smallest s_i is pruned: their columns of the gradient
    of the last layer's weights are set to zero. s_i is infinite if r_i is zero for any example.

    The adversary sees which columns are zero. `prepare_expected` does not simulate them, since the
    choice depends on the private data.

    Args:
        ratio: Fraction of features pruned, in [0, 1].

    Deviations:
        All local steps use the choice made at the first.

    References:
        Sun et al., 2021 (sun2021soteria); their code sums over the batch
    """

    label = "Soteria {ratio:g}"
    stage: ClassVar[Stage] = "network"

    ratio: float

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1:
            raise InvalidValue(f"expected a pruning ratio in [0, 1], got {self.ratio!r}")

    def prepare(self, prepared: PreparedBatch, *, rng: Rng) -> PreparedBatch:
        """Choose the columns; the client multiplies its update by the mask."""
        name, _ = head_of(prepared.task, needed_by=self)
        scores = self.sensitivity(prepared)
        mask = torch.ones_like(scores)
        # The product of floats would bring 0.29 * 100 below 29.
        pruned = math.floor(Fraction(str(self.ratio)) * len(scores))
        mask[scores.argsort()[:pruned]] = 0.0
        return replace(prepared, masks={**prepared.masks, f"{name}.weight": mask})

    def sensitivity(self, prepared: PreparedBatch) -> Tensor:
        """Compute s_i of every feature, `(D,)`."""
        _, head = head_of(prepared.task, needed_by=self)
        inputs = prepared.batch.inputs.detach().requires_grad_()
        features = representation(prepared.task, inputs, head)
        basis = torch.eye(features.shape[1]).to(features)
        norms = torch.cat(
            [_norm_slopes(features, inputs, part) for part in torch.split(basis, _CHUNK)]
        )
        sizes = features.detach().abs().T
        return torch.where(sizes > 0, norms / sizes, torch.inf).sum(1)


def _norm_slopes(features: Tensor, inputs: Tensor, chosen: Tensor) -> Tensor:
    """Compute ||dr_i/dx|| of some features for each example, `(N, B)`."""
    towards = chosen.unsqueeze(1).expand(-1, len(features), -1)
    (slopes,) = torch.autograd.grad(
        features, inputs, towards, is_grads_batched=True, retain_graph=True
    )
    norms: Tensor = slopes.flatten(2).norm(dim=2)
    return norms


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

    label = "Precode {code}"
    stage: ClassVar[Stage] = "network"

    code: int = 256
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if self.code < 1:
            raise InvalidValue(f"expected a code of length >= 1, got {self.code!r}")
        require_seed(self.seed)

    def broadcast(self, task: Task) -> Task:
        """Insert the bottleneck, without noise."""
        name, head = head_of(task, needed_by=self)
        model = copy.deepcopy(task.model)
        with PrivateDraws(self.seed), torch.device("cpu"):
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
