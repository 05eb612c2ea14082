"""CIFAR-10 and CIFAR-100: leading parts of each split, in canonical order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray

from seepage.data.arrays import read_arrays
from seepage.data.dataset import Dataset
from seepage.data.pictures import natural, squared
from seepage.data.request import Request
from seepage.data.root import located
from seepage.domains import CIFAR10, CIFAR100, Image

CIFAR10_FILES = {"test": "cifar10_test_1500.npz", "train": "cifar10_train_20k.npz"}
CIFAR100_FILE = "cifar100_2k.npz"


def cifar10(request: Request) -> Dataset:
    """Load test images 0..1499 or training images 0..19999.

    References: Krizhevsky, 2009 (krizhevsky2009learning)
    """
    path = located(CIFAR10_FILES[request.split])
    arrays = read_arrays(path, "images", "labels", "label_names")
    return _dataset("cifar10", CIFAR10, arrays, request)


def cifar100(request: Request) -> Dataset:
    """Load test images 0..915 or training images 0..1116, with the 100 fine labels.

    References: Krizhevsky, 2009 (krizhevsky2009learning)
    """
    split = request.split
    names = (f"{split}_images", f"{split}_fine", "fine_label_names")
    return _dataset("cifar100", CIFAR100, read_arrays(located(CIFAR100_FILE), *names), request)


def _dataset(
    name: str, domain: Image, arrays: tuple[NDArray[Any], ...], request: Request
) -> Dataset:
    images, labels, class_names = arrays
    pixels = request.pixels or 32
    return Dataset(
        name=name,
        inputs=squared(natural(images), pixels),
        labels=torch.from_numpy(labels).long(),
        domain=replace(domain, shape=(3, pixels, pixels)),
        class_names=tuple(class_names.tolist()),
        source="CIFAR, Krizhevsky 2009; no formal licence, free to use with citation.",
    )
