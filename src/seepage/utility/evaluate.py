"""How good a network is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from seepage.core import Batch, Task

CHUNK = 1024


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
def evaluate(task: Task, data: Batch) -> Quality:
    """Run the network as it would be used, with its running statistics.

    Example:
        >>> import seepage as sp
        >>> evaluate(sp.zoo.mlp(hidden=(8,)), sp.data.bundled("photos", size=4)).accuracy <= 1
        True
    """
    seen = task.in_mode("eval")
    loss = torch.zeros((), dtype=torch.float64, device=data.inputs.device)
    right = torch.zeros((), dtype=torch.long, device=data.inputs.device)
    pieces = zip(torch.split(data.inputs, CHUNK), torch.split(data.labels, CHUNK), strict=True)
    for inputs, labels in pieces:
        outputs = seen.outputs(seen.parameters, inputs)
        loss += seen.loss(outputs, labels).double().sum()
        classes = labels if labels.ndim == 1 else labels.argmax(1)
        right += (outputs.argmax(1) == classes).sum()
    return Quality(float(loss) / len(data), int(right) / len(data))
