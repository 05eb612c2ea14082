"""How good a network is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seepage.core import Batch, Rng, Task

CHUNK = 1024
# As many as the authors of InstaHide average over.
FLIPS = 10


@dataclass(frozen=True)
class Quality:
    """What a network does on some data.

    Args:
        loss: Mean loss.
        accuracy: Share of examples whose class it gets right.
    """

    loss: float
    accuracy: float


@torch.no_grad()
def evaluate(task: Task, data: Batch, *, flips: Rng | None = None) -> Quality:
    """Run the network as it would be used, with its running statistics.

    Args:
        task: The network.
        data: What it is judged by.
        flips: Where random signs come from, for a network that has only ever seen InstaHide's: it
            is asked about ten versions of every input, and its outputs are averaged.

    Deviations:
        InstaHide's authors also mix what they ask about, with further images.

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
        asked = [inputs] if flips is None else _flipped(task, inputs, flips.fork(number))
        answers = [seen.outputs(seen.parameters, version) for version in asked]
        outputs = torch.stack(answers).mean(0)
        loss += seen.loss(outputs, labels).double().sum()
        classes = labels if labels.ndim == 1 else labels.argmax(1)
        right += (outputs.argmax(1) == classes).sum()
    return Quality(float(loss) / len(data), int(right) / len(data))


def _flipped(task: Task, inputs: Tensor, rng: Rng) -> list[Tensor]:
    """Versions of the inputs, entries mirrored at the middle of their range at random."""
    mirrored = sum(task.domain.bounds) - inputs
    coins = [rng.fork(i).uniform(inputs.shape, like=inputs) for i in range(FLIPS)]
    return [torch.where(coin < 0.5, mirrored, inputs) for coin in coins]


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
