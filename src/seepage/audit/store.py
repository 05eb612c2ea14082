"""The directory of an audit: each result is on the disk as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from seepage.audit.artifacts import SUFFIX, Artifacts, is_whole, pack, write_whole
from seepage.audit.changes import changes
from seepage.audit.database import DATABASE, TEMPORARY, Database, Planned
from seepage.audit.execution import AnyCase
from seepage.audit.lock import DirectoryLock, require_unlocked
from seepage.audit.outcome import Outcome, spelled
from seepage.audit.record import Record
from seepage.audit.result import ARTIFACTS, artifact_names
from seepage.audit.room import (
    CHECKPOINTS,
    ENVIRONMENT,
    PARTIAL,
    SPEC,
    find_checkpoints,
    holds_audit,
    list_files,
    remove_files,
    require_audit,
)
from seepage.audit.strangers import Strangers
from seepage.audit.victims import Victims
from seepage.core.errors import InvalidValue, SeepageError, UnreadableFile


class AuditStore:
    """An audit's directory, open for writing by this process alone.

    `audit.sqlite` holds the plan and a record per case, `artifacts/` the private inputs once per
    batch and, per case, what came back and the objective on the way. An artifact is written
    before the record that speaks of it, so a record's tensors are there.

    Args:
        path: The directory.
        lock: The hold on it, let go by `close`.

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
        """Begin an audit.

        Args:
            path: Where; it must not exist yet or be empty, unless `overwrite`.
            title: What the audit is called.
            spec: Text of its spec.
            environment: As plain data.
            cases: What it is to run.
            overwrite: Replace an earlier audit; a directory that is not one is never touched.
        """
        words = json.dumps(environment, indent=2)
        about = {"title": title, "spec": spec, "environment": words}
        planned = plan(cases)
        files = list_files([*planned, *(case.victims.digest for case in cases)])
        with _said(path):
            if holds_audit(path) and not overwrite:
                require_unlocked(path)
                raise _already_begun(path)
            path.mkdir(parents=True, exist_ok=True)
            with _held(path) as lock:
                # Again: somebody else may have begun here in the meantime.
                if holds_audit(path):
                    if not overwrite:
                        raise _already_begun(path)
                    remove_files(path)
                Database.create(path / DATABASE, about=about, planned=planned.values(), files=files)
                store = cls(path, lock)
                store._write_copies()
                return store

    @classmethod
    def resume(
        cls, path: Path, *, cases: Sequence[AnyCase], retry_failed: bool = False
    ) -> AuditStore:
        """Go on with an audit of exactly these cases.

        Args:
            path: Where it is.
            cases: What it is to run; refused if the audit there was begun for others.
            retry_failed: Run the cases again that gave no result.
        """
        with _said(path):
            require_audit(path)
            with _held(path) as lock:
                store = cls(path, lock)
                store._require(plan(cases))
                store._mend({case.victims.digest: case.victims for case in cases})
                if retry_failed:
                    store._database.forget(r.case for r in store.records() if r.error)
                return store

    def _require(self, wanted: Mapping[str, Planned]) -> None:
        begun = {p.id: p for p in self._database.planned()}
        if begun.keys() != wanted.keys():
            what = changes(tuple(begun.values()), tuple(wanted.values()))
            raise InvalidValue(
                f"the audit in {str(self.path)!r} was begun with another spec: {what}; resume it "
                "with the spec it began with, or choose another --out"
            )

    def _mend(self, victims: Mapping[str, Victims | Strangers]) -> None:
        """Remove what is truncated; private inputs are written anew, other cases run again."""
        (self.path / TEMPORARY).unlink(missing_ok=True)
        self._write_copies()
        broken = self.artifacts.damaged(artifact_names(self._database.files()))
        self._database.forget(broken)
        self.mended = tuple(map(self.artifacts.path, broken))
        for path in self.mended:
            path.unlink()
        for name in broken:
            if name in victims:
                self._keep_truth(victims[name])
        for path in find_checkpoints(self.path):
            if path.suffix != SUFFIX or not is_whole(path):
                path.unlink()

    def _write_copies(self) -> None:
        """Write what is also there to be read by people, unless it is there."""
        about = self._database.about()
        copies = {SPEC: about["spec"], ENVIRONMENT: about["environment"] + "\n"}
        for name, text in copies.items():
            path = self.path / name
            if not path.exists():
                write_whole(path, text.encode(), partial=path.with_name(f".{name}{PARTIAL}"))

    def records(self) -> tuple[Record, ...]:
        """What is done, in the order of the plan."""
        return self._database.records()

    def add(self, case: AnyCase, outcome: Outcome) -> None:
        """Keep what a case gave: its tensors first, then its record."""
        try:
            if case.victims.kept() and not self.artifacts.path(case.victims.digest).exists():
                self._keep_truth(case.victims)
            if outcome.guess is not None:
                self.artifacts.write(case.id, outcome.packed())
        except OSError as error:
            raise UnreadableFile(
                f"cannot write to {str(self.artifacts.folder)!r}: {error.strerror}; what was "
                "stored before is still there, and --resume goes on from it"
            ) from error
        self._database.add(outcome.record)

    def _keep_truth(self, victims: Victims | Strangers) -> None:
        self.artifacts.write(victims.digest, pack(victims.kept(), spelled(victims.said)))

    def close(self) -> None:
        """Close the database and let go of the directory."""
        self._database.close()
        with suppress(OSError):  # it holds the state of an attack that was interrupted
            (self.path / CHECKPOINTS).rmdir()
        self._lock.release()

    def __enter__(self) -> AuditStore:
        """Keep the store open inside a block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it at the end of the block."""
        self.close()


def plan(cases: Sequence[AnyCase]) -> dict[str, Planned]:
    """Cases by id, in order; those that are the same in all that matters are one."""
    return {case.id: Planned(case.id, case.description, case.identity) for case in cases}


def _already_begun(path: Path) -> InvalidValue:
    return InvalidValue(
        f"{str(path)!r} already holds an audit; --resume it, --overwrite it, or choose another "
        "--out"
    )


@contextmanager
def _held(path: Path) -> Iterator[DirectoryLock]:
    """A lock that outlives the block unless the block fails."""
    lock = DirectoryLock(path)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


@contextmanager
def _said(path: Path) -> Iterator[None]:
    try:
        yield
    except SeepageError:
        raise
    except OSError as error:
        raise UnreadableFile(
            f"cannot write the audit to {str(path)!r}: {error.strerror}; choose another --out"
        ) from error
