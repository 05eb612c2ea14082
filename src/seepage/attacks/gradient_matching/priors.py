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

    Args:
        weight: Factor in the objective.
        absolute: Measure |x| instead of x, for images whose pixels have random signs (InstaHide).

    References:
        Rudin et al., 1992 (rudin1992nonlinear); Geiping et al., 2020, Eq. 4
        (geiping2020inverting); of |x|: Huang et al., 2021, Sec. 5.1 (huang2021evaluating)
    """

    weight: float
    absolute: bool = False

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Measure the roughness of the candidate."""
        inputs = candidate.normalised.abs() if self.absolute else candidate.normalised
        axes = range(1 - len(candidate.domain.shape), 0)
        # One pixel has no neighbour, and the mean of nothing is not a number.
        rough = [inputs.diff(dim=a).abs().mean() for a in axes if inputs.shape[a] > 1]
        return torch.stack(rough).sum() if rough else inputs.new_zeros(())


@dataclass(frozen=True, kw_only=True)
class SquaredNorm:
    """The sum of squares of the candidate, in natural units: ||x||_F^2.

    It draws images towards black, and keeps sigmoid networks from saturating early on.

    Deviations:
        Squared, where the paper prints ||x||_F and calls it the L2 regulariser: the norm itself
        has no gradient at zero.

    References:
        Qian and Hansen, 2020, Eq. 2 (qian2020what)
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the squares."""
        return candidate.inputs.square().sum()


@dataclass(frozen=True, kw_only=True)
class Orthogonality:
    """How much the inputs of one batch resemble each other, in natural units.

        sum_{k != k'} (x_k . x_k')^2

    Every pair counts twice, as the sum is written. Zero for a batch of one.

    References:
        Qian and Hansen, 2020, Eq. 3 (qian2020what)
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the squared inner products of different inputs."""
        flat = candidate.inputs.flatten(1)
        products = flat @ flat.T
        return (products - torch.diag_embed(products.diagonal())).square().sum()


@dataclass(frozen=True, kw_only=True)
class GroupConsistency:
    """The mean squared distance from the mean over all restarts, in normalised coordinates.

    Restarts that agree are left alone; one that strays is drawn back.

    Deviations:
        The consensus is the pixelwise mean, without the paper's registration of the restarts with
        each other; a mean over entries rather than a sum, so that `weight` does not depend on the
        size of the images.

    References:
        Yin et al., 2021, Sec. 3.3 (yin2021see)
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Measure the distance from the consensus."""
        return (candidate.normalised - candidate.consensus).square().mean()
