"""Which modules of a network run, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from seepage.core import Rng, Task

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
            task.outputs(task.parameters, task.placed(task.domain.sample(_PROBES, rng=Rng(0))))
    finally:
        for handle in handles:
            handle.remove()
    return order
