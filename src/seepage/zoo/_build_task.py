"""What the factories share: checking options, seeding the weights, naming the task."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.core._draws import PrivateDraws
from seepage.core._rng import require_seed
from seepage.core.errors import InvalidValue, UnknownName

# The least value of an integer option; 1 for those not named here.
_LEAST = {"seed": 0, "head_seed": 0, "padding": 0, "trained": 0, "lora": 0}


def build_task(
    factory: Callable[..., Task],
    make: Callable[[], nn.Module],
    domain: Domain,
    **options: Any,  # noqa: ANN401
) -> Task:
    """Check the options, build the network from its seed, and name the task after the call.

    The name shows the first option, and the others if they differ from their defaults.

    Args:
        factory: The public function. Its type hints say which options are integers or words.
        make: Builds the network; called after the checks.
        domain: The space of the inputs; `Task` shows it beside its name.
        options: The arguments of the factory, in order, `seed` included.
    """
    hints, parameters = get_type_hints(factory), inspect.signature(factory).parameters
    for option, value in options.items():
        if hints[option] is int:
            require_int(option, value, at_least=_LEAST.get(option, 1))
        elif get_origin(hints[option]) is Literal:
            require_choice(option, value, get_args(hints[option]))
    with seed_torch(options["seed"]):
        model = make()
    first = next(iter(options))
    shown = (
        f"{option}={value!r}"
        for option, value in options.items()
        if option == first or value != parameters[option].default
    )
    return Task(model, cross_entropy, domain, name=f"{factory.__name__}({', '.join(shown)})")


def require_int(name: str, value: object, *, at_least: int = 1) -> int:
    """Return a whole number that is large enough, or raise `InvalidValue`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidValue(f"expected {name} as a whole number >= {at_least}, got {value!r}")
    return value


def require_choice(kind: str, value: object, known: Iterable[str]) -> None:
    """Raise `UnknownName` unless the value is one of the known words."""
    names = tuple(known)
    if value not in names:
        raise UnknownName(kind, str(value), names)


def add_argument(name: str, argument: str, value: object) -> str:
    """Add an argument to a name that reads like a call, or make a call of one that does not.

    Example:
        >>> add_argument("lenet(classes=10)", "weights", "trained.pt")
        "lenet(classes=10, weights='trained.pt')"
    """
    opened = f"{name[:-1]}, " if name.endswith(")") else f"{name}("
    return f"{opened}{argument}={value!r})"


@contextmanager
def seed_torch(seed: int) -> Iterator[None]:
    """Seed what PyTorch draws inside the block, and leave the generator of the process alone.

    Example:
        >>> with seed_torch(3):
        ...     first = torch.nn.Linear(2, 2).weight
        >>> with seed_torch(3):
        ...     second = torch.nn.Linear(2, 2).weight
        >>> torch.equal(first, second)
        True
    """
    require_int("seed", require_seed(seed), at_least=0)
    # On the CPU, so that a seed gives the same weights whatever the caller's default device is.
    with PrivateDraws(seed), torch.device("cpu"):
        yield


def require_image_shape(model: str, domain: Domain) -> tuple[int, int, int]:
    """Return `(C, H, W)`, or raise `InvalidValue` if the domain is not one of images."""
    if len(domain.shape) != 3:
        raise InvalidValue(
            f"expected images (C, H, W) for {model}, got inputs of shape {domain.shape}; "
            "use mlp or single_conv for signals"
        )
    channels, height, width = domain.shape
    return channels, height, width


def convolve_sizes(
    sizes: Sequence[int], *, kernel: int, stride: int = 1, padding: int = 0
) -> tuple[int, ...]:
    """Spatial sizes after a convolution: floor((d + 2p - k) / s) + 1 along every axis.

    Example:
        >>> convolve_sizes((32, 32), kernel=5, stride=2, padding=2)
        (16, 16)
    """
    smallest = kernel - 2 * padding
    if min(sizes) < smallest:
        raise InvalidValue(
            f"expected at least {smallest} entries along every axis before a window of width "
            f"{kernel} with padding {padding}, but {tuple(sizes)} reach it; use larger inputs"
        )
    return tuple((size + 2 * padding - kernel) // stride + 1 for size in sizes)
