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
    """Tensors, and words about them, as the bytes of a safetensors file."""
    from safetensors.torch import save

    plain = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    return save(plain, metadata=dict(words or {}))


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the words of `pack`.

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
    """A folder of safetensors files.

    Args:
        folder: Where; made when the first file is written.
    """

    folder: Path

    def path(self, name: str) -> Path:
        """Where the file of this name is."""
        return self.folder / f"{name}{SUFFIX}"

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole and on the disk when this returns, or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.path(name)
        write_whole(path, data, partial=path.with_suffix(".partial"))

    def read(self, name: str) -> dict[str, Tensor] | None:
        """The tensors of a file; None where there is none.

        Raises:
            UnreadableFile: If it is damaged.
        """
        found = self._opened(name)
        return None if found is None else found[0]

    def words(self, name: str) -> dict[str, str]:
        """The words that came with the tensors of a file.

        Raises:
            UnreadableFile: If it is damaged.
        """
        found = self._opened(name)
        return {} if found is None else found[1]

    def _opened(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """Tensors and words of a file; None where there is none.

        Raises:
            UnreadableFile: If it is damaged.
        """
        path = self.path(name)
        if not path.is_file():
            return None
        try:
            return unpack(path.read_bytes())
        except UnreadableFile as error:
            raise UnreadableFile(f"{str(path)!r} is truncated or damaged: {error}") from error

    def damaged(self, names: Iterable[str]) -> list[str]:
        """Those of these files that are there but not whole, told by their headers alone."""
        return sorted(
            name for name in names if self.path(name).is_file() and not is_whole(self.path(name))
        )


def is_whole(path: Path) -> bool:
    """Whether a safetensors file has the length its header says; no tensor is read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False


def write_whole(path: Path, data: bytes, *, partial: Path) -> None:
    """Write a file, whole and on the disk when this returns, or not at all.

    Args:
        path: Where.
        data: What it holds.
        partial: A name in the same folder for what is not whole yet.
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
    # So that the rename lasts through a loss of power.
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
