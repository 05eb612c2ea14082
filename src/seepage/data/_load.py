"""Every data set by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from seepage.core._construct import construct
from seepage.core._plugins import Catalogue, first_line, import_factory, is_path
from seepage.core.errors import InvalidValue, UnknownName, explain_errors
from seepage.data._dataset import DataRequest, Dataset
from seepage.data._image_files import image_folder, torchvision_set
from seepage.data._named_sets import (
    cells,
    cifar10,
    cifar100,
    digits,
    ecg,
    ecg_mitbih,
    faces,
    fmri,
    hamlet,
    imagenet,
    mnist,
    photos,
    voters,
)
from seepage.data._npz_files import npz_file
from seepage.data._table_files import table_file


@dataclass(frozen=True)
class _DataSource:
    """How a name becomes data."""

    load: Callable[[DataRequest], Dataset]
    description: str
    splits: tuple[str, ...] | None = ("test",)


def _adapt_source(name: str, found: object) -> _DataSource:
    """Wrap another package's function, which may take `split` and `pixels`."""
    if isinstance(found, _DataSource):
        return found
    if not callable(found):
        raise InvalidValue(f"expected {name} to be a function, got {type(found).__name__}")
    return _DataSource(partial(_load_foreign, name, found), first_line(found), None)


def _load_foreign(name: str, function: Callable[..., object], request: DataRequest) -> Dataset:
    asked, default = {"split": request.split, "pixels": request.pixels}, DataRequest()
    with explain_errors(InvalidValue, f"{name} cannot be loaded, it raised"):
        taken = inspect.signature(function).parameters
        options = {k: v for k, v in asked.items() if k in taken or v != getattr(default, k)}
        made = construct(name, function, options)
    if not isinstance(made, Dataset):
        raise InvalidValue(
            f"expected {name} to return a seepage.data.Dataset, got {type(made).__name__}"
        )
    return replace(made, name=name)


BOTH = ("test", "train")

_BUILT_IN = {
    "photos": _DataSource(photos, "24 photographs of 10 things, 3x32x32 (bundled)"),
    "digits": _DataSource(digits, "100 handwritten digits from MNIST, 1x28x28 (bundled)"),
    "voters": _DataSource(voters, "944 answers to a survey, 4 numbers and 5 categories (bundled)"),
    "hamlet": _DataSource(hamlet, "2515 runs of 12 words of the play (bundled)"),
    "cifar10": _DataSource(cifar10, "CIFAR-10, 1500 test and 20000 train images, 3x32x32", BOTH),
    "cifar100": _DataSource(cifar100, "CIFAR-100, 916 test and 1117 train images, 3x32x32", BOTH),
    "mnist": _DataSource(mnist, "MNIST, 2000 test and 10000 train digits, 1x28x28", BOTH),
    "imagenet": _DataSource(imagenet, "16 ImageNet photographs of 16 classes, 3x224x224"),
    "faces": _DataSource(faces, "ORL, 400 faces of 40 people, 1x64x64"),
    "cells": _DataSource(cells, "BCCD, 450 blood cells of 3 kinds, 3x64x64"),
    "ecg": _DataSource(ecg, "ECG5000, 500 heart beats of 5 kinds, 1x140"),
    "ecg:mitbih": _DataSource(ecg_mitbih, "MIT-BIH record 100, 2271 heart beats of 3 kinds, 1x200"),
    "fmri": _DataSource(fmri, "time courses of 28 brain regions, 1x250"),
}
NAMED: Catalogue[_DataSource] = Catalogue(
    "data set", "seepage.data", _BUILT_IN, adapt=_adapt_source
)

# Named by a prefix; the loader reads what follows the colon.
_NPZ = _DataSource(npz_file, "an archive with arrays images (or inputs) and labels")
_CSV = _DataSource(
    partial(table_file, "csv"), "a table of comma-separated values, one row for each person"
)
_PARQUET = _DataSource(
    partial(table_file, "parquet"), "a table of a Parquet file, one row for each person"
)
_FOLDER = _DataSource(image_folder, "a folder with one sub-folder of images per class")
_TORCHVISION = _DataSource(torchvision_set, "a torchvision data set already on disk", None)
FAMILIES = {
    "npz": (_NPZ, "PATH"),
    "csv": (_CSV, "PATH"),
    "parquet": (_PARQUET, "PATH"),
    "folder": (_FOLDER, "PATH"),
    "torchvision": (_TORCHVISION, "NAME"),
}


def load(name: str, *, split: str = "test", pixels: int | None = None) -> Dataset:
    """Load a data set into memory, in a fixed order.

    Args:
        name: One of `catalogue()`, or `package.module:factory`, which returns a `Dataset`. Sets
            that are not bundled are read from `data_root()` or the given path.
        split: "test" or "train".
        pixels: Side to which images are resized; None keeps the set's own.

    Example:
        >>> load("photos")
        Dataset('photos', 24 inputs of shape (3, 32, 32), 10 classes)
        >>> load("digits", pixels=32).domain.shape
        (1, 32, 32)
    """
    source, argument = require_split(name, split)
    return source.load(DataRequest(split=split, pixels=pixels, argument=argument))


def require_split(name: str, split: str) -> tuple[_DataSource, str]:
    """Return the source of a name and what follows the colon; raise if it has no such split."""
    source, argument = _resolve(name)
    if source.splits is not None and split not in source.splits:
        known = " or ".join(map(repr, source.splits))
        raise InvalidValue(f"expected split {known} for {name}, got {split!r}")
    return source, argument


def catalogue() -> dict[str, str]:
    """Return the names that `load` understands, each with one line about it."""
    named = {name: source.description for name, source in NAMED.items()}
    families = {f"{key}:{what}": source.description for key, (source, what) in FAMILIES.items()}
    return named | families


def _resolve(name: str) -> tuple[_DataSource, str]:
    if name in NAMED:
        return NAMED[name], ""
    prefix, _, argument = name.partition(":")
    if prefix in FAMILIES and argument:
        return FAMILIES[prefix][0], argument
    if is_path(name):
        return _adapt_source(name, import_factory(name, kind="data set")), ""
    if name and _is_there(path := Path(name)):
        if family := _guess_family(path):
            raise InvalidValue(f"expected a data set, got a path; write {family}:{name}")
        if path.is_file():
            raise InvalidValue(
                "expected data as .npz, .csv, .parquet or a folder of images, got the file "
                f"{name!r}; save its arrays with numpy.savez_compressed"
            )
    raise UnknownName("data set", name, catalogue())


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long
        return False


def _guess_family(path: Path) -> str:
    """The prefix that a path lacks; empty if nothing of a known kind is there."""
    family = path.suffix.removeprefix(".").lower()
    if path.is_dir():
        return "folder"
    return family if family in ("npz", "csv", "parquet") and path.is_file() else ""
