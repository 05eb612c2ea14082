"""Archives of numpy on the user's disk: images, signals or rows of numbers, with labels."""

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

from seepage.core._whole_file import open_plain, require_size, spell_path
from seepage.core.errors import (
    DataNotFound,
    InvalidValue,
    SeepageError,
    UnreadableFile,
    first_error_line,
)
from seepage.data._dataset import DataRequest, Dataset
from seepage.data._image_files import crop_square
from seepage.domains import domain_of_shape
from seepage.domains._tabular import Continuous, Tabular, round_outwards

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
            if not zipfile.is_zipfile(file):
                raise ValueError("it is no archive, or only a part of one")
            file.seek(0)
            archive = np.load(file, allow_pickle=False)
            yield archive
    except SeepageError:
        raise
    except _ARCHIVE_DAMAGE as error:
        raise UnreadableFile(
            f"expected an npz archive of plain arrays in {path}, but it cannot be read "
            f"({first_error_line(error)}); save it again with numpy.savez_compressed"
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
    path = spell_path(request.argument)
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
        domain=domain_of_shape(tuple(inputs.shape[1:])),
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
