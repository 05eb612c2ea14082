"""Any gradient matching, through a prior network."""

from __future__ import annotations

from dataclasses import replace

from seepage.attacks.gradient_matching import Adam, GradientMatching
from seepage.attacks.image_prior.prior import PriorNetwork
from seepage.core import Attack
from seepage.core.errors import InvalidValue


def through(attack: Attack, prior: PriorNetwork, *, step_size: float = 1e-3) -> GradientMatching:
    """The same search over the weights of a prior network instead of pixels.

    Terms, schedule, steps and restarts stay; Adam on the plain gradient takes the place of the
    optimiser, because step sizes and signs are made for pixels.

    Args:
        attack: A gradient matching attack, as recipes such as `inverting_gradients` return.
        prior: What makes the images.
        step_size: Of Adam, on the weights.

    Example:
        >>> import seepage as sp
        >>> attack = through(sp.attacks.inverting_gradients(restarts=1), PriorNetwork(width=8))
        >>> attack.search.generator
        PriorNetwork(width=8, multipliers=(1, 2, 2, 2), attention=16)

    References:
        Ulyanov et al., 2018 (ulyanov2018deep)
    """
    if not isinstance(attack, GradientMatching):
        raise InvalidValue(
            f"expected an attack by gradient matching, such as inverting_gradients(), got {attack}"
        )
    search = replace(
        attack.search, generator=prior, optimiser=Adam(step_size=step_size, sign="none")
    )
    return replace(attack, search=search)
