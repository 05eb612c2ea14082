"""Files that are read and written whole: no link is followed, and nothing that hangs is opened."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING

from seepage.core.errors import InvalidValue, UnreadableFile

if TYPE_CHECKING:
    from torch import Tensor

# What holds private data is for its owner alone.
PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
PARTIAL = ".partial"
_PARTIAL = re.compile(rf"\.(.+)\.[0-9a-f]{{8}}{re.escape(PARTIAL)}")
VARIABLE = "SEEPAGE_LARGEST"
# Bytes that one file of data may have in memory.
LARGEST = 2 * 2**30
# A checksum stands in the bytes that it covers; while it is computed, zeros stand in its place.
# In any other text of the header these quotes would be escaped.
_CHECKSUM, _UNKNOWN = "sha256", "0" * 64
_MARK = b'"%s":"%%s"' % _CHECKSUM.encode()


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
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UnreadableFile(f"expected whole safetensors, got {len(data)} bytes") from error
    return tensors, header.get("__metadata__") or {}


def seal(tensors: Mapping[str, Tensor], words: Mapping[str, str] | None = None) -> bytes:
    """Pack like `pack`, with a checksum over every byte in the metadata.

    Example:
        >>> unseal(seal({}, {"by": "hand"}))
        {'by': 'hand'}
    """
    data = pack(tensors, {**(words or {}), _CHECKSUM: _UNKNOWN})
    return data.replace(_MARK % _UNKNOWN.encode(), _MARK % checksum(data).encode(), 1)


def unseal(data: bytes) -> dict[str, str]:
    """Read the metadata of what `seal` packed; `unpack` reads the tensors.

    Raises:
        UnreadableFile: If any byte was altered.
    """
    try:
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        words: dict[str, str] = dict(header["__metadata__"])
        written = str(words.pop(_CHECKSUM)).encode()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableFile("it is no whole file of an audit") from error
    if checksum(data.replace(_MARK % written, _MARK % _UNKNOWN.encode(), 1)).encode() != written:
        raise UnreadableFile("its checksum is another")
    return words


def require_size(path: Path, size: int) -> None:
    """Raise `UnreadableFile` if a file would take more bytes in memory than is allowed.

    The limit is 2 GiB, or what the environment variable SEEPAGE_LARGEST says.
    """
    written = os.environ.get(VARIABLE, str(LARGEST))
    if not written.isdecimal():
        raise InvalidValue(f"expected {VARIABLE} as a number of bytes, got {written[:40]!r}")
    if size > int(written):
        raise UnreadableFile(
            f"{str(path)!r} would take {size} bytes in memory, more than the limit of {written}; "
            f"if you trust it, set {VARIABLE} to that many bytes"
        )


def checksum(data: bytes) -> str:
    """Return the SHA-256 of some bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def spell_path(written: str | Path) -> Path:
    """Make a path, where ~ is a home folder; refuse one that no file of this system can have.

    Example:
        >>> spell_path("x" * 5_000).exists()
        Traceback (most recent call last):
        seepage.core.errors.InvalidValue: expected a path, got 'xxxxxxxxxxxxxxxxxxxx...', which no \
file can have: File name too long
    """
    try:
        path = Path(written).expanduser()
        # Not before Python 3.14 is a name that is too long just not there.
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        begins, why = f"{str(written)[:20]}...", getattr(error, "strerror", None) or error
        raise InvalidValue(
            f"expected a path, got {begins!r}, which no file can have: {why}"
        ) from None
    return path


def read_plain(path: Path, *, follow: bool = False, largest: int | None = None) -> bytes:
    """Read a regular file; a pipe or device is refused instead of waited for.

    Raises:
        UnreadableFile: If it is a link, no regular file, or larger.
        OSError: If it cannot be opened.
    """
    with open_plain(path, follow=follow) as file:
        require_regular(path, os.fstat(file.fileno()), largest=largest)
        return file.read()


@contextmanager
def open_plain(path: Path, *, follow: bool = False) -> Iterator[BufferedReader]:
    """Open a regular file to read from it; see `read_plain`."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    if not follow and path.is_symlink():
        raise UnreadableFile(f"expected a file at {str(path)!r}, got a link, which is not followed")
    handle = os.open(path, flags)
    try:
        require_regular(path, os.fstat(handle))
    except UnreadableFile:
        os.close(handle)
        raise
    with os.fdopen(handle, "rb") as file:
        yield file


def require_regular(path: Path, found: os.stat_result, *, largest: int | None = None) -> None:
    """Raise `UnreadableFile` unless this is a regular file that is not too large."""
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableFile(f"expected a file at {str(path)!r}, got a folder, pipe or device")
    if largest is not None and found.st_size > largest:
        raise UnreadableFile(
            f"expected at most {largest} bytes in {str(path)!r}, got {found.st_size}"
        )


def _refuse_device(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except OSError:  # nothing is there, or a link to nothing
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InvalidValue(f"expected to write a file at {str(path)!r}, got a pipe or device")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file for its owner alone, whole and on disk when this returns, or not at all.

    Until it is whole it is a hidden file in the same folder, with a name of its own: several
    processes may write one file at once, and the last of them wins. A link in its place is
    replaced, and what it points to stays as it is. A pipe or device, such as `/dev/stdout`, is
    refused, since the file would take its place.
    """
    _refuse_device(path)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(partial, flags, PRIVATE_FILE), "wb") as file:
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


def is_partial(name: str, whole: Callable[[str], object]) -> bool:
    """Whether a kill may have left a file of this name while `write_whole` wrote one like `whole`.

    Example:
        >>> is_partial(".plan.json.0123abcd.partial", lambda name: name == "plan.json")
        True
    """
    found = _PARTIAL.fullmatch(name)
    return found is not None and bool(whole(found[1]))
