"""R-GAP: the input of every layer from its linear system, last layer first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from seepage.attacks.linear_systems.single import best_walks, read_all, reconstruction
from seepage.core import Observation, Reconstruction, Rng, Trace
from seepage.core.errors import InvalidValue
from seepage.core.rng import require_key


@dataclass(frozen=True, kw_only=True)
class RGAP:
    """Backward recursion over linear systems, of one example.

    Each layer's input solves u x = v, with the layer's forward pass and its weight gradient as
    rows; of several solutions the one of least norm is taken. The certificate says `unique` where
    every layer left only one. Behind a ReLU only the rows of positive outputs are known.

    Args:
        damping: Tikhonov damping of the least squares, for noisy updates.

    Deviations:
        All rows of a fully connected layer are used, weighted by what they say, where the paper
        averages their quotients; the same without noise and better with it. The gradient at the
        logits is read off the last bias where there is one.

    References:
        Zhu and Blaschko, 2021 (zhu2021recursive)
    """

    damping: float = 0.0

    def __post_init__(self) -> None:
        """Check the damping."""
        if not self.damping >= 0:
            raise InvalidValue(f"expected damping >= 0, got {self.damping!r}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Compute the input; nothing is random."""
        return self.many((observation,), rngs=(rng,))[0]

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Compute several inputs of one network, the systems of a layer all at once.

        Args:
            observations: Of one example each, made with the same task and client.
            rngs: One key for each; nothing is random.
        """
        require_key(*rngs)
        began = time.perf_counter()
        stack = read_all(observations)
        steps = best_walks(observations, stack, damping=self.damping)
        seconds = (time.perf_counter() - began) / len(observations)
        return [
            reconstruction(
                observation, stack, step, Trace(seconds=seconds, device=str(step.x.device))
            )
            for observation, step in zip(observations, steps, strict=True)
        ]
