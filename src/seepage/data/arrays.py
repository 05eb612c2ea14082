"""Reading npz archives that may be damaged or hostile: nothing in them is ever unpickled."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from seepage.core.errors import DataNotFound, UnreadableFile

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
