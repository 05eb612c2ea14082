"""A handful of ImageNet photographs at full size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from seepage.core.errors import UnreadableFile
from seepage.data.dataset import Dataset
from seepage.data.pictures import read_picture, squared, stacked
from seepage.data.request import Request
from seepage.data.root import located
from seepage.domains import IMAGENET

FOLDER = "imagenet_16"
CLASSES = 1000
SHORT_SIDE_TO_CROP = 256 / 224


def imagenet(request: Request) -> Dataset:
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
