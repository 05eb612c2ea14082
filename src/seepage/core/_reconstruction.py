"""What an attack returns: its guess, how it was chosen, how hard it tried, what it can prove."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Literal, TypedDict

from torch import Tensor

from seepage.core._scale import DECIBELS, Scale
from seepage.core._schema import Count
from seepage.core.errors import InvalidValue

if TYPE_CHECKING:
    from seepage.core._domain import Domain


# The deviation of people's scores is assumed before any is seen, as if from so many people.
_SEEN = 3
# Share of the forecast's interval on either side.
_TAIL = 0.05
# How the guesses of several attacks are combined.
Rule = Literal["first", "residual", "mean"]


@dataclass(frozen=True)
class Trial:
    """One attack at one effort, on updates that the adversary made itself.

    It has a score for each rehearsed person, or an error if it failed.
    """

    attack: str
    steps: Count
    scores: tuple[float, ...] = ()
    error: str = ""

    @property
    def mean(self) -> float:
        """Over the rehearsed people; minus infinity if the attack failed."""
        return fmean(self.scores) if self.scores else float("-inf")


@dataclass(frozen=True)
class Forecast:
    """What the rehearsal promises for one person: a middle, and an interval meant to cover 90 %.

    The interval covers nine in ten over many rehearsals. All people of one setup share a forecast,
    often from one rehearsed person, so that it is right for nearly all of them or for few.
    """

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, scores: Sequence[float], scale: Scale, *, gain: float = 0.0) -> Forecast:
        """Predict the score of one more person.

        Scores are taken as normal, with a mean and a deviation that the rehearsal tells. Besides, a
        deviation of 12 % of the mean PSNR (2 to 4.5 dB), or of 0.15 for shares, is assumed as if
        three more people had shown it.

        Args:
            scores: Of rehearsed people.
            scale: How to read them.
            gain: What more steps than were rehearsed may add.
        """
        from scipy.special import stdtrit

        count, mean = len(scores), fmean(scores)
        freedom = count - 1 + _SEEN
        share, least, most = scale.spread
        spread = min(most, max(least, share * mean))
        squares = sum((value - mean) ** 2 for value in scores) + _SEEN * spread**2
        half = float(stdtrit(freedom, 1 - _TAIL)) * math.sqrt(squares / freedom * (1 + 1 / count))
        middle = min(scale.highest, mean + gain / 2)
        return cls(max(0.0, mean - half), middle, min(scale.highest, mean + gain + half))

    def covers(self, score: float) -> bool:
        """Whether a score lies in the interval."""
        return self.low <= score and (score <= self.high or self.is_open)

    @property
    def is_open(self) -> bool:
        """Whether the interval has no upper end: it reaches the highest PSNR that is rehearsed."""
        return self.high >= DECIBELS.highest


@dataclass(frozen=True)
class Race:
    """A rehearsal, from the first trial to the choice.

    Args:
        metric: By which trials were compared.
        trials: In the order in which they were made.
        chosen: The attacks that went on to the update itself, the best first.
        rule: How their guesses were combined.
        forecast: For one person of the update; None if nothing could be rehearsed.
        rising: Whether the best attack still gained when its steps were doubled.
        masked: Whether ignoring the defense recovered more than simulating it, so that the defense
            only stands in the way of the search.
        cut: Whether time left no room for all steps.
        made_up: Whether the rehearsed inputs were made up, for want of public ones.
        note: What could not be done; empty if nothing.
    """

    metric: str
    trials: tuple[Trial, ...] = ()
    chosen: tuple[str, ...] = ()
    rule: Rule = "first"
    forecast: Forecast | None = None
    rising: bool = False
    masked: bool = False
    cut: bool = False
    made_up: bool = False
    note: str = ""

    @property
    def plateau(self) -> bool:
        """Whether twice the steps recovered no more in rehearsal; a single round does not tell."""
        return not self.rising and len({trial.steps for trial in self.trials if trial.steps}) > 1


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


class Proof(TypedDict, total=False):
    """A certificate as a record holds it; `certain` and `locally_unique` only where they say more.

    See `Certificate` for what its values mean.
    """

    residual: float
    unique: bool | None
    error: float | None
    certain: Count
    locally_unique: bool


@dataclass(frozen=True)
class Certificate:
    """Evidence that the guess is the private input, made without the truth.

    Args:
        residual: Relative difference between the update recomputed at the guess and the
            observed one, in the tensor where it is largest. Tensors that are zero or rounding do
            not count.
        unique: Whether the guess is the private input to 8 bits, since no other input explains the
            update: it solves equations that have one solution, with an error of at most half a step
            of 8 bits. False if other inputs explain it exactly as well; None if this is not known.
        error: Largest error of an entry that the residual and rounding allow, in units of the
            input; None if it was not computed or has no limit. Of a guess that is only locally
            unique it holds if the private input is nearby.
        certain: Number of different tokens that are proved to be in the batch, if the attack reads
            tokens one by one; None if it proves none.
        locally_unique: Whether no other input nearby explains the update, to 8 bits. One that is
            far away may, such as a mirror image.
    """

    residual: float
    unique: bool | None = None
    error: float | None = None
    certain: int | None = None
    locally_unique: bool | None = None

    def plain(self) -> Proof:
        """The certificate as a record holds it, with what not every guess has where it has it."""
        words = Proof(residual=self.residual, unique=self.unique, error=self.error)
        if self.certain is not None:
            words["certain"] = self.certain
        # Of whatever is unique it goes without saying.
        elif self.locally_unique and not self.unique:
            words["locally_unique"] = True
        return words


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
