"""A data set held in memory, what `load` asks a source for, and the data folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.core import Batch, Domain
from seepage.core._batch import are_numbers
from seepage.core._digest import digest
from seepage.core.errors import DataNotFound, InvalidValue


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled inputs in natural units, in a fixed order.

    Args:
        name: What `load` calls it.
        inputs: `(N, *shape)`, float32, in [0, 1]; tokens are int64.
        labels: `(N,)` class numbers, int64; or `(N, K)` targets that are numbers, float32.
        domain: What one input is.
        class_names: One name per class, or per number of a target.
        source: Where it comes from and under which licence.

    Example:
        >>> from seepage.domains import Image
        >>> blank, labels = torch.zeros(3, 1, 4, 4), torch.tensor([0, 1, 1])
        >>> data = Dataset("blank", blank, labels, Image((1, 4, 4)), ("cat", "dog"), "made up")
        >>> data
        Dataset('blank', 3 inputs of shape (1, 4, 4), 2 classes)
        >>> data.batch(2, start=1).labels.tolist()
        [1, 1]
    """

    name: str
    inputs: Tensor
    labels: Tensor
    domain: Domain
    class_names: tuple[str, ...]
    source: str

    def __post_init__(self) -> None:
        wanted = torch.int64 if self.domain.discrete else torch.float32
        if len(self.inputs) == 0 or self.inputs.dtype != wanted:
            name = str(wanted).removeprefix("torch.")
            raise InvalidValue(
                f"expected at least one {name} input in {self.name}, got {len(self.inputs)} of "
                f"{self.inputs.dtype}"
            )
        self.domain.check(self.inputs)
        if are_numbers(self.labels):
            self._check_targets()
            return
        if self.labels.shape != self.inputs.shape[:1] or self.labels.dtype != torch.int64:
            raise InvalidValue(
                f"expected int64 labels ({len(self)},) in {self.name}, got {self.labels.dtype} "
                f"{tuple(self.labels.shape)}"
            )
        least, most = int(self.labels.min()), int(self.labels.max())
        if not 0 <= least <= most < self.classes:
            raise InvalidValue(
                f"expected labels in 0..{self.classes - 1} in {self.name}, got others; number the "
                "classes from 0 and name each of them"
            )

    def _check_targets(self) -> None:
        if self.labels.shape != (len(self), self.classes) or self.labels.dtype != torch.float32:
            raise InvalidValue(
                f"expected float32 targets ({len(self)}, {self.classes}) in {self.name}, got "
                f"{self.labels.dtype} {tuple(self.labels.shape)}"
            )
        if not bool(self.labels.isfinite().all()):
            raise InvalidValue(f"expected finite targets in {self.name}, got NaN or infinity")

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        inputs = f"{len(self)} inputs of shape {tuple(self.inputs.shape[1:])}"
        kind = "numbers to predict" if are_numbers(self.labels) else "classes"
        return f"Dataset({self.name!r}, {inputs}, {self.classes} {kind})"

    @property
    def classes(self) -> int:
        """Number of classes, including those without an example, or of numbers to predict."""
        return len(self.class_names)

    @cached_property
    def digest(self) -> str:
        """A hash of all inputs."""
        return digest(self.inputs)

    def batch(self, size: int = 4, *, start: int = 0) -> Batch:
        """Return `size` consecutive examples."""
        if size < 1 or not 0 <= start <= len(self) - size:
            raise InvalidValue(
                f"expected a batch within the {len(self)} examples of {self.name}, got "
                f"size={size}, start={start}; ask for fewer or start earlier"
            )
        return self.take(range(start, start + size))

    def take(self, indices: Sequence[int] | Tensor) -> Batch:
        """Return these examples, in this order, as a copy."""
        chosen = torch.as_tensor(indices)
        if chosen.ndim != 1 or len(chosen) == 0 or chosen.dtype != torch.int64:
            raise InvalidValue(
                f"expected a list of one or more example numbers, got {chosen.dtype} of shape "
                f"{tuple(chosen.shape)}"
            )
        least, most = int(chosen.min()), int(chosen.max())
        if not 0 <= least <= most < len(self):
            raise InvalidValue(
                f"expected example numbers in 0..{len(self) - 1} of {self.name}, got {least} to "
                f"{most}"
            )
        return Batch(self.inputs[chosen], self.labels[chosen])

    def mean(self) -> Tensor:
        """The average input, `(*shape)`: a guess that uses only the population."""
        return self.inputs.mean(0)


def interleave_classes(labels: NDArray[Any]) -> NDArray[np.intp]:
    """Return an order that takes one example of each class in turn.

    Sources sorted by class would otherwise fill every batch with a single class. The order within
    a class is kept.

    Example:
        >>> interleave_classes(np.array([0, 0, 0, 1, 1, 2])).tolist()
        [0, 3, 5, 1, 4, 2]
    """
    turn = np.zeros(len(labels), dtype=np.intp)
    for label in np.unique(labels):
        members = labels == label
        turn[members] = np.arange(members.sum())
    return np.lexsort((labels, turn))


# Side of the largest images that are made: beyond it, a data set does not fit into memory.
_MOST_PIXELS = 4096


@dataclass(frozen=True)
class DataRequest:
    """Which part of a source to load, and at what size.

    Args:
        split: "test" or "train".
        pixels: Side of the square images; None leaves the choice to the source.
        argument: What followed the colon, e.g. the path in `npz:PATH`.
    """

    split: str = "test"
    pixels: int | None = None
    argument: str = ""

    def __post_init__(self) -> None:
        if self.pixels is not None and not 1 <= self.pixels <= _MOST_PIXELS:
            raise InvalidValue(f"expected pixels in 1..{_MOST_PIXELS}, got {self.pixels!r}")

    def refuse_pixels(self, what: str) -> None:
        """Raise `InvalidValue` if a size was asked for; data other than images has none."""
        if self.pixels is not None:
            raise InvalidValue(f"expected pixels=None for {what}, got {self.pixels}")


BUNDLE = Path(__file__).parent / "bundle"
VARIABLE = "SEEPAGE_DATA"


def data_root() -> Path:
    """Return the folder named by SEEPAGE_DATA, or `shared/data` beside the repository."""
    if named := os.environ.get(VARIABLE):
        places = [Path(named).expanduser()]
    else:
        beside = (Path.cwd().parent, Path(__file__).resolve().parents[3].parent)
        places = list(dict.fromkeys(folder / "shared" / "data" for folder in beside))
    for place in places:
        if place.is_dir():
            return place
    looked = " or ".join(map(str, places))
    raise DataNotFound(f"expected a data folder at {looked}, found none; set {VARIABLE} to yours")


def find_data(name: str) -> Path:
    """Return the path of a file or folder in the data folder."""
    root = data_root()
    if not (root / name).exists():
        raise DataNotFound(
            f"expected {name} in {root}, but it is not there; set {VARIABLE} to the folder that "
            "holds it"
        )
    return root / name
