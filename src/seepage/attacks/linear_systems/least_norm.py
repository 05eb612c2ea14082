"""The norm of a candidate, for what nothing else decides."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from seepage.attacks.gradient_matching import Candidate
from seepage.core import Observation


@dataclass(frozen=True, kw_only=True)
class LeastNorm:
    """The mean square of the candidate in normalised coordinates, where R-GAP's norm is least.

        mean x_j^2

    Total variation hardly sees slow changes over an image and none of its channels' means. Where
    the linear system leaves them open as well, a search drifts, and this holds it.

    Args:
        weight: Factor in the objective.

    References:
        Zhu and Blaschko, 2021 (zhu2021recursive), on the solution of least norm
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Average the squares."""
        return candidate.normalised.square().mean()
