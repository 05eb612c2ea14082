"""What plausible inputs look like."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.core import Observation


@dataclass(frozen=True, kw_only=True)
class TotalVariation:
    """Anisotropic total variation: the mean absolute difference of neighbours, along each axis.

        mean |x[.., i+1, :] - x[.., i, :]| + mean |x[.., :, j+1] - x[.., :, j]|

    Taken over valid differences only, so that a constant image scores 0, and in normalised
    coordinates. Works on images and, along their one axis, on signals.

    References:
        Rudin et al., 1992 (rudin1992nonlinear); Geiping et al., 2020, Eq. 4
        (geiping2020inverting)
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Measure the roughness of the candidate."""
        axes = range(2 - len(candidate.domain.shape) - 1, 0)
        return torch.stack([candidate.normalised.diff(dim=a).abs().mean() for a in axes]).sum()
