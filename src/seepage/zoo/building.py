"""Checks of the numbers and words that a factory is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from seepage.core import Domain, Task
from seepage.core.errors import InvalidValue, UnknownName


def whole(name: str, value: object, *, at_least: int = 1) -> int:
    """Return a whole number that is large enough, or raise `InvalidValue`.

    Example:
        >>> whole("width", 64)
        64
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidValue(f"expected {name} as a whole number >= {at_least}, got {value!r}")
    return value


def widths(name: str, values: object) -> tuple[int, ...]:
    """Return one width per hidden layer as a tuple, or raise `InvalidValue`."""
    if not isinstance(values, tuple | list) or not values:
        raise InvalidValue(f"expected {name} as one width per layer, e.g. (256,), got {values!r}")
    return tuple(whole(f"each width in {name}", value) for value in values)


def choice(kind: str, value: object, known: Iterable[str]) -> None:
    """Raise `UnknownName` unless the value is one of the known words."""
    names = tuple(known)
    if value not in names:
        raise UnknownName(kind, str(value), names)


def call_name(factory: Callable[..., Task], options: Mapping[str, object]) -> str:
    """Write the call: the first option always, the others where they differ from the default.

    The domain is left out; `Task` shows it beside its name.
    """
    parameters = inspect.signature(factory).parameters
    first = next(iter(options))
    shown = {
        name: value
        for name, value in options.items()
        if name == first or value != parameters[name].default
    }
    arguments = ", ".join(f"{name}={value!r}" for name, value in shown.items())
    return f"{factory.__name__}({arguments})"


def with_argument(name: str, argument: str, value: object) -> str:
    """Add an argument to a name that reads like a call, or make a call of one that does not.

    Example:
        >>> with_argument("lenet(classes=10)", "weights", "trained.pt")
        "lenet(classes=10, weights='trained.pt')"
    """
    opened = f"{name[:-1]}, " if name.endswith(")") else f"{name}("
    return f"{opened}{argument}={value!r})"


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make everything drawn inside the block a function of the seed, and leave no trace.

    Example:
        >>> with seeded(3):
        ...     first = torch.nn.Linear(2, 2).weight
        >>> with seeded(3):
        ...     second = torch.nn.Linear(2, 2).weight
        >>> torch.equal(first, second)
        True
    """
    whole("seed", seed, at_least=0)
    # On the CPU, so that a seed means the same weights whatever the caller's default device, and
    # through the CPU generator alone: torch.manual_seed would also reseed the caller's GPUs.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def image_shape(model: str, domain: Domain) -> tuple[int, int, int]:
    """Return `(C, H, W)`, or raise `InvalidValue` if the domain is not one of images."""
    if len(domain.shape) != 3:
        raise InvalidValue(
            f"expected images (C, H, W) for {model}, got inputs of shape {domain.shape}; "
            "use mlp or single_conv for signals"
        )
    channels, height, width = domain.shape
    return channels, height, width


def convolved(
    sizes: Sequence[int], *, kernel: int, stride: int = 1, padding: int = 0
) -> tuple[int, ...]:
    """Spatial sizes after a convolution: floor((d + 2p - k) / s) + 1 along every axis.

    Example:
        >>> convolved((32, 32), kernel=5, stride=2, padding=2)
        (16, 16)
    """
    smallest = kernel - 2 * padding
    if min(sizes) < smallest:
        raise InvalidValue(
            f"expected at least {smallest} entries along every axis before a window of width "
            f"{kernel} with padding {padding}, but {tuple(sizes)} reach it; use larger inputs"
        )
    return tuple((size + 2 * padding - kernel) // stride + 1 for size in sizes)
