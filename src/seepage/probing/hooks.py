"""What layers of a network read while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core import Rng, Task


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


_PROBES = 4


def running_order(task: Task, names: Iterable[str]) -> list[str]:
    """Names of modules in the order one pass runs them, as often as it does.

    The network runs on the adversary's own noise.

    Args:
        task: Whose network it is.
        names: Of the modules to watch, as `named_modules` spells them.

    Example:
        >>> from seepage.zoo import lenet
        >>> running_order(lenet(), ["head", "conv1"])
        ['conv1', 'head']
    """
    order: list[str] = []
    handles = [
        task.network.get_submodule(name).register_forward_pre_hook(
            lambda *_, name=name: order.append(name)
        )
        for name in names
    ]
    try:
        with torch.no_grad():
            task.outputs(task.parameters, task.move_inputs(task.domain.sample(_PROBES, rng=Rng(0))))
    finally:
        for handle in handles:
            handle.remove()
    return order


@dataclass(frozen=True, eq=False)
class Visit:
    """One call of a module that has no modules inside.

    Args:
        name: Of the module in its network.
        module: Itself.
        inputs: What it read, `(B, ...)`.
        outputs: What it gave, `(B, ...)`.
    """

    name: str
    module: nn.Module
    inputs: Tensor
    outputs: Tensor

    def __str__(self) -> str:
        """Kind and name, for messages."""
        return f"{type(self.module).__name__} {self.name!r}"


def visits(network: nn.Module, probe: Tensor) -> tuple[list[Visit], Tensor]:
    """Run a network once; return the calls of its innermost modules in order, and its output."""
    seen: list[Visit] = []
    read: list[Tensor] = []

    def before(module: nn.Module, arguments: tuple[object, ...]) -> None:
        read.append(_copied(arguments[0] if arguments else None))

    def after(name: str) -> Callable[[nn.Module, tuple[object, ...], object], None]:
        def hook(module: nn.Module, arguments: tuple[object, ...], outputs: object) -> None:
            seen.append(Visit(name, module, read.pop(), _copied(outputs)))

        return hook

    innermost = {n: m for n, m in network.named_modules() if not any(m.children())}
    handles = [m.register_forward_pre_hook(before) for m in innermost.values()]
    handles += [m.register_forward_hook(after(n)) for n, m in innermost.items()]
    try:
        with torch.no_grad():
            outputs = network(probe)
    finally:
        for handle in handles:
            handle.remove()
    return seen, outputs


def _copied(value: object) -> Tensor:
    """A tensor as it was, for the next module may work in place; what is none, as an empty one."""
    return value.clone() if isinstance(value, Tensor) else torch.empty(0, 0)
