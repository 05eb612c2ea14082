"""What batch-normalisation layers measure on a batch."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from seepage.core import Statistics, Task
from seepage.core.task import batchnorm_layers


def batch_statistics(task: Task, inputs: Tensor) -> dict[str, Statistics]:
    """Mean and biased variance over the batch at each batch-normalisation layer, differentiable.

    Args:
        task: Its mode decides what the layers before see.
        inputs: `(B, ...)`, in natural units.
    """
    measured: dict[str, Statistics] = {}

    def measure(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            features = arguments[0]
            others = [axis for axis in range(features.ndim) if axis != 1]
            variance = features.var(others, correction=0)
            measured[name] = Statistics(features.mean(others), variance)

        return hook

    layers = batchnorm_layers(task.network)
    handles = [layer.register_forward_pre_hook(measure(n)) for n, layer in layers.items()]
    try:
        task.outputs(task.parameters, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return measured
