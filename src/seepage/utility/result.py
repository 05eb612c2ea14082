"""What a training came to."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from seepage.core import Task


@dataclass(frozen=True, eq=False)
class Utility:
    """What a model trained under a defense is worth, and what training it took.

    Args:
        defense: What clients did.
        accuracy: Share of held-out examples it gets right, at every evaluation.
        loss: Mean loss on held-out data, at every evaluation.
        evaluated: After how many steps each evaluation was.
        training_loss: Mean loss on the training data in the end, which is what 001 reports.
        epsilon: What DP-SGD promises for the whole training; None where no account covers it.
        overhead: Time of a step, in times of a step without the defense, measured in this run.
        seconds: Time of the training, since it was last continued.
        device: Where it ran.
        task: The trained network.
    """

    defense: str
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    evaluated: tuple[int, ...]
    training_loss: float
    epsilon: float | None
    overhead: float
    seconds: float
    device: str
    task: Task = field(repr=False)

    def plain(self) -> dict[str, Any]:
        """All but the network, as data that JSON can hold; what is not finite is None."""
        named = {n: v for n, v in vars(self).items() if n != "task"}
        return {name: _finite(value) for name, value in named.items()}


def _finite(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
