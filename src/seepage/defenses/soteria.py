"""Soteria: prune the representation that the last layer's gradient reveals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.core import PreparedBatch, Rng
from seepage.core.errors import InvalidValue
from seepage.core.protocols import Stage
from seepage.defenses.chain import OnInputs
from seepage.probing.heads import head_of, representation

CHUNK = 64


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
        mask[scores.argsort()[: int(self.ratio * len(scores))]] = 0.0
        return replace(prepared, masks={**prepared.masks, f"{name}.weight": mask})

    def sensitivity(self, prepared: PreparedBatch) -> Tensor:
        """Compute s_i of every feature, `(D,)`."""
        _, head = head_of(prepared.task, needed_by=self)
        inputs = prepared.batch.inputs.detach().requires_grad_()
        features = representation(prepared.task, inputs, head)
        basis = torch.eye(features.shape[1]).to(features)
        norms = torch.cat(
            [_norm_slopes(features, inputs, part) for part in torch.split(basis, CHUNK)]
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
