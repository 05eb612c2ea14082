"""Any image classification set of torchvision that is already on disk."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from seepage.core.errors import DataNotFound, InvalidValue, MissingExtra, UnknownName
from seepage.data.dataset import DataRequest, Dataset, data_root
from seepage.data.files import picture_tensor, squared, stacked
from seepage.domains.box import CIFAR10, CIFAR100, MNIST, Image

PRESETS = {"CIFAR10": CIFAR10, "CIFAR100": CIFAR100, "MNIST": MNIST}


def torchvision_set(request: DataRequest) -> Dataset:
    """Load a set by its class name in `torchvision.datasets`; nothing is downloaded.

    Its files are looked for in the data folder. torchvision unpickles some of them (CIFAR) after
    comparing their checksums.
    """
    name = request.argument
    found = _open(name, request.split)
    examples = [_example(name, found[number]) for number in range(len(found))]
    pictures = [picture for picture, _ in examples]
    if request.pixels is not None:
        pictures = [squared(picture[None], request.pixels)[0] for picture in pictures]
    labels = torch.tensor([label for _, label in examples])
    inputs = stacked(pictures)
    shape = tuple(inputs.shape[1:])
    return Dataset(
        name=f"torchvision:{name}",
        inputs=inputs,
        labels=labels,
        domain=replace(PRESETS[name], shape=shape) if name in PRESETS else Image(shape),
        class_names=tuple(map(str, getattr(found, "classes", range(int(labels.max()) + 1)))),
        source=f"torchvision.datasets.{name}, under the terms of its authors.",
    )


def _open(name: str, split: str) -> Any:  # noqa: ANN401
    catalogue = _torchvision_datasets()
    if name not in catalogue.__all__:
        raise UnknownName("torchvision data set", name, catalogue.__all__)
    constructor, root = getattr(catalogue, name), data_root()
    options = _options(constructor, split)
    try:
        return constructor(str(root), **options)
    except (RuntimeError, OSError) as error:
        raise DataNotFound(
            f"expected the files of torchvision.datasets.{name} in {root}, but it cannot open "
            f"them ({_first_line(error)}); fetch them once with download=True"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidValue(
            f"expected a set that opens with split {split!r} and nothing else, but "
            f"torchvision.datasets.{name} does not ({_first_line(error)}); use folder:PATH"
        ) from error


def _options(constructor: Callable[..., Any], split: str) -> dict[str, bool | str]:
    accepted = inspect.signature(constructor).parameters
    options: dict[str, bool | str] = {}
    if "download" in accepted:
        options["download"] = False
    # Most sets split by a flag, some by a name; EMNIST has both, and its names mean alphabets.
    if "train" in accepted:
        if split not in ("test", "train"):
            raise InvalidValue(f"expected split 'test' or 'train', got {split!r}")
        options["train"] = split == "train"
    elif "split" in accepted:
        options["split"] = split
    return options


def _example(name: str, example: Any) -> tuple[Tensor, int]:  # noqa: ANN401
    if len(example) != 2 or not isinstance(example[1], int):
        raise InvalidValue(
            f"expected pairs of an image and a class number, but torchvision.datasets.{name} "
            "holds something else; use folder:PATH"
        )
    return picture_tensor(example[0]), example[1]


def _torchvision_datasets() -> ModuleType:
    try:
        return importlib.import_module("torchvision.datasets")
    # A torchvision built for another torch fails with RuntimeError or OSError.
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingExtra(
            f"expected torchvision, but it does not import ({_first_line(error)}): "
            "pip install 'seepage[vision]'"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
