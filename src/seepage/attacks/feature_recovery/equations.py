"""The equations dL/dA = R^T sigma(Z W^T + c): K of them for each neuron, as far as seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.feature_recovery.activation import Activation
from seepage.attacks.feature_recovery.head import TwoLayerHead


@dataclass(frozen=True, eq=False)
class Equations:
    """For features in n coordinates: the residual, and its derivative in both directions.

    An entry that is exactly zero was pruned or dropped, or comes from a neuron that is silent for
    everybody; it is left out, so that pruning makes fewer equations and none of them wrong.

    Args:
        weight: `(m, n)`: W itself, or W V for features in the span of the columns of V.
        bias: c, `(m,)`.
        activation: sigma.
        wanted: dL/dA, `(K, m)`.
        seen: Which of its entries count, `(K, m)`.
    """

    weight: Tensor
    bias: Tensor
    activation: Activation
    wanted: Tensor
    seen: Tensor

    def within(self, span: Tensor) -> Equations:
        """The same for coordinates in a span `(n, k)`."""
        return replace(self, weight=self.weight @ span)

    def hidden(self, features: Tensor) -> Tensor:
        """Z W^T + c, `(B, m)`."""
        return features @ self.weight.T + self.bias

    def residual(self, hidden: Tensor, shares: Tensor) -> Tensor:
        """R^T S less what was observed, where that is seen, `(K, m)`."""
        return self.seen * (shares.T @ self.activation(hidden) - self.wanted)

    def shares(self, hidden: Tensor) -> Tensor:
        """The R `(B, K)` that explains most, which is linear."""
        passed = self.activation(hidden)
        normal = torch.einsum("im,km,jm->kij", passed, self.seen, passed)
        right = torch.einsum("im,km->ki", passed, self.wanted)
        # Enough for the rows of a class of which nothing is seen, and for equal features.
        least = torch.finfo(passed.dtype).eps * normal.diagonal(dim1=1, dim2=2).mean(1) + 1e-30
        identity = torch.eye(len(passed), dtype=passed.dtype, device=passed.device)
        ridge = least[:, None, None] * identity
        solved: Tensor = torch.linalg.solve_ex(normal + ridge, right[..., None])[0]
        return torch.nan_to_num(solved[..., 0].T)

    def misfit(self, features: Tensor) -> float:
        """Relative residual of features at their best R: 0 explains all, 1 nothing."""
        hidden = self.hidden(features)
        left = self.residual(hidden, self.shares(hidden)).norm()
        return float(left / self.wanted.norm())


def equations(head: TwoLayerHead) -> Equations:
    """Those of a head's last layer."""
    seen = (head.last != 0).to(head.last)
    return Equations(head.weight, head.bias, head.activation, head.last, seen)
