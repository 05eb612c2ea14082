"""Data of one's own, in an npz archive."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.errors import DataNotFound, InvalidValue, UnreadableFile
from seepage.data.dataset import DataRequest, Dataset
from seepage.data.pictures import natural, squared
from seepage.domains.box import Image, Signal

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


def array_names(path: Path) -> list[str]:
    """Return the names of the arrays in an archive."""
    with _opened(path) as archive:
        return list(archive.files)


def read_arrays(path: Path, *names: str) -> tuple[NDArray[Any], ...]:
    """Read the arrays of these names."""
    found = array_names(path)
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
    found = array_names(path)
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
