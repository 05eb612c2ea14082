"""Comparing updates by a Gaussian kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.core import Observation
from seepage.core.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class GaussianKernel:
    """One minus a Gaussian kernel of the difference, averaged over tensors.

        mean_i  1 - exp(-||g_i(x) - g*_i||^2 / (2 h_i^2))

    Small differences count as in `L2`, large ones saturate at 1, so that no single tensor rules.

    Args:
        weight: Factor in the objective.
        bandwidth: h, the same for every tensor. None adapts it to the spread of each observed
            tensor: h_i = ||g*_i||, its root mean square times the root of its number of entries.
            A tensor observed as zero takes the root mean square of the whole update.

    Deviations:
        The paper adapts its kernel to the variance of the gradient and to the architecture. Here
        the variance is taken about zero (a bias of one entry has no other) and scaled by the
        number of entries, so that the kernel does not saturate at the start; tensors count
        equally.

    References:
        Wang et al., 2020 (wang2020sapag)
    """

    weight: float = 1.0
    bandwidth: float | None = None

    def __post_init__(self) -> None:
        """Check the bandwidth."""
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise InvalidValue(f"expected bandwidth > 0 or None, got {self.bandwidth!r}")

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Average the saturated distances."""
        observed = observation.update
        overall = observed.flat().square().mean()
        apart = []
        for name, theirs in observed.tensors.items():
            square = (candidate.update.tensors[name] - theirs).square().sum()
            apart.append(-torch.expm1(-square / (2 * self._squared_bandwidth(theirs, overall))))
        return torch.stack(apart).mean()

    def _squared_bandwidth(self, theirs: Tensor, overall: Tensor) -> Tensor | float:
        if self.bandwidth is not None:
            return self.bandwidth**2
        energy = theirs.square().sum()
        energy = torch.where(energy > 0, energy, overall * theirs.numel())
        return torch.where(energy > 0, energy, 1)
