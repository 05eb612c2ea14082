"""Data on the user's disk: image folders, npz archives and data sets of torchvision."""

from __future__ import annotations

import importlib
import inspect
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.errors import (
    DataNotFound,
    InvalidValue,
    MissingExtra,
    SeepageError,
    UnknownName,
    UnreadableFile,
    install_hint,
)
from seepage.core.whole_file import open_plain, require_size
from seepage.data.dataset import DataRequest, Dataset, data_root, interleave_classes
from seepage.data.dicom_files import DICOM, read_dicom
from seepage.domains.box import CIFAR10, CIFAR100, MNIST, Image, Signal
from seepage.domains.tabular import Continuous, Tabular, round_outwards

if TYPE_CHECKING:
    from PIL.Image import Image as Picture


def images_to_tensor(images: NDArray[np.uint8]) -> Tensor:
    """Turn 8-bit images `(N, H, W)` or `(N, H, W, C)` into `(N, C, H, W)` in [0, 1].

    Example:
        >>> images_to_tensor(np.full((2, 4, 4, 3), 255, dtype=np.uint8)).shape
        torch.Size([2, 3, 4, 4])
    """
    channelled = images if images.ndim == 4 else images[..., None]
    planes = np.ascontiguousarray(channelled.transpose(0, 3, 1, 2))
    return torch.from_numpy(planes).float().div_(255)


def crop_square(images: Tensor, pixels: int, *, zoom: float = 1.0) -> Tensor:
    """Crop the centre square of images `(N, C, H, W)` in [0, 1] and resample it by Lanczos.

    Args:
        images: The images.
        pixels: Side of the result.
        zoom: Ratio of the short side to the square: 256 / 224 is the usual crop of ImageNet.

    Example:
        >>> crop_square(torch.rand(2, 3, 10, 8), 4).shape
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


def stack_pictures(pictures: Sequence[Tensor]) -> Tensor:
    """Stack pictures of one size: `(N, 1, H, W)` if all are grey, else `(N, 3, H, W)`."""
    sizes = {tuple(picture.shape[1:]) for picture in pictures}
    if len(sizes) > 1:
        few = ", ".join(f"{height}x{width}" for height, width in sorted(sizes)[:3])
        raise InvalidValue(f"expected pictures of one size, got {few}, ...; give pixels= a number")
    channels = max(len(picture) for picture in pictures)
    return torch.stack([picture.expand(channels, -1, -1) for picture in pictures])


# Read by Pillow itself; others, such as EPS, start another program.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
# Bytes that a pixel takes on its way from 8 bits to floats, in copies of which several live.
_ROOM = 40


def read_picture(path: Path) -> Tensor:
    """Read an image file, upright, as `(1, H, W)` if grey, else `(3, H, W)`."""
    if path.suffix.lower() in DICOM:
        return read_dicom(path)
    from PIL import Image, ImageOps

    damage = (OSError, SyntaxError, ValueError, EOFError, RuntimeError, struct.error, zlib.error)
    try:
        with open_plain(path, follow=True) as file, warnings.catch_warnings():
            # What Pillow warns of is refused below, or has a limit of our own.
            warnings.simplefilter("ignore")
            with Image.open(file, formats=FORMATS) as picture:
                require_size(path, _ROOM * picture.width * picture.height)
                return _picture_to_tensor(ImageOps.exif_transpose(picture))
    except SeepageError:
        raise
    except (*damage, Image.DecompressionBombError) as error:
        raise UnreadableFile(
            f"expected an image in {path}, but it cannot be read ({error}); replace or remove it"
        ) from error


def _picture_to_tensor(picture: Picture) -> Tensor:
    """Turn a Pillow image into `(1, H, W)` if grey, else `(3, H, W)`; transparency is dropped."""
    if picture.mode.startswith(("I", "F")):
        levels = np.array(picture)
        if levels.dtype.kind == "f" or levels.min() < 0 or levels.max() > 65535:
            raise ValueError("its levels are neither 8 nor 16 bits wide")
        return torch.from_numpy(levels.astype(np.float32) / np.float32(65535))[None]
    grey = picture.mode in ("1", "L", "LA")
    # A palette with transparency converts without loss only through RGBA.
    plain = picture.convert("RGBA") if picture.mode == "P" else picture
    return images_to_tensor(np.array(plain.convert("L" if grey else "RGB"))[None])[0]


# The class of images in a folder without sub-folders.
_NO_CLASS = "image"


def image_folder(request: DataRequest) -> Dataset:
    """Load images of `FORMATS` and DICOM files, cut to their centre square of 32 pixels.

    Classes are the sub-folders in alphabetical order, and consecutive examples differ in class.
    Images without sub-folders are all of one class, and a model needs `classes` then.
    Images are not normalised, since their population is unknown.
    """
    root = Path(request.argument).expanduser()
    if not root.is_dir():
        raise DataNotFound(f"expected a folder of images at {root}, but none is there")
    classes = sorted(child for child in root.iterdir() if child.is_dir() and child.name[0] != ".")
    labelled = [(file, i) for i, folder in enumerate(classes) for file in _list_images(folder)]
    names = tuple(folder.name.encode(errors="replace").decode() for folder in classes)
    if not classes:
        labelled, names = [(file, 0) for file in _list_images(root)], (_NO_CLASS,)
    if not labelled:
        raise DataNotFound(
            f"expected images in {root}, or one sub-folder of images per class, found no image"
        )
    pixels = request.pixels or 32
    order = interleave_classes(np.array([label for _, label in labelled]))
    chosen = [labelled[number] for number in order]
    pictures = [crop_square(read_picture(file)[None], pixels)[0] for file, _ in chosen]
    inputs = stack_pictures(pictures)
    return Dataset(
        name=f"folder:{request.argument}",
        inputs=inputs,
        labels=torch.tensor([label for _, label in chosen]),
        domain=Image(tuple(inputs.shape[1:])),
        class_names=names,
        source=f"{root}, given by the user.",
    )


def _list_images(folder: Path) -> list[Path]:
    from PIL import Image

    forms = Image.registered_extensions()
    readable = {*DICOM, *(suffix for suffix in forms if forms[suffix] in FORMATS)}
    files = (child for child in folder.iterdir() if child.is_file() and child.name[0] != ".")
    return sorted(file for file in files if file.suffix.lower() in readable)


# Raised for archives that are truncated, garbled, encrypted or of a wrong size.
_DAMAGE = (OSError, ValueError, EOFError, RuntimeError, MemoryError, OverflowError)
_ARCHIVE_DAMAGE = (*_DAMAGE, tokenize.TokenError, zipfile.BadZipFile, zlib.error)


# How a file of a single array begins.
_SINGLE = b"\x93NUMPY"


def _list_arrays(path: Path) -> list[str]:
    with _open_archive(path) as archive:
        return list(archive.files)


def read_arrays(path: Path, *names: str) -> tuple[NDArray[Any], ...]:
    """Read the named arrays of an npz archive."""
    found = _list_arrays(path)
    if missing := [name for name in names if name not in found]:
        raise UnreadableFile(
            f"expected the arrays {', '.join(names)} in {path}, but {', '.join(missing)} "
            f"is not among {', '.join(found) or 'none'}"
        )
    with _open_archive(path) as archive:
        members = {name.removesuffix(".npy"): size for name, size in _list_sizes(archive)}
        # Bytes become floats, which take four times as many.
        require_size(path, 5 * sum(members.get(name, 0) for name in names))
        arrays = {name: archive[name] for name in names}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):  # numpy returns other members as bytes
                raise ValueError(f"{name} is not an array")
    return tuple(arrays.values())


def _list_sizes(archive: NpzFile) -> list[tuple[str, int]]:
    """List the members of an archive, each with its bytes when unpacked."""
    members = archive.zip.infolist() if archive.zip else []
    return [(info.filename, info.file_size) for info in members]


@contextmanager
def _open_archive(path: Path) -> Iterator[NpzFile]:
    if not path.exists():
        raise DataNotFound(f"expected an npz file at {path}, but nothing is there; check the path")
    try:
        # numpy would leave a file open that it opened itself if the archive is damaged.
        with open_plain(path, follow=True) as file:
            if file.read(len(_SINGLE)) == _SINGLE:
                raise ValueError("it holds a single array without a name")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            yield archive
    except SeepageError:
        raise
    except _ARCHIVE_DAMAGE as error:
        raise UnreadableFile(
            f"expected an npz archive of plain arrays in {path}, but it cannot be read "
            f"({_first_line(error)}); save it again with numpy.savez_compressed"
        ) from error


MOST_CLASSES = 100_000
LAYOUTS = (
    "rows of floats (N, D), images of uint8, uint16 or floats in [0, 1] as (N, H, W), (N, H, W, C) "
    "or (N, C, H, W), or signals of floats (N, C, L)"
)


def npz_file(request: DataRequest) -> Dataset:
    """Load the inputs, labels and optional class names of an archive, in its order.

    Images are not normalised, since their population is unknown.
    """
    path = Path(request.argument).expanduser()
    found = _list_arrays(path)
    inputs_key = next((key for key in ("images", "inputs") if key in found), None)
    names_key = next((key for key in ("class_names", "label_names") if key in found), None)
    if inputs_key is None or "labels" not in found:
        raise UnreadableFile(
            f"expected the arrays images (or inputs) and labels, and optionally class_names (or "
            f"label_names), in {path}, got {' '.join(', '.join(found).split()) or 'none'}; rename "
            "them"
        )
    stored, labels = read_arrays(path, inputs_key, "labels")
    if stored.ndim == 2 and stored.dtype.kind == "f" and stored.size:
        request.refuse_pixels(f"rows in {path}")
        return _read_rows(request.argument, path, stored, labels, names_key)
    inputs = _convert_inputs(stored, path)
    if inputs.ndim != 4:
        request.refuse_pixels(f"signals in {path}")
    elif request.pixels is not None:
        inputs = crop_square(inputs, request.pixels)
    targets, names = _read_targets(path, labels, names_key)
    return Dataset(
        name=f"npz:{request.argument}",
        inputs=inputs,
        labels=targets,
        domain=(Image if inputs.ndim == 4 else Signal)(tuple(inputs.shape[1:])),
        class_names=names,
        source=f"{path}, given by the user.",
    )


def _read_targets(
    path: Path, labels: NDArray[Any], names_key: str | None
) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers `(N,)` with their names, or numbers to predict `(N, K)`."""
    if labels.dtype.kind not in "iuf" or labels.ndim not in (1, 2):
        raise InvalidValue(
            f"expected integer labels, or numbers to predict (N,) or (N, K), in {path}, got "
            f"{labels.dtype} {labels.shape}; audit classes of pixels with sp.audit_step"
        )
    if labels.dtype.kind in "iu":
        return torch.from_numpy(labels.astype(np.int64)), _name_classes(path, names_key, labels)
    targets = torch.from_numpy(labels.astype(np.float32)).reshape(len(labels), -1)
    return targets, tuple(f"target {number}" for number in range(targets.shape[1]))


def _read_rows(
    name: str, path: Path, stored: NDArray[Any], labels: NDArray[Any], names_key: str | None
) -> Dataset:
    """Rows `(N, D)` of numbers, which a network reads as they are."""
    if not np.isfinite(stored).all():
        raise InvalidValue(f"expected finite numbers in {path}, got NaN or infinity")
    rows, columns = stored.astype(np.float64), []
    for place, (low, high) in enumerate(zip(rows.min(0), rows.max(0), strict=True)):
        low, high = round_outwards(float(low), float(high))
        columns.append(Continuous(name=f"column {place}", low=low, high=high, mean=0, std=1))
    lows, highs = (np.array([getattr(c, end) for c in columns]) for end in ("low", "high"))
    targets, names = _read_targets(path, labels, names_key)
    return Dataset(
        name=f"npz:{name}",
        inputs=torch.from_numpy((rows - lows) / (highs - lows)).float(),
        labels=targets,
        domain=Tabular(tuple(columns)),
        class_names=names,
        source=f"{path}, given by the user.",
    )


def _convert_inputs(stored: NDArray[Any], path: Path) -> Tensor:
    """Images `(N, C, H, W)` in [0, 1], of 8 or 16 bits or floats, or signals `(N, C, L)`."""
    levels = {"uint8": 255, "uint16": 65_535}.get(stored.dtype.name)
    if stored.size and stored.dtype.kind == "f" and stored.ndim == 3:
        return torch.from_numpy(np.ascontiguousarray(stored, dtype=np.float32))
    # At most four channels, so that the order of the axes is seen.
    last = stored.ndim == 4 and stored.shape[3] <= 4
    first = stored.ndim == 4 and stored.shape[1] <= 4
    grey = stored.ndim == 3 and levels is not None
    if not stored.size or not (levels or stored.dtype.kind == "f") or not (grey or last or first):
        raise InvalidValue(f"expected {LAYOUTS} in {path}, got {stored.dtype} {stored.shape}")
    # Where both would do, whole numbers have their channels last and floats first.
    if last and not (first and levels is None):
        stored = stored.transpose(0, 3, 1, 2)
    planes = np.ascontiguousarray(stored[:, None] if grey else stored, dtype=np.float32)
    return torch.from_numpy(planes).div_(levels or 1)


def _name_classes(path: Path, key: str | None, labels: NDArray[Any]) -> tuple[str, ...]:
    if key is not None:
        return tuple(map(str, read_arrays(path, key)[0].tolist()))
    most = int(labels.max(initial=0))
    if most >= MOST_CLASSES:
        raise InvalidValue(
            f"expected classes numbered from 0 to less than {MOST_CLASSES} in {path}, got others"
        )
    return tuple(map(str, range(most + 1)))


PRESETS = {"CIFAR10": CIFAR10, "CIFAR100": CIFAR100, "MNIST": MNIST}


def torchvision_set(request: DataRequest) -> Dataset:
    """Load a set by its class name in `torchvision.datasets`; nothing is downloaded.

    Its files are read from the data folder. torchvision unpickles some of them (CIFAR) after
    comparing their checksums.
    """
    name = request.argument
    found = _open_torchvision(name, request.split)
    examples = [found[number] for number in range(len(found))]
    if not all(len(example) == 2 and isinstance(example[1], int) for example in examples):
        raise InvalidValue(
            f"expected pairs of an image and a class number, but torchvision.datasets.{name} "
            "holds something else; use folder:PATH"
        )
    pictures = [_picture_to_tensor(picture) for picture, _ in examples]
    if request.pixels is not None:
        pictures = [crop_square(picture[None], request.pixels)[0] for picture in pictures]
    labels = torch.tensor([label for _, label in examples])
    inputs = stack_pictures(pictures)
    shape = tuple(inputs.shape[1:])
    return Dataset(
        name=f"torchvision:{name}",
        inputs=inputs,
        labels=labels,
        domain=replace(PRESETS[name], shape=shape) if name in PRESETS else Image(shape),
        class_names=tuple(map(str, getattr(found, "classes", range(int(labels.max()) + 1)))),
        source=f"torchvision.datasets.{name}, under the terms of its authors.",
    )


def _open_torchvision(name: str, split: str) -> Any:  # noqa: ANN401
    try:
        catalogue = importlib.import_module("torchvision.datasets")
    # A torchvision built for another torch fails with RuntimeError or OSError.
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingExtra(
            f"expected torchvision, but it does not import ({_first_line(error)}): "
            f"{install_hint('vision')}"
        ) from error
    if name not in catalogue.__all__:
        raise UnknownName("torchvision data set", name, catalogue.__all__)
    constructor, root = getattr(catalogue, name), data_root()
    accepted = inspect.signature(constructor).parameters
    options: dict[str, bool | str] = {"download": False} if "download" in accepted else {}
    # Most sets split by a flag, some by a name. EMNIST has both; its names mean alphabets.
    if "train" in accepted:
        if split not in ("test", "train"):
            raise InvalidValue(f"expected split 'test' or 'train', got {split!r}")
        options["train"] = split == "train"
    elif "split" in accepted:
        options["split"] = split
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


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
