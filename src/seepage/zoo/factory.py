"""Networks of the user's own, named as `package.module:factory`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.core.errors import InvalidValue, UnknownName
from seepage.core.task import Loss
from seepage.zoo.arguments import whole
from seepage.zoo.naming import with_argument
from seepage.zoo.seeding import seeded
from seepage.zoo.weights import load_weights


def from_factory(
    path: str,
    *,
    domain: Domain,
    classes: int | None = None,
    loss: Loss = cross_entropy,
    weights: str | Path | None = None,
    seed: int = 0,
) -> Task:
    """Make a task of a network that a function, or a class, of the user's builds.

    Args:
        path: `package.module:factory`, importable; the factory is called without arguments.
        domain: The space of the inputs.
        classes: Number of outputs to insist on; None takes what the network has.
        loss: One value per example, unreduced.
        weights: A file of trained weights, read by `load_weights`.
        seed: Of the weights that the module or the factory draws.

    Example:
        >>> from seepage.domains import MNIST
        >>> from_factory("torch.nn:PReLU", domain=MNIST, seed=3).name
        'torch.nn:PReLU(seed=3)'
    """
    with seeded(seed):
        factory = _find(path)
    try:
        with seeded(seed):
            model = factory()
    except Exception as error:
        raise InvalidValue(
            f"expected {path!r} to build a network when called without arguments, but it raised "
            f"{_summary(error)}"
        ) from error
    if not isinstance(model, nn.Module):
        raise InvalidValue(
            f"expected {path!r} to return a torch.nn.Module, got {type(model).__name__}"
        )
    name = with_argument(path, "seed", seed) if seed else path
    task = Task(model, loss, domain, name=name)
    if weights is not None:
        task = load_weights(task, weights)
    if classes is not None and task.classes != whole("classes", classes):
        raise InvalidValue(f"expected {path!r} to have {classes} outputs, got {task.classes}")
    return task


def _find(path: str) -> Callable[[], object]:
    module_name, separator, attribute = path.partition(":")
    if not (module_name and separator and attribute):
        raise InvalidValue(f"expected a network as 'package.module:factory', got {path!r}")
    module = _module(module_name, path)
    found = getattr(module, attribute, None)
    if found is None:
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UnknownName("factory", attribute, public, where=f"in {module_name}")
    if isinstance(found, nn.Module) or not callable(found):
        raise InvalidValue(
            f"expected {path!r} to be a function or class that builds a network, got "
            f"{type(found).__name__}"
        )
    factory: Callable[[], object] = found
    return factory


def _module(name: str, path: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidValue(
                f"no module {error.name!r} to import {path!r} from; run in the folder that holds "
                "it, or install its package"
            ) from error
        raise InvalidValue(f"importing {name!r} raised {_summary(error)}") from error
    except Exception as error:
        raise InvalidValue(f"importing {name!r} raised {_summary(error)}") from error


def _summary(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
