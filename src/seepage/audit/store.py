"""The directory of an audit: each result is on disk as soon as it is known."""

from __future__ import annotations

import json
import os
import platform
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from seepage.audit.artifacts import SUFFIX, Artifacts, is_whole, pack, write_whole
from seepage.audit.audit_result import ARTIFACTS, artifact_names
from seepage.audit.database import (
    DATABASE,
    TEMPORARY,
    Database,
    Planned,
    read_format,
    require_database,
)
from seepage.audit.record import Outcome, Record, pack_words
from seepage.audit.run_case import AnyCase
from seepage.audit.targets import Target
from seepage.core.construct import Component
from seepage.core.errors import InvalidValue, SeepageError, UnreadableFile

SPEC = "spec.toml"
ENVIRONMENT = "environment.json"
SHEET = "contact_sheet.png"
PAGE = "report.html"
CHECKPOINTS = "checkpoints"
LOCK = "audit.lock"
PARTIAL = ".partial"
PACKAGES = ("seepage", "torch", "numpy", "scipy", "pillow", "safetensors")

_OWNER = re.compile(rb"seepage (\d+)\n")
_WHOLE = (SPEC, ENVIRONMENT, PAGE)
_BESIDE = (*_WHOLE, *(f".{name}{PARTIAL}" for name in _WHOLE), SHEET)
_SQLITE = tuple(f"{DATABASE}{end}" for end in ("", "-wal", "-shm", "-journal"))
# Checkpoints are named by fingerprints, which are not known when the audit begins.
_CHECKPOINT = re.compile(rf"[0-9a-f]{{24}}({re.escape(SUFFIX)}|{re.escape(PARTIAL)})")

# A part that changes because another one did, and which; only the other one is reported.
_IMPLIED_BY: Mapping[str, tuple[str, ...]] = defaultdict(
    tuple,
    people=("data",),
    inputs=("data", "people"),
    domain=("data", "model"),
    weights=("data", "model"),
    options=("attack", "bound"),
)
_LONGEST = 80


def describe_changes(before: Sequence[Planned], now: Sequence[Planned]) -> str:
    """Name the parts in which two plans differ.

    Example:
        >>> mlp = Planned("1", "", {"model": "mlp", "seed": "0"})
        >>> cnn = Planned("2", "", {"model": "cnn", "seed": "0"})
        >>> describe_changes([mlp], [cnn])
        "model was 'mlp' and is now 'cnn'"
    """
    names = dict.fromkeys(name for case in (*before, *now) for name in case.identity)
    found = {name: words for name in names if (words := _describe_change(name, before, now))}
    told = [w for name, w in found.items() if not any(n in found for n in _IMPLIED_BY[name])]
    return ", and ".join(told) or f"it had {len(before)} cases and now has {len(now)}"


def _describe_change(name: str, before: Sequence[Planned], now: Sequence[Planned]) -> str:
    old, new = ({_write(case.identity.get(name, "")) for case in cases} for cases in (before, now))
    gone, come = sorted(old - new), sorted(new - old)
    if gone and come:
        return f"{name} was {_quote(gone)} and is now {_quote(come)}"
    if gone:
        return f"{name} {_quote(gone)} is gone"
    return f"{name} {_quote(come)} is new" if come else ""


def _write(value: Any) -> str:  # noqa: ANN401
    """Write a part of an identity: components as calls, anything else as JSON has it."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return " + ".join(map(_write, value)) or "none"
    return str(Component(**value)) if isinstance(value, dict) else str(value)


def _quote(values: Sequence[str]) -> str:
    more = f" and {len(values) - 1} more" if len(values) > 1 else ""
    first = values[0] if len(values[0]) <= _LONGEST else values[0][:_LONGEST] + "..."
    return f"{first!r}{more}"


class DirectoryLock:
    """A lock on a directory, held until this process releases it or dies."""

    def __init__(self, folder: Path) -> None:
        """Take the lock; raise `InvalidValue` if another process holds it."""
        import fcntl

        self._handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            refused = _in_use(folder, self._handle)
            os.close(self._handle)
            raise refused from None
        os.ftruncate(self._handle, 0)
        os.write(self._handle, f"seepage {os.getpid()}\n".encode())

    def release(self) -> None:
        """Release the lock; the file stays, since a lock on a deleted file protects nothing."""
        os.close(self._handle)


def _require_unlocked(folder: Path) -> None:
    """Raise `InvalidValue` if a process holds a directory, without writing anything."""
    import fcntl

    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(folder, handle) from None
    finally:
        os.close(handle)


def _in_use(folder: Path, handle: int) -> InvalidValue:
    owner = _OWNER.fullmatch(os.read(handle, 64))
    who = f"process {owner[1].decode()}" if owner else "another process"
    return InvalidValue(f"{str(folder)!r} is in use by {who}; wait for it, or choose another --out")


def _require_audit(path: Path) -> None:
    """Raise unless a directory holds an audit that this version can go on with."""
    require_database(path / DATABASE)
    for name in (*_SQLITE, *_BESIDE, LOCK, TEMPORARY, ARTIFACTS, CHECKPOINTS):
        if (path / name).is_symlink():
            raise InvalidValue(
                f"expected what an audit wrote at {str(path / name)!r}, got a link, which is "
                "never followed; remove it, or choose another --out"
            )


def _holds_audit(path: Path) -> bool:
    """Whether an audit is in a directory; False if one can begin there.

    An audit can begin in an empty directory, or where another was killed before it had a database.
    Nothing is written.

    Raises:
        InvalidValue: If the directory holds anything else.
        UnreadableFile: If the audit has another format.
    """
    there = [file.name for file in path.iterdir()] if path.is_dir() else []
    # After listing: a process that begins an audit here right now makes the database first.
    if read_format(path / DATABASE) is not None:
        _require_audit(path)
        return True
    is_free = path.is_dir() or not (path.exists() or path.is_symlink())
    if not is_free or not all(_is_leftover(path / name) for name in there):
        raise InvalidValue(
            f"expected --out to name a new directory, but {str(path)!r} holds something else"
        )
    return False


def _is_leftover(place: Path) -> bool:
    """Whether an audit that was killed at its beginning may have left this file."""
    if place.is_symlink():
        return False
    if place.name == LOCK and place.is_file():
        with place.open("rb") as file:
            owner = file.read(64)
        # The file is empty until its owner has written the process id.
        return not owner or _OWNER.fullmatch(owner) is not None
    # It may be gone by now, if the audit that makes it is still alive.
    return place.name == TEMPORARY and (place.is_file() or not place.exists())


def _remove_files(path: Path) -> None:
    """Remove an earlier audit's files by their names; its database stays, without records.

    The database lists the files that an audit may write, not those it wrote: a `report.html` that
    somebody else put there is removed too. Checkpoints are recognised by the form of their names.
    If this is killed, what is left can be resumed or overwritten.

    Args:
        path: The directory, locked by this process.

    Raises:
        InvalidValue: If something else has the name of a file of the audit; nothing is removed.
    """
    database = Database(path / DATABASE)
    try:
        files = [*_find_written(path, database.files()), *_find_checkpoints(path)]
        database.empty()
    finally:
        database.close()
    for file in files:
        file.unlink(missing_ok=True)
    for folder in (path / ARTIFACTS, path / CHECKPOINTS):
        with suppress(OSError):  # somebody keeps something else there
            folder.rmdir()


def _find_written(path: Path, names: Iterable[str]) -> Iterator[Path]:
    """Find the files of a list that exist."""
    for name in names:
        parts = PurePosixPath(name).parts
        place = path.joinpath(*parts)
        inside = len(parts) == 1 or (len(parts) == 2 and parts[0] == ARTIFACTS)
        if ".." in parts or not inside:
            raise InvalidValue(f"the audit in {str(path)!r} lists {name!r}, which it cannot write")
        partial = [place.with_suffix(PARTIAL)] if len(parts) == 2 else []
        for file in (place, *partial):
            if file.is_symlink() or (file.exists() and not file.is_file()):
                raise InvalidValue(
                    f"expected a file that the audit wrote at {str(file)!r}, got a link or a "
                    "folder; move it away, or choose another --out"
                )
            if file.exists():
                yield file


def _find_checkpoints(path: Path) -> list[Path]:
    """Find the states of interrupted attacks, whole or not."""
    folder = path / CHECKPOINTS
    return [
        file
        for file in (folder.iterdir() if folder.is_dir() else ())
        if _CHECKPOINT.fullmatch(file.name) and file.is_file() and not file.is_symlink()
    ]


class AuditStore(AbstractContextManager["AuditStore"]):
    """An audit's directory, open for writing by this process alone.

    `audit.sqlite` holds the plan and a record per case. `artifacts/` holds the private inputs once
    per batch and, per case, the guess and the course of the objective. An artifact is written
    before its record, so the tensors of a record always exist.

    Args:
        path: The directory.
        lock: Its lock, released by `close`.

    Attributes:
        mended: Truncated artifacts that were found when the audit was resumed.
    """

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        """Open the database."""
        self.path = path
        self.artifacts = Artifacts(path / ARTIFACTS)
        self.mended: tuple[Path, ...] = ()
        self._lock = lock
        self._database = Database(path / DATABASE)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        title: str,
        spec: str,
        environment: Mapping[str, object],
        cases: Sequence[AnyCase],
        overwrite: bool = False,
    ) -> AuditStore:
        """Begin an audit in a new or empty directory.

        Args:
            path: The directory.
            title: What the audit is called.
            spec: Text of its spec.
            environment: As plain data.
            cases: What it is to run.
            overwrite: Replace an earlier audit; any other directory is never touched.
        """
        words = json.dumps(environment, indent=2)
        about = {"title": title, "spec": spec, "environment": words}
        planned = _plan(cases)
        # Every file that this audit may write is listed before any of them exists.
        files = [*_BESIDE, *_list_artifacts(cases)]
        with _explain_errors(path):
            begun = InvalidValue(
                f"{str(path)!r} already holds an audit; --resume it, --overwrite it, or choose "
                "another --out"
            )
            if _holds_audit(path) and not overwrite:
                _require_unlocked(path)
                raise begun
            path.mkdir(parents=True, exist_ok=True)
            with _take_lock(path) as lock:
                # Again, since another process may have begun here in the meantime.
                if _holds_audit(path):
                    if not overwrite:
                        raise begun
                    _remove_files(path)
                Database.create(path / DATABASE, about=about, planned=planned.values(), files=files)
                store = cls(path, lock)
                store._write_copies()
                return store

    @classmethod
    def resume(
        cls,
        path: Path,
        *,
        cases: Sequence[AnyCase],
        retry_failed: bool = False,
        extend: str | None = None,
    ) -> AuditStore:
        """Go on with an audit of exactly these cases.

        Args:
            path: Where it is.
            cases: What it is to run; refused if the audit there was begun for others.
            retry_failed: Run failed cases again.
            extend: The spec of these cases, which are added to those of the audit instead.
        """
        with _explain_errors(path):
            _require_audit(path)
            with _take_lock(path) as lock:
                store = cls(path, lock)
                if extend is None:
                    store._require_plan(_plan(cases))
                else:
                    store._extend(cases, extend)
                store._mend({case.target.digest: case.target for case in cases})
                if retry_failed:
                    store._database.forget(r.case for r in store.records() if r.error)
                return store

    def _require_plan(self, wanted: Mapping[str, Planned]) -> None:
        begun = {p.id: p for p in self._database.planned()}
        if begun.keys() != wanted.keys():
            what = describe_changes(tuple(begun.values()), tuple(wanted.values()))
            raise InvalidValue(
                f"the audit in {str(self.path)!r} was begun with another spec: {what}; resume it "
                "with the spec it began with, or choose another --out"
            )

    def _extend(self, cases: Sequence[AnyCase], spec: str) -> None:
        """Plan the cases that are new; the spec is kept if it has cases that these lack."""
        begun, wanted = {p.id for p in self._database.planned()}, _plan(cases)
        if wanted.keys() <= begun:
            return
        if begun <= wanted.keys():
            (self.path / SPEC).unlink(missing_ok=True)
        else:
            spec = self._database.about()["spec"]
        files = _list_artifacts(cases)
        self._database.extend(spec=spec, planned=wanted.values(), files=files)

    def _mend(self, targets: Mapping[str, Target]) -> None:
        """Remove truncated files; private inputs are written again, cases will run again."""
        (self.path / TEMPORARY).unlink(missing_ok=True)
        self._write_copies()
        broken = self.artifacts.find_damaged(artifact_names(self._database.files()))
        self._database.forget(broken)
        self.mended = tuple(map(self.artifacts.path, broken))
        for path in self.mended:
            path.unlink()
        for name in broken:
            if name in targets:
                self._keep_truth(targets[name])
        for path in _find_checkpoints(self.path):
            if path.suffix != SUFFIX or not is_whole(path):
                path.unlink()

    def _write_copies(self) -> None:
        """Write the spec and the environment as files for people to read, unless they exist."""
        about = self._database.about()
        copies = {SPEC: about["spec"], ENVIRONMENT: about["environment"] + "\n"}
        for name, text in copies.items():
            path = self.path / name
            if not path.exists():
                write_whole(path, text.encode(), partial=path.with_name(f".{name}{PARTIAL}"))

    def records(self) -> tuple[Record, ...]:
        """The records there are, in the order of the plan."""
        return self._database.records()

    def add(self, case: AnyCase, outcome: Outcome) -> None:
        """Store the outcome of a case: its tensors first, then its record."""
        try:
            if case.target.tensors and not self.artifacts.path(case.target.digest).exists():
                self._keep_truth(case.target)
            if outcome.guess is not None:
                self.artifacts.write(case.id, outcome.pack())
        except OSError as error:
            raise UnreadableFile(
                f"cannot write to {str(self.artifacts.folder)!r}: {error.strerror}; what was "
                "stored before is still there, and --resume goes on from it"
            ) from error
        self._database.add(outcome.record)

    def _keep_truth(self, target: Target) -> None:
        self.artifacts.write(target.digest, pack(target.tensors, pack_words(target.words)))

    def close(self) -> None:
        """Close the database and release the directory."""
        self._database.close()
        with suppress(OSError):  # it is not empty if an attack was interrupted
            (self.path / CHECKPOINTS).rmdir()
        self._lock.release()

    def __exit__(self, *error: object) -> None:
        """Close it at the end of the block."""
        self.close()


def _plan(cases: Sequence[AnyCase]) -> dict[str, Planned]:
    """List cases by id, in order; those with the same identity are one."""
    return {case.id: Planned(case.id, case.description, case.identity) for case in cases}


def _list_artifacts(cases: Sequence[AnyCase]) -> list[str]:
    """List the files of tensors that these cases may write."""
    names = dict.fromkeys([*_plan(cases), *(case.target.digest for case in cases)])
    return [f"{ARTIFACTS}/{name}{SUFFIX}" for name in names]


@contextmanager
def _take_lock(path: Path) -> Iterator[DirectoryLock]:
    """Take a lock that outlives the block unless the block fails."""
    lock = DirectoryLock(path)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except SeepageError:
        raise
    except OSError as error:
        raise UnreadableFile(
            f"cannot write the audit to {str(path)!r}: {error.strerror}; choose another --out"
        ) from error


def environment(device: str) -> dict[str, str | dict[str, str]]:
    """Versions, platform and device, as plain data."""
    on_gpu = device.startswith("cuda")
    processor = torch.cuda.get_device_name() if on_gpu else platform.processor()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "processor": processor or platform.machine(),
        "packages": {name: _find_version(name) for name in PACKAGES},
    }


def _find_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        # Seepage itself may run from its source tree.
        return "not installed"
