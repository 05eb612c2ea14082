"""Differentially private SGD, as the chain it is."""

from __future__ import annotations

import math

from seepage.core import Defense
from seepage.core.errors import InvalidValue
from seepage.defenses.chain import chain
from seepage.defenses.clip import ClipEach, Mean
from seepage.defenses.noise import AddGaussian


def dp_sgd(*, max_norm: float, noise_multiplier: float, batch_size: int) -> Defense:
    """Clip every example's gradient, average, and add noise in proportion to the clipping norm.

        (1/B) (sum_i g_i min(1, C / ||g_i||) + N(0, sigma^2 C^2 I))

    Args:
        max_norm: C, the most one person can move the sum.
        noise_multiplier: sigma, the standard deviation of the noise on the sum in units of C.
        batch_size: B, the expected number of examples, fixed in advance. Were it the number that
            came, one person more or less would also move what the others contribute.

    Example:
        >>> dp_sgd(max_norm=1.0, noise_multiplier=2.0, batch_size=4)
        chain(ClipEach(1.0), Mean(over=4), AddGaussian(0.5))

    References:
        Abadi et al., 2016, Algorithm 1 (abadi2016deep)
    """
    if not (noise_multiplier >= 0 and math.isfinite(noise_multiplier)):
        raise InvalidValue(f"expected noise_multiplier >= 0, got {noise_multiplier!r}")
    if batch_size < 1:
        raise InvalidValue(f"expected batch_size >= 1, got {batch_size!r}")
    std = noise_multiplier * max_norm / batch_size
    return chain(ClipEach(max_norm), Mean(over=batch_size), AddGaussian(std))
