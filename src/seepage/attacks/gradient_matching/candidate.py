"""A candidate reconstruction under optimisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from seepage.core import Domain


@dataclass(frozen=True, eq=False)
class Candidate:
    """Inputs being searched for, with the labels they are assumed to have.

    The search runs in normalised coordinates, where the papers state their step sizes, boxes and
    priors; `inputs` gives natural units for the client's computation.

    Args:
        normalised: `(B, ...)`, as the network sees them.
        labels: `(B,)` classes or `(B, K)` probabilities.
        domain: The space of the inputs.
    """

    normalised: Tensor
    labels: Tensor
    domain: Domain

    @property
    def inputs(self) -> Tensor:
        """The candidate in natural units."""
        return self.domain.denormalise(self.normalised)
