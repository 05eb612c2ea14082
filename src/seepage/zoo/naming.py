"""What records call a task: the call that made it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from seepage.core import Task


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
