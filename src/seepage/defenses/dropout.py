"""Gradient dropout: random entries are set to zero."""

from __future__ import annotations

from dataclasses import dataclass, field

from seepage.core import Rng, Update
from seepage.core.errors import InvalidValue
from seepage.defenses.link import OnAggregate


@dataclass(frozen=True, repr=False)
class Dropout(OnAggregate):
    """Zero each entry of the update independently with probability `rate`.

    Args:
        rate: Probability of being dropped, in [0, 1).
        rescale: Divide what survives by 1 - rate, so that the mean is the update itself. The
            paper does not.

    References:
        Liu et al., 2024, Sec. 3.4 and E.1 (liu2024systematic)
    """

    rate: float
    rescale: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the rate."""
        if not 0 <= self.rate < 1:
            raise InvalidValue(f"expected a dropout rate in [0, 1), got {self.rate!r}")

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Drop entries chosen by `rng`."""
        flat = update.flat()
        kept = (rng.uniform(flat.shape, like=flat.double()) >= self.rate).to(flat.dtype)
        return update.unflatten(flat * kept * self._factor)

    def expected(self, update: Update) -> Update:
        """The mean over masks: the update, times 1 - rate unless rescaled."""
        scale = self._factor * (1 - self.rate)
        return update.map(lambda t: t * scale)

    @property
    def _factor(self) -> float:
        return 1 / (1 - self.rate) if self.rescale else 1.0
