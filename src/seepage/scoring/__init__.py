"""Scoring: pair guesses with the truth, and compute metrics with one number per person."""

from seepage.scoring._accuracy import FeatureAccuracy, LabelAccuracy, TokenAccuracy, count_error
from seepage.scoring._entrywise import L1, MSE, PSNR, RMSE, ExactMatch
from seepage.scoring._gallery import Gallery, identify
from seepage.scoring._identification import Identification, is_identified
from seepage.scoring._pairing import pair
from seepage.scoring._perceptual import LPIPS, SSIM
from seepage.scoring._scores import (
    METRICS,
    Scores,
    applicable,
    baseline_scores,
    catalogue,
    draw_guess,
    find_metric,
    mean_guess,
    score,
)

__all__ = [
    "L1",
    "LPIPS",
    "METRICS",
    "MSE",
    "PSNR",
    "RMSE",
    "SSIM",
    "ExactMatch",
    "FeatureAccuracy",
    "Gallery",
    "Identification",
    "LabelAccuracy",
    "Scores",
    "TokenAccuracy",
    "applicable",
    "baseline_scores",
    "catalogue",
    "count_error",
    "draw_guess",
    "find_metric",
    "identify",
    "is_identified",
    "mean_guess",
    "pair",
    "score",
]
