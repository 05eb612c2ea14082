"""Truth and guess, person by person."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from seepage.core.domain import Domain


@dataclass(frozen=True, eq=False)
class Paired:
    """Each private input beside the one guess that was assigned to it.

    Args:
        truth: Private inputs `(B, ...)`.
        guess: The guesses in the order of the truth, `(B, ...)`.
        labels: Private labels `(B,)`.
        guessed_labels: In the order of the truth, or None if the attack gave none.
        assignment: Index of each person's guess in the reconstruction, -1 if none was left.
        peak: Width of the range of values, 1 for images in [0, 1].
        domain: What an input is, where that is known.
    """

    truth: Tensor
    guess: Tensor
    labels: Tensor
    guessed_labels: Tensor | None
    assignment: tuple[int, ...]
    peak: float = 1.0
    domain: Domain | None = None

    def __len__(self) -> int:
        """Number of people."""
        return len(self.truth)
