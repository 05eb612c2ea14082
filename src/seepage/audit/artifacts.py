"""Tensors on disk: each file is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from seepage.core.errors import UnreadableFile

SUFFIX = ".safetensors"


def pack(tensors: Mapping[str, Tensor], words: Mapping[str, str] | None = None) -> bytes:
    """Pack tensors and metadata into the bytes of a safetensors file."""
    from safetensors.torch import save

    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    return save(plain, metadata=dict(words or {}))


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Undo `pack`.

    Example:
        >>> import torch
        >>> unpack(pack({"ones": torch.ones(2)}, {"by": "hand"}))
        ({'ones': tensor([1., 1.])}, {'by': 'hand'})
    """
    import json

    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
    except (SafetensorError, ValueError) as error:
        raise UnreadableFile(f"expected whole safetensors, got {len(data)} bytes") from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return tensors, header.get("__metadata__", {})


@dataclass(frozen=True)
class Artifacts:
    """A folder of safetensors files, made when the first file is written."""

    folder: Path

    def path(self, name: str) -> Path:
        """Where the file of this name is."""
        return self.folder / f"{name}{SUFFIX}"

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole and on disk when this returns, or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(name)
        write_whole(path, data, partial=path.with_suffix(".partial"))

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Read the tensors and the metadata of a file; nothing if it does not exist.

        Raises:
            UnreadableFile: If it is damaged.
        """
        path = self.path(name)
        if not path.is_file():
            return {}, {}
        try:
            return unpack(path.read_bytes())
        except UnreadableFile as error:
            raise UnreadableFile(f"{str(path)!r} is truncated or damaged: {error}") from error

    def find_damaged(self, names: Iterable[str]) -> list[str]:
        """Find the files that exist but are not whole; only their headers are read."""
        return sorted(
            name for name in names if self.path(name).is_file() and not is_whole(self.path(name))
        )


def is_whole(path: Path) -> bool:
    """Whether a safetensors file has the length that its header says."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False


def write_whole(path: Path, data: bytes, *, partial: Path) -> None:
    """Write a file, whole and on disk when this returns, or not at all.

    Until it is whole it is called `partial`, in the same folder.
    """
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    # The rename must survive a power failure.
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
