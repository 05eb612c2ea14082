"""Data of the user's own: image folders and npz archives, and how both become tensors."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile
from seepage.data.dataset import DataRequest, Dataset, dealt
from seepage.domains.box import Image, Signal

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


# What numpy and zipfile raise on archives that are truncated, garbled, encrypted or lie about
# their size.
_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    OverflowError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def _array_names(path: Path) -> list[str]:
    """Return the names of the arrays in an archive."""
    with _opened(path) as archive:
        return list(archive.files)


def read_arrays(path: Path, *names: str) -> tuple[NDArray[Any], ...]:
    """Read the arrays of these names."""
    found = _array_names(path)
    if missing := [name for name in names if name not in found]:
        raise UnreadableFile(
            f"expected the arrays {', '.join(names)} in {path}, but {', '.join(missing)} "
            f"is not among {', '.join(found) or 'none'}"
        )
    with _opened(path) as archive:
        return tuple(_array(archive, name) for name in names)


def _array(archive: NpzFile, name: str) -> NDArray[Any]:
    array = archive[name]
    # numpy hands out members of any other kind as bytes.
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} is not an array")
    return array


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    if not path.exists():
        raise DataNotFound(f"expected an npz file at {path}, but nothing is there; check the path")
    try:
        # Opened here because numpy leaves its own handle open when the archive is damaged.
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, NpzFile):
                raise ValueError("it holds a single array without a name")
            yield archive
    except _DAMAGE as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise UnreadableFile(
            f"expected an npz archive of plain arrays in {path}, but it cannot be read "
            f"({reason}); save it again with numpy.savez_compressed"
        ) from error


INPUT_KEYS = ("images", "inputs")
NAME_KEYS = ("class_names", "label_names")
MOST_CLASSES = 100_000
LAYOUTS = "uint8 (N, H, W) or (N, H, W, C), floats in [0, 1] (N, C, H, W), or signals (N, C, L)"


def npz_file(request: DataRequest) -> Dataset:
    """Load the inputs, labels and optional class names of an archive, in its order.

    Images are normalised by nothing, since their population is unknown.
    """
    path = Path(request.argument).expanduser()
    inputs_key, names_key = _keys(path)
    stored, labels = read_arrays(path, inputs_key, "labels")
    inputs = _inputs(stored, path)
    if request.pixels is not None:
        if inputs.ndim != 4:
            raise InvalidValue(f"expected pixels=None for signals in {path}, got {request.pixels}")
        inputs = squared(inputs, request.pixels)
    return Dataset(
        name=f"npz:{request.argument}",
        inputs=inputs,
        labels=_labels(labels, path),
        domain=(Image if inputs.ndim == 4 else Signal)(tuple(inputs.shape[1:])),
        class_names=_class_names(path, names_key, labels),
        source=f"{path}, given by the user.",
    )


def _keys(path: Path) -> tuple[str, str | None]:
    found = _array_names(path)
    inputs = next((key for key in INPUT_KEYS if key in found), None)
    if inputs is None or "labels" not in found:
        raise UnreadableFile(
            f"expected the arrays images (or inputs) and labels, and optionally class_names (or "
            f"label_names), in {path}, got {', '.join(found) or 'none'}; rename them"
        )
    return inputs, next((key for key in NAME_KEYS if key in found), None)


def _inputs(stored: NDArray[Any], path: Path) -> Tensor:
    # An image of more than four channels is an image with its axes in another order.
    channels_last = stored.ndim == 3 or (stored.ndim == 4 and stored.shape[3] <= 4)
    channels_first = stored.ndim == 3 or (stored.ndim == 4 and stored.shape[1] <= 4)
    if stored.size and stored.dtype == np.uint8 and channels_last:
        return natural(stored)
    if stored.size and stored.dtype.kind == "f" and channels_first:
        return torch.from_numpy(np.ascontiguousarray(stored, dtype=np.float32))
    raise InvalidValue(f"expected {LAYOUTS} in {path}, got {stored.dtype} {stored.shape}")


def _labels(labels: NDArray[Any], path: Path) -> Tensor:
    if labels.dtype.kind not in "iu":
        raise InvalidValue(f"expected integer labels in {path}, got {labels.dtype}")
    return torch.from_numpy(labels.astype(np.int64))


def _class_names(path: Path, key: str | None, labels: NDArray[Any]) -> tuple[str, ...]:
    if key is not None:
        return tuple(map(str, read_arrays(path, key)[0].tolist()))
    most = int(labels.max(initial=0))
    if most >= MOST_CLASSES:
        raise InvalidValue(f"expected classes numbered from 0 in {path}, got a label {most}")
    return tuple(map(str, range(most + 1)))
