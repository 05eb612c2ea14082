"""How much noise differential privacy asks for."""

from __future__ import annotations

import math

from seepage.core.errors import InvalidValue


def required_noise(*, sensitivity: float, epsilon: float, delta: float) -> float:
    """The deviation of noise for which an update is (eps, delta)-DP, by the moments bound.

    The proof of the proposition gives, with Delta the squared sensitivity,

        delta = exp(-Delta / (2 sigma^2) (sigma^2 eps / Delta - 1/2)^2),

    of which this is the solution: sigma^2 = Delta (eps + 2 L + 2 sqrt(L (L + eps))) / (2 eps^2)
    with L = log(1 / delta). For a two-layer network of m nodes with random weights Delta is of the
    order of m.

    Args:
        sensitivity: The most that exchanging one person moves the update (2 C / B where each of B
            examples is clipped to C).
        epsilon: What is promised.
        delta: The probability with which the promise may fail.

    Example:
        >>> round(required_noise(sensitivity=1.0, epsilon=1.0, delta=1e-5), 2)
        4.9

    Deviations:
        The proposition says sigma^2 = Omega(m log(1 / delta) / eps), which its own expression
        gives for eps of the order of log(1 / delta); for small eps it asks for 1 / eps^2.

    References:
        Liu et al., 2024, Propositions 2.1 and A.1 (liu2024systematic)
    """
    if not (sensitivity >= 0 and math.isfinite(sensitivity)):
        raise InvalidValue(f"expected a sensitivity >= 0, got {sensitivity!r}")
    if not epsilon > 0 or not 0 < delta < 1:
        raise InvalidValue(
            f"expected epsilon > 0 and delta in (0, 1), got {epsilon!r} and {delta!r}"
        )
    log = math.log(1 / delta)
    share = (epsilon + 2 * log + 2 * math.sqrt(log * (log + epsilon))) / (2 * epsilon**2)
    return sensitivity * math.sqrt(share)
