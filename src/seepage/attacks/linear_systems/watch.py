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

    def record(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...], outputs: Tensor) -> None:
            seen.append(Visit(name, module, before.pop(), _copy(outputs)))

        return hook

    before: list[Tensor] = []

    def remember(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        before.append(_copy(*arguments[:1]))

    innermost = {n: m for n, m in network.named_modules() if not any(m.children())}
    handles = [m.register_forward_hook(record(n)) for n, m in innermost.items()]
    handles += [m.register_forward_pre_hook(remember) for m in innermost.values()]
    try:
        with torch.no_grad():
            outputs = network(probe)
    finally:
        for handle in handles:
            handle.remove()
    return seen, outputs


def _copy(value: object = None) -> Tensor:
    """A copy, since activations may work in place; nothing of what is no tensor, as cells give."""
    return value.clone() if isinstance(value, Tensor) else torch.empty(0)
