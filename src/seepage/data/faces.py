"""Faces of forty people, the Database of Faces of the Olivetti Research Laboratory (ORL)."""

from __future__ import annotations

import torch

from seepage.data.arrays import read_arrays
from seepage.data.dataset import Dataset
from seepage.data.dealing import dealt
from seepage.data.pictures import natural, squared
from seepage.data.request import Request
from seepage.data.root import located
from seepage.domains import Image

FILE = "faces.npz"
PEOPLE = 40
# Measured once over all 400 faces at 64 pixels.
MEAN, STD = (0.4632,), (0.1941,)


def faces(request: Request) -> Dataset:
    """Load 400 grey faces, one class per person; consecutive examples are different people.

    The photographs of 112 x 92 pixels are cut to their centre square, then resized.

    References: Samaria and Harter, 1994 (samaria1994parameterisation)
    """
    images, people = read_arrays(located(FILE), "orl_images", "orl_subject")
    order = dealt(people)
    pixels = request.pixels or 64
    return Dataset(
        name="faces",
        inputs=squared(natural(images[order]), pixels),
        labels=torch.from_numpy(people[order]).long(),
        domain=Image((1, pixels, pixels), mean=MEAN, std=STD),
        class_names=tuple(f"person {number}" for number in range(1, PEOPLE + 1)),
        source="ORL Database of Faces, AT&T Laboratories Cambridge; research use with credit.",
    )
