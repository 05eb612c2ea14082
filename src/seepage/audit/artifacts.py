"""Tensors on disk: each file is whole or not there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from seepage.core.encryption import Key
from seepage.core.errors import UnreadableFile
from seepage.core.whole_file import PRIVATE_FOLDER, checksum, read_plain, unpack, write_whole

SUFFIX = ".safetensors"
# A name is never a path.
NAME = "[A-Za-z0-9_-]{1,100}"


@dataclass(frozen=True)
class Artifacts:
    """A folder of safetensors files, made in an existing one when the first file is written."""

    folder: Path
    key: Key | None = None

    def path(self, name: str) -> Path:
        """Where the file of this name is; a name never leads out of the folder."""
        if not re.fullmatch(NAME, name):
            raise UnreadableFile(f"expected the name of an artifact, got {name[:100]!r}")
        return self.folder / f"{name}{SUFFIX}"

    def write(self, name: str, data: bytes) -> str:
        """Write a file, whole and on disk when this returns, or not at all; return its checksum."""
        self.folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
        path = self.path(name)
        if self.key is not None:
            data = self.key.encrypt(data, name=f"artifacts/{name}")
        write_whole(path, data, partial=path.with_suffix(".partial"))
        return checksum(data)

    def read(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Read the tensors and the metadata of a file; nothing if it does not exist.

        Raises:
            UnreadableFile: If it is damaged.
        """
        path = self.path(name)
        try:
            data = read_plain(path)
            if self.key is not None:
                data = self.key.decrypt(data, name=f"artifacts/{name}")
            return unpack(data)
        except FileNotFoundError:
            return {}, {}
        except OSError as error:
            reason = error.strerror or error
            raise UnreadableFile(f"{str(path)!r} is truncated or damaged: {reason}") from error

    def find_damaged(self, checksums: Mapping[str, str]) -> list[str]:
        """Find the files that are missing, or whose bytes have another checksum."""
        return sorted(name for name, wanted in checksums.items() if self._sum(name) != wanted)

    def _sum(self, name: str) -> str:
        try:
            return checksum(read_plain(self.path(name)))
        except OSError:
            return ""
