"""Data of one's own, as image files: one sub-folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from seepage.core.errors import DataNotFound
from seepage.data.dataset import Dataset
from seepage.data.dealing import dealt
from seepage.data.pictures import read_picture, squared, stacked
from seepage.data.request import Request
from seepage.domains import Image


def image_folder(request: Request) -> Dataset:
    """Load every image Pillow can read, cut to its centre square; 32 pixels unless told.

    Classes are the sub-folders in alphabetical order, and consecutive examples differ in class.
    Images are normalised by nothing, since their population is unknown.
    """
    root = Path(request.argument).expanduser()
    classes = _class_folders(root)
    labelled = [(file, label) for label, folder in enumerate(classes) for file in _images(folder)]
    if not labelled:
        raise DataNotFound(
            f"expected one sub-folder of images per class in {root}, found no image; "
            "move them into sub-folders named after their classes"
        )
    pixels = request.pixels or 32
    order = dealt(np.array([label for _, label in labelled]))
    chosen = [labelled[number] for number in order]
    inputs = stacked([squared(read_picture(file)[None], pixels)[0] for file, _ in chosen])
    return Dataset(
        name=f"folder:{request.argument}",
        inputs=inputs,
        labels=torch.tensor([label for _, label in chosen]),
        domain=Image(tuple(inputs.shape[1:])),
        class_names=tuple(folder.name for folder in classes),
        source=f"{root}, given by the user.",
    )


def _class_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise DataNotFound(f"expected a folder of images at {root}, but none is there")
    return sorted(child for child in root.iterdir() if child.is_dir() and child.name[0] != ".")


def _images(folder: Path) -> list[Path]:
    from PIL import Image

    readable = {
        suffix for suffix, form in Image.registered_extensions().items() if form in Image.OPEN
    }
    files = (child for child in folder.iterdir() if child.is_file() and child.name[0] != ".")
    return sorted(file for file in files if file.suffix.lower() in readable)
