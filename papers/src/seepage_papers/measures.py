"""What a published number measures, in the paper's own convention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from types import MappingProxyType

import torch
from torch import Tensor

from seepage.audit import Outcome
from seepage.core import Batch, Domain, Paired, Reconstruction
from seepage.core.errors import UnknownName
from seepage.scoring import METRICS
from seepage_papers import legacy

Function = Callable[[Paired, Domain], Tensor]


@dataclass(frozen=True)
class Measure:
    """A convention.

    Args:
        words: What it is, for people.
        higher_leaks_more: Whether more of it is worse for the people.
        standard: The metric of Seepage that says the same in the usual convention.
        digits: After the point.
        function: From pairs to one value each; None reads the record's own score.
    """

    words: str
    higher_leaks_more: bool
    standard: str
    digits: int = 2
    function: Function | None = None

    def values(self, outcome: Outcome, domain: Domain) -> list[float]:
        """One value per person, NaN where it is not defined; none of a case that failed."""
        if outcome.truth is None or outcome.guess is None:
            return []
        if self.function is None:
            scores = outcome.record.scores.get(self.standard, ())
            return [math.nan if value is None else value for value in scores]
        found: list[float] = self.function(_paired(outcome.truth, outcome.guess), domain).tolist()
        return found


def _paired(truth: Tensor, guess: Tensor) -> Paired:
    labels = torch.zeros(len(truth), dtype=torch.int64)
    return Paired(truth, guess, labels, None, tuple(range(len(truth))))


def lpips_gradattack(paired: Paired, domain: Domain) -> Tensor:
    """Each guess against all originals, on normalised values.

    Those are taken for images in [-1, 1], which the metric makes of images in [0, 1] itself.
    """
    normalised = (domain.normalise(x.cpu().float()) for x in (paired.truth, paired.guess))
    truth, guess = ((x + 1) / 2 for x in normalised)
    batch = Batch(truth, paired.labels)
    return legacy.best_match_gradattack(
        Reconstruction(guess), batch, METRICS["lpips"], higher_leaks_more=False
    )


_LEGACY: Mapping[str, Measure] = {
    "psnr_normalised_003": Measure(
        "PSNR in dB of normalised images, peak 1",
        True,
        "psnr",
        function=legacy.psnr_normalised_003,
    ),
    "psnr_peak255_004": Measure(
        "PSNR in dB with peak 255 on images in [0, 1]",
        True,
        "psnr",
        function=lambda paired, _: legacy.psnr_peak255_004(paired),
    ),
    "l1_sum_002": Measure(
        "absolute error summed over an image",
        False,
        "l1",
        function=lambda paired, _: legacy.l1_sum_002(paired),
    ),
    "rmse_gradattack": Measure(
        "RMSE divided by the largest error",
        False,
        "rmse",
        function=lambda paired, _: legacy.rmse_gradattack(paired),
    ),
    "lpips_gradattack": Measure(
        "LPIPS of normalised images, each guess against its best match",
        False,
        "lpips",
        function=lpips_gradattack,
    ),
}
_OTHER: Mapping[str, Measure] = {
    "rank": Measure("rank deficiency of a layer (rd), and the metric c(M) of all", True, "", 0),
    "feature_error": Measure("part of a feature outside the recovered span", False, "", 3),
    "accuracy": Measure("test accuracy in %", True, ""),
    "training_loss": Measure("final training loss", False, "", 3),
}
_WORDS = {
    "psnr": "PSNR in dB",
    "ssim": "SSIM",
    "lpips": "LPIPS",
    "rmse": "RMSE",
    "mse": "MSE",
    "l1": "mean L1",
}
MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        **{
            n: Measure(_WORDS.get(n, n), m.higher_leaks_more, n, 3)
            for n, m in METRICS.built_in.items()
        },
        "psnr": Measure("PSNR in dB", True, "psnr"),
        **_LEGACY,
        **_OTHER,
    }
)
BEST = 5


def measure(name: str) -> Measure:
    """The convention of that name."""
    if name not in MEASURES:
        raise UnknownName("measure", name, MEASURES)
    return MEASURES[name]


def _five_best(values: Sequence[float], higher: bool) -> float:
    return fmean(sorted(values, reverse=higher)[:BEST])


STATISTICS: Mapping[str, Callable[[Sequence[float], bool], float]] = MappingProxyType(
    {
        "mean": lambda values, _: fmean(values),
        "median": lambda values, _: median(values),
        "best": lambda values, higher: max(values) if higher else min(values),
        "five best": _five_best,
        "deviation": lambda values, _: pstdev(values),
    }
)
