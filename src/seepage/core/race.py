"""How an attack was chosen: what was tried on public inputs, and what it promises."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

# The deviation of people's scores is assumed before any is seen, as if from so many people.
_SEEN = 3
# Of PSNR it is such a share of the mean, within limits: where more comes back, people differ more.
_SHARE, _LEAST, _MOST = 0.12, 2.0, 4.5
# Of shares of a row it is the same wherever the mean is.
_SHARE_OF_ROW = 0.15
# Rehearsed scores end here: above it, a PSNR only says that the guess is right up to rounding.
HIGHEST = {"psnr": 60.0, "feature_accuracy": 1.0}
# Share of the forecast's interval on either side.
_TAIL = 0.05


@dataclass(frozen=True)
class Trial:
    """One attack at one effort, on updates that the adversary made itself.

    It has a score for each rehearsed person, or an error if it failed.
    """

    attack: str
    steps: int
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
    def of(cls, scores: Sequence[float], metric: str, *, gain: float = 0.0) -> Forecast:
        """Predict the score of one more person.

        Scores are taken as normal, with a mean and a deviation that the rehearsal tells. Besides, a
        deviation of 12 % of the mean PSNR (2 to 4.5 dB), or of 0.15 for shares, is assumed as if
        three more people had shown it.

        Args:
            scores: Of rehearsed people.
            metric: Its name.
            gain: What more steps than were rehearsed may add.
        """
        from scipy.special import stdtrit

        count, mean = len(scores), fmean(scores)
        freedom = count - 1 + _SEEN
        spread = _SHARE_OF_ROW
        if metric == "psnr":
            spread = min(_MOST, max(_LEAST, _SHARE * mean))
        squares = sum((value - mean) ** 2 for value in scores) + _SEEN * spread**2
        half = float(stdtrit(freedom, 1 - _TAIL)) * math.sqrt(squares / freedom * (1 + 1 / count))
        most = HIGHEST[metric]
        middle = min(most, mean + gain / 2)
        return cls(max(0.0, mean - half), middle, min(most, mean + gain + half))

    def covers(self, score: float) -> bool:
        """Whether a score lies in the interval."""
        return self.low <= score and (score <= self.high or self.is_open)

    @property
    def is_open(self) -> bool:
        """Whether the interval has no upper end: it reaches the highest PSNR that is rehearsed."""
        return self.high >= HIGHEST["psnr"]


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
    rule: str = "first"
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

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Race:
        """Read a race back from the data of `dataclasses.asdict`."""
        trials = tuple(
            Trial(one["attack"], one["steps"], tuple(one["scores"]), one["error"])
            for one in plain["trials"]
        )
        forecast = Forecast(**plain["forecast"]) if plain["forecast"] else None
        chosen = tuple(plain["chosen"])
        return cls(**{**plain, "trials": trials, "forecast": forecast, "chosen": chosen})
