"""What batch-normalisation layers measure on a batch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from seepage.core import Statistics, Task
from seepage.core.layer_inputs import layer_inputs
from seepage.core.precision import upcast
from seepage.core.task import batchnorm_layers


def batch_statistics(task: Task, inputs: Tensor) -> dict[str, Statistics]:
    """Mean and biased variance over the batch at each batch-normalisation layer, differentiable.

    Args:
        task: Its mode decides what the layers before see.
        inputs: `(B, ...)`, in natural units.
    """
    with layer_inputs(task.network, list(batchnorm_layers(task.network))) as read:
        task.outputs(task.parameters, inputs)
    return measured(read)


def measured(read: Mapping[str, Tensor]) -> dict[str, Statistics]:
    """The statistics of what layers read, `(B, C, ...)` each."""
    return {name: _statistics(features) for name, features in read.items()}


def _statistics(features: Tensor) -> Statistics:
    features = upcast(features)  # as batch normalisation itself does
    others = [axis for axis in range(features.ndim) if axis != 1]
    return Statistics(features.mean(others), features.var(others, correction=0))
