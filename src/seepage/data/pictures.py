"""Pictures to tensors: 8-bit arrays and image files become `(C, H, W)` in [0, 1], cut square."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile
from seepage.data.dataset import DataRequest, Dataset, dealt
from seepage.domains.box import Image

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


def natural(images: NDArray[np.uint8]) -> Tensor:
    """Turn 8-bit images `(N, H, W)` or `(N, H, W, C)` into `(N, C, H, W)` in [0, 1].

    Example:
        >>> natural(np.full((2, 4, 4, 3), 255, dtype=np.uint8)).shape
        torch.Size([2, 3, 4, 4])
    """
    channelled = images if images.ndim == 4 else images[..., None]
    planes = np.ascontiguousarray(channelled.transpose(0, 3, 1, 2))
    return torch.from_numpy(planes).float().div_(255)


def squared(images: Tensor, pixels: int, *, zoom: float = 1.0) -> Tensor:
    """Cut the centre square out of `(N, C, H, W)` and resample it to `pixels` by Lanczos.

    Args:
        images: In [0, 1].
        pixels: Side of the result.
        zoom: How much smaller than the short side the square is: 256 / 224 is the usual crop of
            ImageNet, in one pass.

    Example:
        >>> squared(torch.rand(2, 3, 10, 8), 4).shape
        torch.Size([2, 3, 4, 4])
    """
    from PIL import Image

    count, channels, height, width = images.shape
    if height == width == pixels and zoom == 1:
        return images
    side = min(height, width) / zoom
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    lanczos = Image.Resampling.LANCZOS
    planes = [
        np.asarray(Image.fromarray(plane).resize((pixels, pixels), lanczos, box=box))
        for plane in images.flatten(0, 1).numpy()
    ]
    # Lanczos overshoots at sharp edges.
    resampled = torch.from_numpy(np.stack(planes)).clamp_(0, 1)
    return resampled.reshape(count, channels, pixels, pixels)


def stacked(pictures: Sequence[Tensor]) -> Tensor:
    """Stack pictures of one size: `(N, 1, H, W)` if every one is grey, else `(N, 3, H, W)`."""
    sizes = {tuple(picture.shape[1:]) for picture in pictures}
    if len(sizes) > 1:
        few = ", ".join(f"{height}x{width}" for height, width in sorted(sizes)[:3])
        raise InvalidValue(f"expected pictures of one size, got {few}, ...; give pixels= a number")
    channels = max(len(picture) for picture in pictures)
    return torch.stack([picture.expand(channels, -1, -1) for picture in pictures])


def read_picture(path: Path) -> Tensor:
    """Read an image file, upright, as `picture_tensor` does."""
    from PIL import Image, ImageOps

    damage = (OSError, SyntaxError, ValueError, EOFError, RuntimeError, struct.error, zlib.error)
    try:
        with Image.open(path) as picture:
            return picture_tensor(ImageOps.exif_transpose(picture))
    except (*damage, Image.DecompressionBombError) as error:
        raise UnreadableFile(
            f"expected an image in {path}, but it cannot be read ({error}); replace or remove it"
        ) from error


def picture_tensor(picture: Picture) -> Tensor:
    """Turn a Pillow image into `(1, H, W)` if grey, else `(3, H, W)`; transparency is dropped."""
    if picture.mode.startswith(("I", "F")):
        return torch.from_numpy(_from_16_bits(np.array(picture)))[None]
    grey = picture.mode in ("1", "L", "LA")
    # Palettes with transparency only convert without loss by way of RGBA.
    plain = picture.convert("RGBA") if picture.mode == "P" else picture
    return natural(np.array(plain.convert("L" if grey else "RGB"))[None])[0]


def _from_16_bits(levels: NDArray[Any]) -> NDArray[np.float32]:
    if levels.dtype.kind == "f" or levels.min() < 0 or levels.max() > 65535:
        raise ValueError("its levels are neither 8 nor 16 bits wide")
    return levels.astype(np.float32) / np.float32(65535)


def image_folder(request: DataRequest) -> Dataset:
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
