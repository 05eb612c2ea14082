"""Find the fully connected layer that reads the input itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from seepage.core import Task
from seepage.core.rng import Rng


def input_layer(task: Task) -> str | None:
    """Name of the biased linear layer whose input is the flattened network input, if there is one.

    Found by running a noise input and looking for a layer that receives exactly that, so it works
    for any module, not only for `nn.Sequential`.
    """
    reference = next(iter(task.parameters.values()))
    probe = task.domain.sample(1, rng=Rng(0)).to(reference)
    target = task.domain.normalise(probe).flatten()
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            seen = arguments[0].flatten()
            if seen.shape == target.shape and torch.equal(seen, target):
                found.append(name)

        return hook

    network = task.in_mode("eval").network
    readers = {
        name: layer
        for name, layer in network.named_modules()
        if isinstance(layer, nn.Linear)
        and layer.bias is not None
        and layer.in_features == target.numel()
    }
    handles = [m.register_forward_pre_hook(watch(n)) for n, m in readers.items()]
    try:
        with torch.no_grad():
            network(task.domain.normalise(probe))
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None
