"""The quality of a network: loss, accuracy, and the cost of training it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seepage.core import Batch, Rng, Task

CHUNK = 1024
# The authors of InstaHide average over ten versions of an input.
FLIPS = 10


@dataclass(frozen=True)
class Quality:
    """Mean loss and accuracy of a network on some data."""

    loss: float
    accuracy: float


@torch.no_grad()
def evaluate(task: Task, data: Batch, *, flips: Rng | None = None) -> Quality:
    """Evaluate a network with its running statistics.

    Args:
        task: The network.
        data: Data for evaluation.
        flips: Key for random signs, for a network that was trained with InstaHide: the outputs are
            averaged over ten versions of every input.

    Deviations:
        InstaHide's authors also mix these versions with further images.

    Example:
        >>> import seepage as sp
        >>> evaluate(sp.zoo.mlp(hidden=(8,)), sp.data.bundled("photos", size=4)).accuracy <= 1
        True

    References:
        Huang et al., 2020 (huang2020instahide) for the versions
    """
    seen = task.in_mode("eval")
    loss = torch.zeros((), dtype=torch.float64, device=data.inputs.device)
    right = torch.zeros((), dtype=torch.long, device=data.inputs.device)
    pieces = zip(torch.split(data.inputs, CHUNK), torch.split(data.labels, CHUNK), strict=True)
    for number, (inputs, labels) in enumerate(pieces):
        versions = [inputs] if flips is None else _flip_signs(task, inputs, flips.fork(number))
        outputs = torch.stack([seen.outputs(seen.parameters, v) for v in versions]).mean(0)
        loss += seen.loss(outputs, labels).double().sum()
        classes = labels if labels.ndim == 1 else labels.argmax(1)
        right += (outputs.argmax(1) == classes).sum()
    return Quality(float(loss) / len(data), int(right) / len(data))


def _flip_signs(task: Task, inputs: Tensor, rng: Rng) -> list[Tensor]:
    """Mirror random entries at the middle of their range, `FLIPS` times."""
    mirrored = sum(task.domain.bounds) - inputs
    coins = [rng.fork(i).uniform(inputs.shape, like=inputs) for i in range(FLIPS)]
    return [torch.where(coin < 0.5, mirrored, inputs) for coin in coins]


@dataclass(frozen=True, eq=False)
class Utility:
    """The quality of a network trained under a defense, and the cost of training it.

    Args:
        defense: `repr` of the clients' defense.
        accuracy: Share of held-out examples classified correctly, at every evaluation.
        loss: Mean loss on held-out data, at every evaluation.
        evaluated: Number of steps before each evaluation.
        held_out: Number of held-out examples.
        chance: Share of the most frequent class among them: the most that a network which gives
            one answer to all has right.
        training_loss: Final mean loss on the training data, as 001 reports it.
        epsilon: Epsilon of DP-SGD for the whole training; None if no account covers it.
        overhead: Time of a step over the time without the defense, measured in this run.
        seconds: Time of the training since it was last resumed.
        device: Device it ran on.
        task: The trained network.
    """

    defense: str
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    evaluated: tuple[int, ...]
    held_out: int
    chance: float
    training_loss: float
    epsilon: float | None
    overhead: float
    seconds: float
    device: str
    task: Task = field(repr=False)

    @property
    def luck(self) -> float:
        """Probability that chance alone has as many held-out examples right at the end."""
        from scipy.stats import binom

        right = round(self.accuracy[-1] * self.held_out)
        return float(binom.sf(right - 1, self.held_out, self.chance))

    def plain(self) -> dict[str, Any]:
        """Return all but the network as JSON data; numbers that are not finite become None."""
        named = {n: v for n, v in vars(self).items() if n != "task"}
        return {name: _finite(value) for name, value in named.items()}


def _finite(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
