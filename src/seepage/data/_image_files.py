"""Images on the user's disk: folders of pictures and DICOM files, and sets of torchvision."""

from __future__ import annotations

import importlib
import inspect
import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.core._whole_file import open_plain, require_size, spell_path
from seepage.core.errors import (
    DataNotFound,
    InvalidValue,
    MissingExtra,
    SeepageError,
    UnknownName,
    UnreadableFile,
    first_error_line,
    import_extra,
    install_hint,
)
from seepage.data._dataset import DataRequest, Dataset, data_root, interleave_classes
from seepage.domains._box import CIFAR10, CIFAR100, MNIST, Image

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

# Read by Pillow itself; others, such as EPS, start another program.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
DICOM = (".dcm", ".dicom")
# Bytes that a pixel takes on its way to floats, in copies of which several live.
_PICTURE_ROOM, _DICOM_ROOM = 40, 16
# The class of images in a folder without sub-folders.
_NO_CLASS = "image"
PRESETS = {"CIFAR10": CIFAR10, "CIFAR100": CIFAR100, "MNIST": MNIST}


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

    A zoom of 256 / 224, the ratio of the short side to the square, is the usual crop of ImageNet.

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


def read_picture(path: Path) -> Tensor:
    """Read an image file, upright, as `(1, H, W)` if grey, else `(3, H, W)`."""
    if path.suffix.lower() in DICOM:
        return _read_dicom(path)
    from PIL import Image, ImageOps

    damage = (
        *(OSError, SyntaxError, ValueError, TypeError, EOFError, RuntimeError, MemoryError),
        *(struct.error, zlib.error),
    )
    try:
        with open_plain(path, follow=True) as file, warnings.catch_warnings():
            # What Pillow warns of is refused below, or has a limit of our own.
            warnings.simplefilter("ignore")
            with Image.open(file, formats=FORMATS) as picture:
                require_size(path, _PICTURE_ROOM * picture.width * picture.height)
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


def _read_dicom(path: Path) -> Tensor:
    """Read a DICOM file as `(1, H, W)` if grey, else `(3, H, W)`, in [0, 1].

    Stored levels are divided by the highest that `BitsStored` allows, so the range is nobody's own.
    MONOCHROME1, where 0 is white, is inverted. Windows and rescaling are not applied.

    Raises:
        MissingExtra: If pydicom is not installed.
        UnreadableFile: If the file is not an image of one frame.
    """
    reason = f"{path} is a DICOM file, which needs pydicom"
    pydicom = import_extra("pydicom", "dicom", reason=reason)
    try:
        with open_plain(path, follow=True) as file:
            image = pydicom.dcmread(file)
            require_size(
                path, _DICOM_ROOM * int(image.Rows) * int(image.Columns) * _count_planes(image)
            )
            return _scale_levels(image)
    except SeepageError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableFile(
            f"expected a DICOM image of one frame in {path}, but it cannot be read ({reason}); "
            "replace or remove it"
        ) from error


def _count_planes(image: Any) -> int:  # noqa: ANN401 - pydicom's
    frames = int(image.get("NumberOfFrames", 1) or 1)
    if frames != 1:
        raise ValueError(f"it holds {frames} frames")
    return int(image.SamplesPerPixel)


def _scale_levels(image: Any) -> Tensor:  # noqa: ANN401 - pydicom's
    kind, bits = str(image.PhotometricInterpretation), int(image.BitsStored)
    if kind not in ("MONOCHROME1", "MONOCHROME2", "RGB"):
        raise ValueError(f"its colours are {kind}, not grey or RGB")
    levels = np.asarray(image.pixel_array, dtype=np.float32)
    # Signed levels lie around 0.
    lowest = -(2.0 ** (bits - 1)) if int(image.PixelRepresentation) else 0.0
    scaled = torch.from_numpy((levels - lowest) / (2.0**bits - 1)).clamp(0, 1)
    if kind == "RGB":
        return scaled.permute(2, 0, 1).contiguous()
    return (1 - scaled if kind == "MONOCHROME1" else scaled)[None]


def image_folder(request: DataRequest) -> Dataset:
    """Load images of `FORMATS` and DICOM files, cut to their centre square of 32 pixels.

    Classes are the sub-folders in alphabetical order, and consecutive examples differ in class.
    Images without sub-folders are all of one class, and a model needs `classes` then.
    Images are not normalised, since their population is unknown.
    """
    root = spell_path(request.argument)
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
            f"expected torchvision, but it does not import ({first_error_line(error)}): "
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
            f"them ({first_error_line(error)}); fetch them once with download=True"
        ) from error
    except (TypeError, ValueError) as error:
        raise InvalidValue(
            f"expected a set that opens with split {split!r} and nothing else, but "
            f"torchvision.datasets.{name} does not ({first_error_line(error)}); use folder:PATH"
        ) from error
