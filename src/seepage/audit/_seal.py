"""Who began an audit: a spec may name code, which only its own user runs unasked."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from seepage.core._construct import parse_toml
from seepage.core._plugins import is_path
from seepage.core._whole_file import PRIVATE_FOLDER, read_plain, write_whole
from seepage.core.errors import InvalidValue

# What stands before a colon in names that import nothing of the spec's author.
_FAMILIES = ("npz", "folder", "torchvision", "hf", "timm", "ecg")


def find_imports(spec: str) -> list[str]:
    """Find what a spec would import by `package.module:factory`.

    Example:
        >>> find_imports('models = { name = "nets:small" }')
        ['nets:small']
    """
    try:
        return list(dict.fromkeys(_walk(parse_toml(spec))))
    except (InvalidValue, RecursionError):
        return []


def _walk(value: object) -> Iterator[str]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _walk(one)
    elif isinstance(value, str) and is_path(value) and value.partition(":")[0] not in _FAMILIES:
        yield value


def make_seal(spec: str) -> str:
    """Make what only this user can make of a spec; empty if it imports nothing."""
    if not find_imports(spec):
        return ""
    with suppress(OSError):  # without a home, every folder is a stranger's
        return _sign(_read_key(), spec)
    return ""


def is_own(spec: str, seal: str) -> bool:
    """Whether this user began the audit of a spec."""
    try:
        return bool(seal) and hmac.compare_digest(_sign(_read_key(), spec), seal)
    except (OSError, TypeError):
        return False


def _sign(key: bytes, spec: str) -> str:
    return hmac.new(key, spec.encode(), "sha256").hexdigest()


def _read_key() -> bytes:
    """Read this user's key, which is made at the first need of it."""
    home = os.environ.get("XDG_CONFIG_HOME")
    folder = (Path(home) if home else Path.home() / ".config") / "seepage"
    path = folder / "key"
    if not path.exists():
        folder.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_whole(path, secrets.token_bytes(32))
    return read_plain(path, largest=1000)
