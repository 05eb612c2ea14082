"""Watch a network run: which modules it calls, in which order, on what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
