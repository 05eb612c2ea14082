"""Autoencoders: networks whose loss compares what they return with what they read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.core import Task
from seepage.core.device import upcast
from seepage.core.errors import InvalidValue
from seepage.core.loss import adapt_loss
from seepage.zoo.foreign import Logits


class WithInputs(Logits):
    """Wraps a network so that it returns its inputs beside its outputs, for losses of both.

    Args:
        model: The network; not copied.
        shape: Inputs are reshaped to this, per example; None leaves them as they are.

    Example:
        >>> WithInputs(torch.nn.Linear(2, 3))(torch.ones(1, 2)).shape
        torch.Size([1, 5])
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return `(B, K + D)`."""
        outputs = super().forward(inputs).flatten(1)
        # Token numbers need more digits than bfloat16 has.
        wide = outputs if inputs.is_floating_point() else upcast(outputs)
        return torch.cat([wide, inputs.to(wide).flatten(1)], dim=1)


@dataclass(frozen=True)
class LossOfInputs:
    """A loss of outputs and inputs, given both in one tensor."""

    loss: Callable[..., Tensor]
    outputs: tuple[int, ...]
    inputs: tuple[int, ...]

    def __call__(self, joined: Tensor, nothing: Tensor) -> Tensor:
        """Take the tensor apart and call the loss."""
        del nothing
        sizes = [math.prod(self.outputs), math.prod(self.inputs)]
        outputs, inputs = torch.split(joined, sizes, dim=1)
        return self.loss(
            outputs.reshape(len(joined), *self.outputs), inputs.reshape(len(joined), *self.inputs)
        )


def compare_with_inputs(task: Task) -> Task:
    """Return the task with its loss on outputs and inputs, as networks read them: no labels.

    Example:
        >>> from torch import nn
        >>> from seepage.domains import Signal
        >>> coder = nn.Sequential(nn.Flatten(), nn.Linear(6, 6))
        >>> task = compare_with_inputs(Task(coder, nn.MSELoss(), Signal((1, 6))))
        >>> task.losses(task.parameters, torch.ones(2, 1, 6), torch.zeros(2, 0)).shape
        torch.Size([2])
    """
    outputs = task.output_shape
    if math.prod(outputs) != math.prod(task.domain.shape):
        raise InvalidValue(
            f"the data have no labels, so that {task.name} must return what it reads, shape "
            f"{tuple(task.domain.shape)}, but it returns {outputs}; give it as many outputs"
        )
    loss = LossOfInputs(adapt_loss(task.loss), outputs, outputs)
    return replace(task, model=WithInputs(task.model), loss=loss, target_shape=(0,))
