"""What a training under DP-SGD promises."""

from __future__ import annotations

from seepage.core import Protection
from seepage.defenses import AddGaussian, Chain, ClipEach, Mean, epsilon
from seepage.utility.plan import Plan


def noise_multiplier(defense: Protection) -> float | None:
    """The noise of DP-SGD in units of the clipping norm, or None if the defense is no DP-SGD.

    The update must first be clipped per example, averaged over a number fixed in advance and made
    noisy; what comes after cannot take the promise back. Data that was mixed or multiplied before
    belongs to more than one example, and is not covered.

    Example:
        >>> from seepage.defenses import Clip, dp_sgd
        >>> noise_multiplier(dp_sgd(max_norm=2.0, noise_multiplier=1.5, batch_size=8))
        1.5
        >>> noise_multiplier(Clip(1.0)) is None
        True
    """
    links = Chain.of(defense).links[:3]
    match links:
        case (ClipEach(max_norm=norm), Mean(over=int(size)), AddGaussian(std=std)):
            return std * size / norm
        case _:
            return None


def promised(
    defense: Protection, plan: Plan, *, examples: int, delta: float | None
) -> float | None:
    """Epsilon of the whole training, or None where no account covers it.

    Raises:
        MissingExtra: It applies, but Opacus is not installed.
    """
    multiplier, rate = noise_multiplier(defense), plan.sample_rate(examples)
    if multiplier is None or rate is None or delta is None:
        return None
    steps = plan.count_steps(examples)
    return epsilon(noise_multiplier=multiplier, sample_rate=rate, steps=steps, delta=delta)
