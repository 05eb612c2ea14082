"""Captures on disk: one safetensors file, whose metadata says what the tensors are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from seepage.capture.capture import Capture
from seepage.capture.reading import grouped, read_tensors, strict_json
from seepage.capture.setting import Setting
from seepage.core.errors import (
    DataNotFound,
    InvalidValue,
    SeepageError,
    UnknownName,
    UnreadableFile,
)

FORMAT = "seepage.capture"
VERSION = 1
GROUPS = ("update", "parameters", "buffers")
# Larger than any network that can be attacked today, and small enough for most machines.
LARGEST = 8 * 2**30
_LONGEST = 240


def save(capture: Capture, path: Path | str) -> None:
    """Write a capture, whole or not at all.

    Args:
        capture: What to keep.
        path: Where; by convention it ends in `.safetensors`.
    """
    path = Path(path)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(dump(capture))
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UnreadableFile(
            f"cannot write the capture to {str(path)!r}: {error.strerror}; choose another place"
        ) from error


def load(path: Path | str, *, largest: int = LARGEST) -> Capture:
    """Read a capture from anywhere; nothing in it is run, and no number in it is trusted.

    Args:
        path: The file.
        largest: Refuse files of more bytes than this, before reading them.

    Raises:
        DataNotFound: There is no such file.
        UnreadableFile: It is truncated, too large, of another format or contradicts itself.
        InvalidValue: It says what no client could have done.
    """
    return parse(read_file(path, what="capture", largest=largest), name=str(path))


def dump(capture: Capture) -> bytes:
    """A capture as the bytes of a safetensors file."""
    from safetensors.torch import save as to_bytes

    groups = {group: getattr(capture, group) for group in GROUPS}
    tensors = {f"{group}/{name}": t for group in GROUPS for name, t in groups[group].items()}
    words = {"form": capture.form, **capture.setting.plain()}
    metadata = {"format": FORMAT, "version": str(VERSION), "capture": json.dumps(words)}
    # Copies, since a network may hold one tensor under two names.
    own = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    return to_bytes(own, metadata=metadata)


def parse(data: bytes, *, name: str = "capture") -> Capture:
    """The capture of which `data` is the dump.

    Args:
        data: Bytes from anywhere.
        name: What messages call them.

    Example:
        >>> import torch
        >>> parse(dump(Capture({"weight": torch.ones(2)}, "gradient")))
        Capture(gradient of 1 tensors, no parameters before, 0 buffers)
    """
    try:
        return _parsed(*read_tensors(data))
    except UnreadableFile as error:
        raise UnreadableFile(f"{name} cannot be read: {error}") from None
    except (InvalidValue, UnknownName) as error:
        raise InvalidValue(f"{name} is no capture of a client's update: {_short(error)}") from None


def read_file(path: Path | str, *, what: str, largest: int = LARGEST) -> bytes:
    """The bytes of a file that is not too large; `what` it is, for messages."""
    path = Path(path)
    if not path.is_file():
        raise DataNotFound(f"no {what} at {str(path)!r}; check the path")
    try:
        size = path.stat().st_size
        if size > largest:
            raise UnreadableFile(
                f"expected a {what} of at most {largest} bytes, got {size} in {str(path)!r}; raise "
                "the limit if you trust it"
            )
        return path.read_bytes()
    except UnreadableFile:
        raise
    except OSError as error:
        raise UnreadableFile(f"cannot read {str(path)!r}: {error.strerror}") from error


def _short(error: SeepageError) -> str:
    """A sentence that may quote what stands in the file, which may be long."""
    words = str(error)
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]}..."


def _parsed(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Capture:
    if metadata.get("format") != FORMAT:
        raise UnreadableFile(
            f"expected the format {FORMAT!r} in its metadata, got "
            f"{metadata.get('format', 'none')[:40]!r}; save it with sp.capture.save"
        )
    if metadata.get("version") != str(VERSION):
        raise UnreadableFile(
            f"expected version {VERSION} of the format, got {metadata.get('version', '')[:40]!r}; "
            "read it with the version of seepage that wrote it"
        )
    words = strict_json(metadata.get("capture", ""), "what is said of the update")
    if not isinstance(words, dict):
        raise UnreadableFile("expected words about the update by name, got something else")
    groups = {group: dict(grouped(tensors, group)) for group in GROUPS}
    if sum(map(len, groups.values())) < len(tensors):
        raise UnreadableFile(f"expected tensors named {', '.join(f'{g}/...' for g in GROUPS)} only")
    form = words.pop("form", None)
    return Capture(form=form, setting=Setting.from_plain(words), **groups)
