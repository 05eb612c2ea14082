"""What layers of a network read while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def layer_inputs(network: nn.Module, layers: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Keep the inputs of layers, by name and in the order they run, while the context lasts.

    Args:
        network: What will run; of a layer that runs more than once the first time counts.
        layers: Names, as in `network.named_modules()`.

    Example:
        >>> import torch
        >>> network = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
        >>> with layer_inputs(network, ["1"]) as read:
        ...     outputs = network(torch.zeros(5, 3))
        >>> read["1"].shape
        torch.Size([5, 2])
    """
    read: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            read.setdefault(name, arguments[0])

        return hook

    modules = dict(network.named_modules())
    handles = [modules[name].register_forward_pre_hook(keep(name)) for name in layers]
    try:
        yield read
    finally:
        for handle in handles:
            handle.remove()
