"""Whether an audit is as it was written, and by whom; removing what is private in it."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from seepage.audit.artifacts import SUFFIX, Artifacts
from seepage.audit.database import ARTIFACTS, DATABASE, Database, artifact_names
from seepage.audit.folder import (
    CHECKPOINTS,
    ENVIRONMENT,
    SHEET,
    SPEC,
    DirectoryLock,
    find_checkpoints,
    require_plain,
)
from seepage.core.checkpoint import Checkpoints
from seepage.core.construct import parse_toml
from seepage.core.encryption import open_key
from seepage.core.errors import InvalidValue, UnreadableFile
from seepage.core.plugins import is_path
from seepage.core.whole_file import PRIVATE_FOLDER, read_plain, write_whole

# Under this name `about` has the seal of the user who began the audit.
SEAL = "seal"
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
        write_whole(path, secrets.token_bytes(32), partial=folder / f".key.{os.getpid()}")
    return read_plain(path, largest=1000)


def find_damage(path: Path | str) -> list[str]:
    """Say of everything in an audit's folder that is missing or was altered; nothing is changed.

    Checksums tell accidents, not an adversary: whoever can write to the folder can also write the
    checksums.

    Raises:
        SeepageError: If there is no audit, or its database cannot be used at all.
    """
    path = Path(path)
    require_plain(path)
    with closing(Database(path / DATABASE, read_only=True)) as database:
        damaged = database.find_damaged()
        written = {k: v for k, v in artifact_names(database.files()).items() if v}
        about, keeps_private = database.about(), database.keeps_private()
        records = () if damaged else database.records()
        database.planned()
    key = open_key(path, about)
    artifacts = Artifacts(path / ARTIFACTS, key)
    found = [f"the record of {case[:40]} is damaged: {why}" for case, why in damaged.items()]
    for name in artifacts.find_damaged(written):
        state = "altered" if artifacts.path(name).exists() else "missing"
        found.append(f"{ARTIFACTS}/{name}{SUFFIX} is {state}")
    for record in records:
        is_attack = record.error is None and record.bound is None
        if is_attack and keeps_private and record.case not in written:
            found.append(f"{ARTIFACTS}/{record.case}{SUFFIX} was never written")
    copies = {SPEC: about.get("spec", ""), ENVIRONMENT: about.get("environment", "") + "\n"}
    found += [f"{name} is {how}" for name, how in _compare(path, copies)]
    for file in find_checkpoints(path):
        if file.suffix == SUFFIX and not Checkpoints(file.parent, key=key).is_whole(file.stem):
            found.append(f"{CHECKPOINTS}/{file.name} is altered")
    return found


def _compare(path: Path, copies: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name, text in copies.items():
        try:
            if read_plain(path / name) != text.encode():
                yield name, "not what the database holds"
        except FileNotFoundError:
            yield name, "missing"


def purge(path: Path | str) -> int:
    """Remove private inputs, guesses, checkpoints and pictures of an audit; its records stay.

    The page `report.html` shows them too: write it again afterwards. What a disk or a backup still
    holds of removed files is beyond this. Returns the number of files that were removed.

    Raises:
        SeepageError: If there is no audit, or another process is using it.
    """
    path = Path(path)
    require_plain(path)
    try:
        lock = DirectoryLock(path)
    except OSError as error:
        raise UnreadableFile(f"cannot purge {str(path)!r}: {error.strerror or error}") from error
    try:
        with closing(Database(path / DATABASE)) as database:
            listed = [file for file in database.files() if file.startswith(f"{ARTIFACTS}/")]
            # First, so that what is removed is never missed.
            database.leave_out_private(listed)
        artifacts = Artifacts(path / ARTIFACTS)
        names = [artifacts.path(name) for name in artifact_names(dict.fromkeys(listed, ""))]
        partial = [file.with_suffix(".partial") for file in names]
        doomed = [*names, *partial, *find_checkpoints(path), path / SHEET]
        there = [file for file in doomed if file.is_file()]
        for file in there:
            file.unlink()
        for folder in (path / ARTIFACTS, path / CHECKPOINTS):
            with suppress(OSError):  # somebody keeps something else there
                folder.rmdir()
    except OSError as error:
        raise UnreadableFile(f"cannot purge {str(path)!r}: {error.strerror or error}") from error
    finally:
        lock.release()
    return len(there)
