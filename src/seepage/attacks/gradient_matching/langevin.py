"""Noise that helps a search out of poor minima."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from seepage.attacks.gradient_matching.noise import normal_noise, row_seeds
from seepage.attacks.gradient_matching.optimisers import Moment, Optimiser, State
from seepage.core.errors import InvalidValue


@dataclass(frozen=True)
class Langevin:
    """Another rule, fed with gradients to which normal noise is added.

        g + std * schedule * N(0, I)

    The noise depends on the seed, on where the row started and on the step, and on nothing else.

    Args:
        optimiser: The rule.
        std: Standard deviation of the noise before the schedule shrinks it.
        seed: Another seed, other noise.

    Deviations:
        The paper adds the noise to the inputs, times the step size, after the rule; added to the
        gradient, it passes through the rule (and its sign, where that is taken).

    References:
        Yin et al., 2021, Sec. 3.4 (yin2021see)
    """

    optimiser: Optimiser
    std: float = field(default=0.2, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Check the deviation."""
        if not self.std >= 0:
            raise InvalidValue(f"expected std >= 0, got {self.std!r}")

    def start(self, points: Tensor) -> State:
        """The seeds of the rows, and the state of the rule."""
        return (row_seeds(points, self.seed), *self.optimiser.start(points))

    def step(
        self,
        points: Tensor,
        values: Tensor,
        gradients: Tensor,
        state: State,
        moment: Moment,
    ) -> tuple[Tensor, State]:
        """Shake the gradients and let the rule step."""
        seeds, *rest = state
        noise = normal_noise(seeds, moment.step, points.shape[1]).to(gradients.dtype)
        shaken = gradients + self.std * moment.scale * noise
        moved, rest_of_state = self.optimiser.step(points, values, shaken, tuple(rest), moment)
        return moved, (seeds, *rest_of_state)
