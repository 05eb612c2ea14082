"""What an attack returns: its guess, how hard it tried, and what it can prove."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from seepage.core.errors import InvalidValue
from seepage.core.race import Race

if TYPE_CHECKING:
    from seepage.core.task import Domain


@dataclass(frozen=True)
class Trace:
    """The effort behind a guess, so that "no leak found" says how hard we looked.

    Args:
        objective: Value of the chosen restart's objective at its start and after each step; empty
            for closed forms.
        finals: Best objective of every restart, in order; the smallest was chosen.
        diverged: How many restarts stopped being finite on the way.
        seconds: Wall-clock time; a share of it if several were attacked side by side.
        device: Where it ran.
        race: How the attack was chosen, if it was chosen by rehearsing.
        simulates: Whether guesses were compared by the update that the client would share, defense
            included. Other attacks read the update as a gradient.
    """

    objective: tuple[float, ...] = ()
    finals: tuple[float, ...] = ()
    diverged: int = 0
    seconds: float = 0.0
    device: str = "cpu"
    race: Race | None = None
    simulates: bool = False

    @property
    def steps(self) -> int:
        """Steps of each restart."""
        return max(len(self.objective) - 1, 0)

    @property
    def restarts(self) -> int:
        """Number of restarts."""
        return len(self.finals)


@dataclass(frozen=True)
class Certificate:
    """Evidence that the guess is the private input, made without the truth.

    Args:
        residual: Relative difference between the update recomputed at the guess and the
            observed one, in the tensor where it is largest. Tensors that are zero or rounding do
            not count.
        unique: Whether the guess is the private input to 8 bits, since no other input nearby
            explains the update: the error is at most half a step of 8 bits. False if some inputs
            nearby explain it exactly as well; None if this is not known.
        error: Largest error of an entry that the residual and rounding allow, in units of the
            input; None if it was not computed or has no limit.
        certain: Number of different tokens that are proved to be in the batch, if the attack reads
            tokens one by one; None if it proves none.
    """

    residual: float
    unique: bool | None = None
    error: float | None = None
    certain: int | None = None

    def plain(self) -> dict[str, float | bool | None]:
        """The certificate as a record holds it; tokens only where some are certain."""
        words = {"residual": self.residual, "unique": self.unique, "error": self.error}
        return words if self.certain is None else {**words, "certain": self.certain}


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """The adversary's guess.

    Args:
        inputs: `(B, ...)`, in natural units.
        labels: `(B,)`, or None if the attack gives none.
        trace: The effort.
        certificate: Proof, if the attack can give one.
        confidence: How sure the attack is of each feature, from 0 to 1, `(B, F)`; None if it cannot
            tell.
    """

    inputs: Tensor
    labels: Tensor | None = None
    trace: Trace = field(default_factory=Trace)
    certificate: Certificate | None = None
    confidence: Tensor | None = None

    def __post_init__(self) -> None:
        if self.labels is not None and len(self.labels) != len(self.inputs):
            raise InvalidValue(
                f"expected as many labels as inputs, got {len(self.labels)} and {len(self.inputs)}"
            )


@dataclass(frozen=True, eq=False)
class Paired:
    """Each private input beside the one guess that was assigned to it.

    Args:
        truth: Private inputs `(B, ...)`.
        guess: The guesses in the order of the truth, `(B, ...)`.
        labels: Private labels `(B,)`.
        guessed_labels: In the order of the truth, or None if the attack gave none.
        assignment: Index of each example's guess in the reconstruction, -1 if none was left.
        peak: Width of the range of values, 1 for images in [0, 1].
        domain: What an input is, if that is known.
        low: Lowest value of the range, 0 for images in [0, 1].
    """

    truth: Tensor
    guess: Tensor
    labels: Tensor
    guessed_labels: Tensor | None
    assignment: tuple[int, ...]
    peak: float = 1.0
    domain: Domain | None = None
    low: float = 0.0

    def __len__(self) -> int:
        return len(self.truth)
