"""Every architecture by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from seepage.core import Domain, Task
from seepage.core._construct import construct
from seepage.core._plugins import Catalogue, first_line
from seepage.core.errors import InvalidValue, UnknownName
from seepage.domains._box import CIFAR10
from seepage.zoo._convnets import (
    CNN_VARIANTS,
    cnn,
    convnet,
    lenet,
    mnist_convnet,
    single_conv,
    wang_cnn,
)
from seepage.zoo._foreign import OPTIONS, from_factory, hugging_face, pytorch_image_models
from seepage.zoo._gpt import gpt
from seepage.zoo._mlp import fc, mlp, two_layer
from seepage.zoo._resnet import resnet18, resnet20, resnet32, resnet50, resnet56, resnet152
from seepage.zoo._wide_head import wide_head_resnet18


def _make_variant(variant: str) -> Callable[..., Task]:
    def factory(*, classes: int = 10, domain: Domain = CIFAR10, seed: int = 0) -> Task:
        return cnn(variant=variant, classes=classes, domain=domain, seed=seed)

    network, number = variant.upper().split("-V")
    factory.__doc__ = f"{network} variant {number} of Chen and Campbell's Table 1; see `cnn`."
    return factory


_FIRST = (mlp, fc, lenet, convnet, resnet20, resnet32, resnet56, resnet18, resnet50, resnet152, cnn)
_LAST = (single_conv, wang_cnn, mnist_convnet, two_layer, wide_head_resnet18, gpt)
_BUILT_IN: dict[str, Callable[..., Task]] = {
    **{factory.__name__: factory for factory in _FIRST},
    **{variant: _make_variant(variant) for variant in CNN_VARIANTS},
    **{factory.__name__: factory for factory in _LAST},
}
MODELS: Catalogue[Callable[..., Task]] = Catalogue("model", "seepage.models", _BUILT_IN)

# Packages whose networks are named `PACKAGE:NAME`.
FOREIGN: Mapping[str, Callable[..., Task]] = MappingProxyType(
    {"hf": hugging_face, "timm": pytorch_image_models}
)


def catalogue() -> dict[str, str]:
    """Return each architecture's name with one line about it.

    Example:
        >>> catalogue()["cnn3-v4"]
        "CNN3 variant 4 of Chen and Campbell's Table 1; see `cnn`."
    """
    known = {**MODELS, **{f"{package}:NAME": make for package, make in FOREIGN.items()}}
    return {name: first_line(factory) for name, factory in known.items()}


def build(
    name: str, *, options: Mapping[str, object], fitted: Mapping[str, object] | None = None
) -> Task:
    """Build a task from plain data, as a spec holds it.

    Args:
        name: A model of the zoo or of an installed package, `hf:KIND`, `timm:NAME`, or
            `package.module:factory`.
        options: Arguments of the factory, which for a path may also be those of `from_factory`.
        fitted: What follows from the data, such as `domain` and `classes`; options come first.

    Example:
        >>> build("convnet", options={"width": 8}).name
        'convnet(width=8)'

    Raises:
        UnknownName: No such model, or the model has no such option.
        InvalidValue: An option is missing or has a value the model cannot use.
    """
    make = _resolve(name)
    given = {**(fitted or {}), **options}
    if isinstance(make, partial) and make.func is from_factory:
        given = {k: v for k, v in given.items() if k in OPTIONS} | {"arguments": options}
    task = construct(name, make, given)
    if not isinstance(task, Task):
        raise InvalidValue(
            f"expected {name} of the package {MODELS.origin(name)!r} to return a seepage.Task, got "
            f"{type(task).__name__}"
        )
    return task


def _resolve(name: str) -> Callable[..., Task]:
    if name in MODELS:
        return MODELS[name]
    package, _, rest = name.partition(":")
    if package in FOREIGN and rest:
        return partial(FOREIGN[package], rest)
    if ":" in name or "." in name:
        return partial(from_factory, name)
    raise UnknownName("model", name, MODELS)
