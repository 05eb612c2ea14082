"""How good a network is."""

from __future__ import annotations

from dataclasses import dataclass

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
