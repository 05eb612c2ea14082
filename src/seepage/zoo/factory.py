"""Networks of the user's own, named as `package.module:factory`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from seepage.core import Domain, Task, cross_entropy
from seepage.core.errors import InvalidValue, in_a_line
from seepage.core.plugins import import_factory
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
            f"{in_a_line(error)}"
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
    found: Callable[[], object] = import_factory(path, kind="network")
    if isinstance(found, nn.Module):
        raise InvalidValue(
            f"expected {path!r} to be a function or class that builds a network, got "
            f"{type(found).__name__}"
        )
    return found
