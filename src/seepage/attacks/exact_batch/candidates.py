"""Directions in the span that may be a person's, and the best independent ones among them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# The sine of the angle to the directions already chosen, squared, below which one is a repeat.
_REPEATED = 1e-6


@dataclass(frozen=True, eq=False)
class Candidates:
    """Unit directions p `(N, B)`, of which span p may be a column of dL/dZ, up to scale.

    Args:
        directions: One per row.
        scores: `(N,)`, lower is better; infinite where the search got nowhere.
    """

    directions: Tensor
    scores: Tensor

    def __len__(self) -> int:
        """Number of candidates."""
        return len(self.scores)

    def joined(self, others: Candidates) -> Candidates:
        """Both together."""
        return Candidates(
            torch.cat([self.directions, others.directions]), torch.cat([self.scores, others.scores])
        )

    def independent(self) -> Candidates:
        """The best linearly independent ones, taken greedily: at most B.

        Independent sets are a matroid, so that greedy choice is optimal, and what it passes over
        never has to be looked at again when more candidates come in.

        Example:
            >>> found = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]])
            >>> Candidates(found, torch.tensor([3.0, 1.0, 2.0])).independent().scores.tolist()
            [1.0, 2.0]
        """
        chosen: list[int] = []
        rest = self.directions
        scores = self.scores
        for _ in range(min(self.directions.shape)):
            size = rest.square().sum(1)
            scores = torch.where(size > _REPEATED, scores, torch.inf)
            best = int(scores.argmin())
            if not bool(scores[best] < torch.inf):
                break
            chosen.append(best)
            axis = rest[best] / size[best].sqrt()
            rest = rest - torch.outer(rest @ axis, axis)
        return Candidates(self.directions[chosen], self.scores[chosen])


def none_yet(span: Tensor) -> Candidates:
    """No candidate for the directions of a span `(m, B)`."""
    return Candidates(span.new_zeros(0, span.shape[1]), span.new_zeros(0))
