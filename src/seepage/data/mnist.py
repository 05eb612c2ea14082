"""MNIST: handwritten digits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.data.arrays import read_arrays
from seepage.data.dataset import Dataset
from seepage.data.pictures import natural, squared
from seepage.data.request import Request
from seepage.data.root import located
from seepage.domains import MNIST

FILE = "mnist_10k.npz"
SIDE = 28


def mnist(request: Request) -> Dataset:
    """Load test digits 0..1999 or training digits 0..9999, in canonical order.

    References: LeCun et al., 1998 (lecun1998gradient)
    """
    split = request.split
    images, labels = read_arrays(located(FILE), f"{split}_images", f"{split}_labels")
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
        inputs=bordered(natural(images), pixels),
        labels=torch.from_numpy(labels).long(),
        domain=replace(MNIST, shape=(1, pixels, pixels)),
        class_names=tuple("0123456789"),
        source=source,
    )


def bordered(images: Tensor, pixels: int) -> Tensor:
    """Pad square images with zeros to `pixels`, or shrink them if that is smaller."""
    margin = pixels - images.shape[-1]
    if margin < 0:
        return squared(images, pixels)
    before, after = margin // 2, margin - margin // 2
    return torch.nn.functional.pad(images, (before, after, before, after))
