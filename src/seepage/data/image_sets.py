"""CIFAR-10 and CIFAR-100: leading parts of each split, in canonical order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.errors import UnreadableFile
from seepage.data.dataset import DataRequest, Dataset, dealt, located
from seepage.data.files import natural, read_arrays, read_picture, squared, stacked
from seepage.domains.box import CIFAR10, CIFAR100, IMAGENET, MNIST, Image

CIFAR10_FILES = {"test": "cifar10_test_1500.npz", "train": "cifar10_train_20k.npz"}
CIFAR100_FILE = "cifar100_2k.npz"


def cifar10(request: DataRequest) -> Dataset:
    """Load test images 0..1499 or training images 0..19999.

    References: Krizhevsky, 2009 (krizhevsky2009learning)
    """
    path = located(CIFAR10_FILES[request.split])
    arrays = read_arrays(path, "images", "labels", "label_names")
    return _dataset("cifar10", CIFAR10, arrays, request)


def cifar100(request: DataRequest) -> Dataset:
    """Load test images 0..915 or training images 0..1116, with the 100 fine labels.

    References: Krizhevsky, 2009 (krizhevsky2009learning)
    """
    split = request.split
    names = (f"{split}_images", f"{split}_fine", "fine_label_names")
    return _dataset("cifar100", CIFAR100, read_arrays(located(CIFAR100_FILE), *names), request)


def _dataset(
    name: str, domain: Image, arrays: tuple[NDArray[Any], ...], request: DataRequest
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


MNIST_FILE = "mnist_10k.npz"
SIDE = 28


def mnist(request: DataRequest) -> Dataset:
    """Load test digits 0..1999 or training digits 0..9999, in canonical order.

    References: LeCun et al., 1998 (lecun1998gradient)
    """
    split = request.split
    images, labels = read_arrays(located(MNIST_FILE), f"{split}_images", f"{split}_labels")
    source = "MNIST, LeCun et al. 1998; commonly stated as CC BY-SA 3.0."
    return digit_dataset("mnist", images, labels, pixels=request.pixels or SIDE, source=source)


def digit_dataset(
    name: str, images: NDArray[np.uint8], labels: NDArray[Any], *, pixels: int, source: str
) -> Dataset:
    """Make a data set of 28-pixel digits; more pixels add a black border, fewer shrink.

    At 32 pixels a digit has the 1024 inputs of "What can we learn from gradients?" (002).
    """
    return Dataset(
        name=name,
        inputs=_bordered(natural(images), pixels),
        labels=torch.from_numpy(labels).long(),
        domain=replace(MNIST, shape=(1, pixels, pixels)),
        class_names=tuple("0123456789"),
        source=source,
    )


def _bordered(images: Tensor, pixels: int) -> Tensor:
    """Pad square images with zeros to `pixels`, or shrink them if that is smaller."""
    margin = pixels - images.shape[-1]
    if margin < 0:
        return squared(images, pixels)
    before, after = margin // 2, margin - margin // 2
    return torch.nn.functional.pad(images, (before, after, before, after))


FOLDER = "imagenet_16"
CLASSES = 1000
SHORT_SIDE_TO_CROP = 256 / 224


def imagenet(request: DataRequest) -> Dataset:
    """Load 16 images of 16 classes, labelled 0..999 in the usual order of ImageNet.

    The short side is brought to 256 and the centre 224 pixels are kept, or as much at any other
    size. Classes without an image are named by their number.

    References: Deng et al., 2009 (deng2009imagenet)
    """
    folder = located(FOLDER)
    entries = _entries(folder / "labels.json")
    pixels = request.pixels or 224
    names = {number: label for _, number, label in entries}
    return Dataset(
        name="imagenet",
        inputs=stacked([_cropped(folder / file, pixels) for file, _, _ in entries]),
        labels=torch.tensor([number for _, number, _ in entries]),
        domain=replace(IMAGENET, shape=(3, pixels, pixels)),
        class_names=tuple(names.get(number, f"class {number}") for number in range(CLASSES)),
        source="ImageNet (ILSVRC 2012); non-commercial research only, not for redistribution.",
    )


def _cropped(path: Path, pixels: int) -> Tensor:
    colour = read_picture(path).expand(3, -1, -1)
    return squared(colour[None], pixels, zoom=SHORT_SIDE_TO_CROP)[0]


def _entries(path: Path) -> list[tuple[str, int, str]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["images"]
        return [(entry["file"], int(entry["class_index"]), entry["label"]) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnreadableFile(
            f"expected images with file, class_index and label in {path}, but it cannot be read "
            f"({error!r}); restore it"
        ) from error


FACES_FILE = "faces.npz"
PEOPLE = 40
# Measured once over all 400 faces at 64 pixels.
FACES_MEAN, FACES_STD = (0.4632,), (0.1941,)


def faces(request: DataRequest) -> Dataset:
    """Load 400 grey faces, one class per person; consecutive examples are different people.

    The photographs of 112 x 92 pixels are cut to their centre square, then resized.

    References: Samaria and Harter, 1994 (samaria1994parameterisation)
    """
    images, people = read_arrays(located(FACES_FILE), "orl_images", "orl_subject")
    order = dealt(people)
    pixels = request.pixels or 64
    return Dataset(
        name="faces",
        inputs=squared(natural(images[order]), pixels),
        labels=torch.from_numpy(people[order]).long(),
        domain=Image((1, pixels, pixels), mean=FACES_MEAN, std=FACES_STD),
        class_names=tuple(f"person {number}" for number in range(1, PEOPLE + 1)),
        source="ORL Database of Faces, AT&T Laboratories Cambridge; research use with credit.",
    )


CELLS_FILE = "blood_cells_bccd.npz"
# Measured once over all 450 cells at 64 pixels.
CELLS_MEAN, CELLS_STD = (0.7219, 0.6971, 0.7492), (0.0904, 0.1185, 0.0682)


def cells(request: DataRequest) -> Dataset:
    """Load 450 stained blood cells, 150 each of white cells, red cells and platelets."""
    images, labels, class_names = read_arrays(
        located(CELLS_FILE), "images", "labels", "label_names"
    )
    pixels = request.pixels or 64
    return Dataset(
        name="cells",
        inputs=squared(natural(images), pixels),
        labels=torch.from_numpy(labels).long(),
        domain=Image((3, pixels, pixels), mean=CELLS_MEAN, std=CELLS_STD),
        class_names=tuple(class_names.tolist()),
        source="BCCD data set (github.com/Shenggan/BCCD_Dataset), cells cut out; MIT licence.",
    )
