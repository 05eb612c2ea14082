"""How far the candidate's update is from the observed one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.core import Observation, Update
from seepage.core.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """One minus the cosine between simulated and observed update, over all tensors jointly.

        1 - <g(x), g*> / (||g(x)|| ||g*||)  =  1/2 || g(x)/||g(x)|| - g*/||g*|| ||^2

    Computed by the right-hand side, which keeps its digits where the left cancels to nothing.
    Invariant to rescaling of the update, hence blind to clipping.

    Args:
        weight: Factor in the objective.
        top: Compare only the `top` tensors whose observed norm is largest; None compares all.

    References:
        Geiping et al., 2020, Eq. 4 and, with `top`, Eq. 7 (geiping2020inverting)
    """

    weight: float = 1.0
    top: int | None = None

    def __post_init__(self) -> None:
        """Check the count."""
        if self.top is not None and self.top < 1:
            raise InvalidValue(f"expected top >= 1 or None, got {self.top!r}")

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Simulate and compare."""
        simulated = observation.simulate(candidate.inputs, candidate.labels)
        names = self._names(observation.update)
        ours, theirs = (_direction(u, names) for u in (simulated, observation.update))
        return (ours - theirs).square().sum() / 2

    def _names(self, observed: Update) -> list[str]:
        names = list(observed.tensors)
        if self.top is None or self.top >= len(names):
            return names
        norms = torch.stack([torch.linalg.vector_norm(t) for t in observed])
        return [names[index] for index in norms.topk(self.top).indices.tolist()]


def _direction(update: Update, names: list[str]) -> Tensor:
    entries = torch.cat([update.tensors[name].flatten() for name in names])
    return torch.nn.functional.normalize(entries, dim=0, eps=1e-30)
