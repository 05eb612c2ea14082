"""Terms that fade."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.attacks.gradient_matching.term import Term
from seepage.core import Observation
from seepage.core.errors import InvalidValue


@dataclass(frozen=True)
class Decaying:
    """Another term, with a weight that falls by a factor every so many steps.

        factor ^ floor(step / every)  *  term

    Args:
        term: The term that fades.
        factor: In (0, 1].
        every: Steps between two falls.

    Deviations:
        The paper's listing decays if `(i // m) == 0`, read here as every m iterations.

    References:
        Qian and Hansen, 2020, Algorithm 2 (qian2020what)
    """

    term: Term
    factor: float = field(default=0.9, kw_only=True)
    every: int = field(default=2_000, kw_only=True)

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 < self.factor <= 1 or self.every < 1:
            raise InvalidValue(
                f"expected 0 < factor <= 1 and every >= 1, got {self.factor!r} and {self.every!r}"
            )

    @property
    def weight(self) -> float:
        """That of the term, before any fall."""
        return self.term.weight

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Scale the term by how often it has fallen."""
        value = self.term(candidate, observation)
        falls = torch.div(candidate.step, self.every, rounding_mode="floor").to(value.dtype)
        return value * self.factor**falls

    def changes(self, step: Tensor) -> Tensor:
        """Whether it falls at this step."""
        return torch.remainder(step, self.every) == 0
