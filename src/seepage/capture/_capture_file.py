"""Captures on disk: one safetensors file, whose metadata says what the tensors are.

8 bytes: length N of the header    N bytes: JSON    the rest: tensors, one after the other

Every number in the header is compared with the size of the file before memory is allocated, so
that reading never takes more memory than the file has bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seepage.capture._capture import Capture, Setting
from seepage.core._whole_file import spell_path, write_whole
from seepage.core.errors import DataNotFound, InvalidValue, UnknownName, UnreadableFile

LARGEST_HEADER = 16 * 2**20
MOST_AXES = 16
LONGEST_NAME = 512
METADATA = "__metadata__"

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
# The first bytes of a pickle, and of the archive that torch.save writes.
_PICKLED = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"PK\x03\x04")


def read_tensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a safetensors file.

    Example:
        >>> from safetensors.torch import save
        >>> read_tensors(save({"ones": torch.ones(2)}, metadata={"by": "hand"}))
        ({'ones': tensor([1., 1.])}, {'by': 'hand'})

    Raises:
        UnreadableFile: If it is truncated, of another format, or contradicts itself.
    """
    entries, metadata, start = _read_header(data)
    stored = memoryview(data)[start:]
    return {name: _read_tensor(name, entry, stored) for name, entry in entries.items()}, metadata


def _read_header(data: bytes) -> tuple[dict[str, _Entry], dict[str, str], int]:
    """Read and check everything but the tensors, which begin at the place that comes last."""
    start = 8 + _header_length(data)
    header = _strict_json(data[8:start], "the header")
    if not isinstance(header, dict):
        raise UnreadableFile(f"expected a header of names, got {type(header).__name__}")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(w, str) for w in metadata.values()):
        raise UnreadableFile("expected metadata as words by name, got something else")
    room = len(data) - start
    entries = {name: _check_entry(name, entry, room) for name, entry in header.items()}
    # Each byte belongs to one tensor: none overlap, and nothing is hidden between them.
    places = sorted((begin, end) for _, _, begin, end in entries.values())
    if any(before[1] != after[0] for before, after in pairwise([(0, 0), *places, (room, room)])):
        raise UnreadableFile(
            f"expected tensors that fill {room} bytes one after the other, got gaps or overlaps; "
            "it is damaged"
        )
    return entries, metadata, start


def _strict_json(text: bytes | str, what: str) -> Any:  # noqa: ANN401
    """Parse JSON in which every key is unique and every number is finite."""
    try:
        return json.loads(text, object_pairs_hook=_require_unique, parse_constant=_reject_constant)
    except RecursionError:
        raise UnreadableFile(f"{what} is nested too deeply to be one of ours") from None
    except UnicodeDecodeError:
        raise UnreadableFile(f"expected {what} as UTF-8 text, got other bytes") from None
    except ValueError as error:
        raise UnreadableFile(f"expected {what} as plain JSON, got {str(error)[:120]}") from None


def _require_unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    # Readers disagree about which value of a repeated key counts.
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:40]!r} twice")
    return found


def _reject_constant(word: str) -> object:
    raise ValueError(f"the number {word}")


def _header_length(data: bytes) -> int:
    # The length of a header may begin with the same bytes, but then JSON follows.
    if data.startswith(_PICKLED) and data[8:9] != b"{":
        raise UnreadableFile(
            "expected safetensors, got a file of torch.save, numpy or pickle, which could run code "
            "and is refused; if you trust it, load it yourself, make a capture of it with "
            "sp.capture.Capture.of, and save that with sp.capture.save"
        )
    if len(data) < 8:
        raise UnreadableFile(f"expected safetensors, got {len(data)} bytes; it is truncated")
    length = int.from_bytes(data[:8], "little")
    if length > min(LARGEST_HEADER, len(data) - 8):
        raise UnreadableFile(
            f"expected safetensors, but a header of {length} bytes is declared in a file of "
            f"{len(data)}; it is truncated or of another format"
        )
    return length


# Type, shape, first byte and end of a tensor.
_Entry = tuple[torch.dtype, tuple[int, ...], int, int]


def _check_entry(name: str, described: object, room: int) -> _Entry:
    shown = repr(name[:60])
    if not _is_harmless(name):
        raise UnreadableFile(
            f"expected names of tensors such as 'update/conv1.weight', got {shown}; a name is "
            "never a path"
        )
    if not isinstance(described, dict) or set(described) != {"dtype", "shape", "data_offsets"}:
        raise UnreadableFile(f"expected dtype, shape and data_offsets of {shown}")
    kind, shape, offsets = (described[key] for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or kind not in DTYPES:
        raise UnreadableFile(
            f"expected {shown} as one of {', '.join(DTYPES)}, got {str(kind)[:20]!r}"
        )
    if not (_are_sizes(shape) and len(shape) <= MOST_AXES and math.prod(shape) > 0):
        raise UnreadableFile(f"expected a shape of positive sizes for {shown}, got another")
    if not (_are_sizes(offsets) and len(offsets) == 2 and offsets[0] <= offsets[1] <= room):
        raise UnreadableFile(
            f"the place of {shown} is not in the file, which holds {room} bytes of tensors; it is "
            "truncated"
        )
    dtype, (begin, end) = DTYPES[kind], offsets
    if math.prod(shape) * dtype.itemsize != end - begin:
        raise UnreadableFile(
            f"the shape of {shown} needs {math.prod(shape) * dtype.itemsize} bytes, but "
            f"{end - begin} are there"
        )
    return dtype, tuple(shape), begin, end


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**48 for v in values)


def _is_harmless(name: str) -> bool:
    group, _, rest = name.rpartition("/")
    parts = [*([group] if group else []), *rest.split(".")]
    plain = name.isprintable() and len(name) <= LONGEST_NAME and not set(name) & set("\\:~")
    return plain and all(parts) and "/" not in group and "." not in group


def _read_tensor(name: str, entry: _Entry, data: memoryview) -> Tensor:
    dtype, shape, begin, end = entry
    # A copy, since torch needs aligned memory that it may write to.
    own = bytearray(data[begin:end])
    if dtype is torch.bool and any(byte > 1 for byte in own):
        raise UnreadableFile(f"expected truth values in {name!r}, got other bytes")
    return torch.frombuffer(own, dtype=dtype).reshape(shape)


FORMAT = "seepage.capture"
VERSION = 1
GROUPS = ("update", "parameters", "buffers")
# More than any network that can be attacked today, and little enough for most machines.
LARGEST = 8 * 2**30
_LONGEST = 240


def save(capture: Capture, path: Path | str) -> None:
    """Write a capture for its owner alone, whole or not at all.

    By convention the path ends in `.safetensors`. What it replaces loses its permissions: an update
    can be as private as the data behind it.
    """
    path = Path(path)
    try:
        write_whole(path, dump(capture))
    except OSError as error:
        raise UnreadableFile(
            f"cannot write the capture to {str(path)!r}: {error.strerror}; choose another place"
        ) from error


def load(path: Path | str, *, largest: int = LARGEST) -> Capture:
    """Read a capture from any source; nothing in it is run, and no number in it is trusted.

    Args:
        path: The file.
        largest: Reject files of more bytes than this before reading them.

    Raises:
        DataNotFound: If there is no such file.
        UnreadableFile: If it is truncated, too large, of another format or contradicts itself.
        InvalidValue: If it states what no client could have done.
    """
    return parse(read_file(path, what="capture", largest=largest), name=str(path))


def dump(capture: Capture) -> bytes:
    """Write a capture as the bytes of a safetensors file; buffers without entries are left out.

    Raises:
        InvalidValue: If a tensor has a name or a precision that `parse` would refuse.
    """
    from safetensors.torch import save as to_bytes

    groups = {group: getattr(capture, group) for group in GROUPS}
    tensors = {f"{group}/{name}": t for group in GROUPS for name, t in groups[group].items()}
    tensors = {
        name: t for name, t in tensors.items() if t.numel() or not name.startswith("buffers/")
    }
    words = {"form": capture.form, **capture.setting.plain()}
    metadata = {"format": FORMAT, "version": str(VERSION), "capture": json.dumps(words)}
    # Copies, since a network may hold one tensor under two names.
    own = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    data = to_bytes(own, metadata=metadata)
    try:
        _read_header(data)
    except UnreadableFile as error:
        # Now, since the update is gone when somebody reads the file.
        raise InvalidValue(f"this update cannot be captured: {error}") from None
    return data


def parse(data: bytes, *, name: str = "capture") -> Capture:
    """Read the bytes that `dump` writes; error messages call them `name`.

    Example:
        >>> import torch
        >>> parse(dump(Capture({"weight": torch.ones(2)}, "gradient")))
        Capture(gradient of 1 tensors, no parameters before, 0 buffers)
    """
    try:
        return _build_capture(*read_tensors(data))
    except UnreadableFile as error:
        raise UnreadableFile(f"{name} cannot be read: {error}") from None
    except (InvalidValue, UnknownName) as error:
        # The message may quote what stands in the file, which may be long.
        words = str(error) if len(str(error)) <= _LONGEST else f"{str(error)[:_LONGEST]}..."
        raise InvalidValue(f"{name} is no capture of a client's update: {words}") from None


def read_file(path: Path | str, *, what: str, largest: int = LARGEST) -> bytes:
    """Read a file that is not too large; error messages call it `what`."""
    path = spell_path(path)
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


def _build_capture(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Capture:
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
    words = _strict_json(metadata.get("capture", ""), "the description of the update")
    if not isinstance(words, dict):
        raise UnreadableFile("expected words about the update by name, got something else")
    groups: dict[str, dict[str, Tensor]] = {group: {} for group in GROUPS}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        if group in groups and rest:
            groups[group][rest] = tensor
    if sum(map(len, groups.values())) < len(tensors):
        raise UnreadableFile(f"expected tensors named {', '.join(f'{g}/...' for g in GROUPS)} only")
    form = words.pop("form", None)
    return Capture(form=form, setting=Setting.from_plain(words), **groups)
