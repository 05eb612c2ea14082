"""The last fully connected layer of a network, and what it is given."""

from __future__ import annotations

from torch import Tensor, nn

from seepage.core import Task
from seepage.core.errors import NotApplicable


def head_of(task: Task, *, needed_by: object) -> tuple[str, nn.Linear]:
    """The last fully connected layer, by name.

    Example:
        >>> from seepage import zoo
        >>> head_of(zoo.mlp(hidden=(8,)), needed_by="this example")[1]
        Linear(in_features=8, out_features=10, bias=True)
    """
    named = task.network.named_modules()
    linear = [(name, module) for name, module in named if isinstance(module, nn.Linear)]
    if not linear or not linear[-1][0]:
        raise NotApplicable(
            f"{needed_by} works at the last of several layers, a fully connected one, which "
            f"{task.name} has not"
        )
    return linear[-1]


def representation(task: Task, inputs: Tensor, head: nn.Linear) -> Tensor:
    """What the head is given for these inputs, `(B, D)`, differentiable in them."""
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        task.outputs(task.parameters, inputs)
    finally:
        handle.remove()
    return seen[-1]
