"""What layers of a network read while it runs, and a run of it as in evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.core._rng import Rng
from seepage.core._task import Task
from seepage.core.errors import InvalidValue, UnknownName


@contextmanager
def layer_inputs(
    network: nn.Module, layers: Sequence[str], *, ndim: int | None = None
) -> Iterator[dict[str, Tensor]]:
    """Collect the inputs of layers inside the block, by name and in the order they run.

    Args:
        network: The network; if a layer runs more than once, its first run counts.
        layers: Names, as in `network.named_modules()`.
        ndim: Only runs on inputs of so many dimensions count; any if None.

    Example:
        >>> import torch
        >>> network = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
        >>> with layer_inputs(network, ["1"]) as read:
        ...     outputs = network(torch.zeros(5, 3))
        >>> read["1"].shape
        torch.Size([5, 2])
    """
    read: dict[str, Tensor] = {}

    def keep(name: str, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if ndim in (None, arguments[0].ndim):
            read.setdefault(name, arguments[0])

    modules = dict(network.named_modules())
    with ExitStack() as hooks:
        for name in layers:
            hooks.enter_context(modules[name].register_forward_pre_hook(partial(keep, name)))
        yield read


class _AllRead(BaseException):
    """Ends a pass once every layer has read its input; no network catches it by mistake."""


def read_layers(task: Task, layers: Sequence[str], normalised: Tensor) -> dict[str, Tensor]:
    """What layers read when the network runs on normalised inputs, by name.

    The pass ends at the last of them, so that nothing behind it is computed. It can be
    differentiated in the inputs, not in the parameters.

    Example:
        >>> import torch
        >>> from seepage.zoo import lenet
        >>> read_layers(lenet(), ["head"], torch.zeros(2, 3, 32, 32))["head"].shape
        torch.Size([2, 768])
    """
    modules = dict(task.network.named_modules())
    read: dict[str, Tensor] = {}

    def keep(name: str, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if name not in read:
            # A copy, since a layer that runs in place would change what it has read.
            read[name] = arguments[0].clone()
        if len(read) == len(layers):
            raise _AllRead

    for name in layers:
        if name not in modules:
            raise UnknownName("layer", name, modules, where=f"of {task.name}")
    with ExitStack() as hooks, suppress(_AllRead):
        for name in layers:
            hooks.enter_context(modules[name].register_forward_pre_hook(partial(keep, name)))
        functional_call(task.network, dict(task.parameters), (normalised,))
    if unread := [name for name in layers if name not in read]:
        raise InvalidValue(f"the layer {unread[0]!r} of {task.name} does not run")
    return read


_PROBES = 4


def running_order(task: Task, names: Iterable[str]) -> list[str]:
    """Names of modules in the order in which a pass over noise runs them, with repeats.

    Example:
        >>> from seepage.zoo import lenet
        >>> running_order(lenet(), ["head", "conv1"])
        ['conv1', 'head']
    """
    order: list[str] = []
    with ExitStack() as hooks, torch.no_grad():
        for name in names:
            module = task.network.get_submodule(name)
            hooks.enter_context(
                module.register_forward_pre_hook(lambda *_, name=name: order.append(name))
            )
        task.outputs(task.parameters, task.move_inputs(task.domain.sample(_PROBES, rng=Rng(0))))
    return order


@dataclass(frozen=True, eq=False)
class Visit:
    """One call of a module that has no modules inside."""

    name: str
    module: nn.Module
    inputs: Tensor
    outputs: Tensor

    def __str__(self) -> str:
        return f"{type(self.module).__name__} {self.name!r}"


def record_visits(network: nn.Module, probe: Tensor) -> tuple[list[Visit], Tensor]:
    """Run a network once; return the calls of its innermost modules in order, and its output."""
    seen: list[Visit] = []
    read: list[Tensor] = []

    def before(_: nn.Module, arguments: tuple[object, ...]) -> None:
        read.append(_copy_tensor(arguments[0] if arguments else None))

    def after(name: str, module: nn.Module, _: tuple[object, ...], outputs: object) -> None:
        seen.append(Visit(name, module, read.pop(), _copy_tensor(outputs)))

    with ExitStack() as hooks, torch.no_grad():
        for name, module in network.named_modules():
            if not any(module.children()):
                hooks.enter_context(module.register_forward_pre_hook(before))
                hooks.enter_context(module.register_forward_hook(partial(after, name)))
        outputs = network(probe)
    return seen, outputs


def _copy_tensor(value: object) -> Tensor:
    """Copy a tensor, since the next module may work in place; anything else becomes empty."""
    return value.clone() if isinstance(value, Tensor) else torch.empty(0, 0)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Run a network as in evaluation, without gradients; afterwards each layer has its own mode.

    Example:
        >>> model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2).eval())
        >>> with evaluating(model):
        ...     print([layer.training for layer in model])
        [False, False]
        >>> [layer.training for layer in model]
        [True, False]
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            yield model.eval()
    finally:
        for module, training in modes:
            module.training = training
