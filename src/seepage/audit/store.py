"""The directory of an audit: each result is on disk as soon as it is known."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from seepage.audit.artifacts import SUFFIX, Artifacts
from seepage.audit.database import (
    ARTIFACTS,
    DATABASE,
    KEPT,
    LEFT_OUT,
    PRIVATE,
    TEMPORARY,
    Database,
    Planned,
    artifact_names,
)
from seepage.audit.folder import (
    BESIDE,
    CHECKPOINTS,
    ENVIRONMENT,
    SPEC,
    DirectoryLock,
    find_checkpoints,
    holds_audit,
    remove_files,
    require_plain,
    require_unlocked,
)
from seepage.audit.record import Outcome, Record, name_infinities, pack_words
from seepage.audit.run_case import AnyCase
from seepage.audit.targets import Target
from seepage.audit.verify import SEAL, make_seal
from seepage.core.checkpoint import Checkpoints
from seepage.core.construct import Component
from seepage.core.encryption import VARIABLE, find_key, open_key, prove_key
from seepage.core.errors import DataNotFound, InvalidValue, SeepageError, UnreadableFile
from seepage.core.whole_file import PRIVATE_FOLDER, pack, write_whole

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


def _describe_changes(before: Sequence[Planned], now: Sequence[Planned]) -> str:
    """Name the parts in which two plans differ.

    Example:
        >>> mlp = Planned("1", "", {"model": "mlp", "seed": "0"})
        >>> cnn = Planned("2", "", {"model": "cnn", "seed": "0"})
        >>> _describe_changes([mlp], [cnn])
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


class AuditStore(AbstractContextManager["AuditStore"]):
    """An audit's directory, open for writing by this process alone.

    `audit.sqlite` holds the plan and a record per case. `artifacts/` holds the private inputs once
    per batch and, per case, the guess and the course of the objective. An artifact is written
    before its record, so the tensors of a record always exist.

    Args:
        path: The directory.
        lock: Its lock, released by `close`.

    Attributes:
        mended: Files that were missing or altered when the audit was resumed, and records.
        key: Encrypts tensors and checkpoints; None if they are plain.
    """

    def __init__(self, path: Path, lock: DirectoryLock) -> None:
        self.path = path
        self.mended: tuple[Path, ...] = ()
        self._lock = lock
        self._at_work: dict[str, int] = {}
        self._database = Database(path / DATABASE)
        with _close_if_refused(self._database):
            self.key = open_key(path, self._database.about())
            self.artifacts = Artifacts(path / ARTIFACTS, self.key)
            self._kept = {name for name, value in self._checksums().items() if value}
            self._keeps_private = self._database.keeps_private()

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
        keep_private: bool = True,
    ) -> AuditStore:
        """Begin an audit in a new or empty directory.

        Args:
            path: The directory.
            title: What the audit is called.
            spec: Text of its spec.
            environment: As plain data.
            cases: What it is to run.
            overwrite: Replace an earlier audit; any other directory is never touched.
            keep_private: Store private inputs and guesses, not scores alone.
        """
        words = json.dumps(environment, indent=2)
        private = KEPT if keep_private else LEFT_OUT
        about = {"title": title, "spec": spec, "environment": words}
        about |= {PRIVATE: private, SEAL: make_seal(spec), **prove_key(find_key())}
        _require_text(title, spec)
        planned = _plan(cases)
        # Every file that this audit may write is listed before any of them exists.
        files = [*BESIDE, *_list_artifacts(cases)]
        with _explain_errors(path):
            begun = InvalidValue(
                f"{str(path)!r} already holds an audit; --resume it, --overwrite it, or choose "
                "another --out"
            )
            if holds_audit(path) and not overwrite:
                require_unlocked(path)
                raise begun
            path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
            with _take_lock(path) as lock:
                # Again, since another process may have begun here in the meantime.
                if holds_audit(path):
                    if not overwrite:
                        raise begun
                    remove_files(path)
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
        keep_private: bool = True,
        extend: str | None = None,
    ) -> AuditStore:
        """Go on with an audit of exactly these cases.

        Args:
            path: Where it is.
            cases: What it is to run; refused if the audit there was begun for others.
            retry_failed: Run failed cases again.
            keep_private: False refuses an audit that stores private inputs.
            extend: The spec of these cases, which are added to those of the audit instead.
        """
        with _explain_errors(path):
            require_plain(path)
            with _take_lock(path) as lock:
                store = cls(path, lock)
                with _close_if_refused(store._database):
                    if store.key is None and find_key() is not None:
                        raise InvalidValue(
                            f"the audit in {str(path)!r} was begun without encryption; leave "
                            f"--encrypt-key out and {VARIABLE} unset, or choose another --out"
                        )
                    if extend is None:
                        store._require_plan(_plan(cases))
                    else:
                        store._extend(cases, extend)
                    if store._keeps_private and not keep_private:
                        raise InvalidValue(
                            f"the audit in {str(path)!r} stores private inputs; remove them with "
                            f"seepage purge {path}, or leave --no-truth out"
                        )
                    store._mend({case.target.digest: case.target for case in cases})
                    if retry_failed:
                        store._database.forget(r.case for r in store.records() if r.failed)
                return store

    def _require_plan(self, wanted: Mapping[str, Planned]) -> None:
        begun = {p.id: p for p in self._database.planned()}
        if begun.keys() != wanted.keys():
            what = _describe_changes(tuple(begun.values()), tuple(wanted.values()))
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
        """Remove what is damaged; private inputs are written again, cases will run again."""
        (self.path / TEMPORARY).unlink(missing_ok=True)
        self._write_copies()
        written = {name: value for name, value in self._checksums().items() if value}
        broken = self.artifacts.find_damaged(written)
        lost = self._database.find_damaged()
        self._database.forget({*broken, *lost})
        self._database.note({self._file(name): "" for name in {*broken, *lost} & written.keys()})
        self._kept.difference_update(broken, lost)
        self.mended = tuple(map(self.artifacts.path, dict.fromkeys([*broken, *lost])))
        for path in self.mended:
            path.unlink(missing_ok=True)
        self._database.note(
            {k: v for name in broken if name in targets for k, v in self._keep(targets[name])}
        )
        for path in find_checkpoints(self.path):
            if path.suffix != SUFFIX or not Checkpoints(path.parent, key=self.key).is_whole(
                path.stem
            ):
                path.unlink()

    def _checksums(self) -> dict[str, str]:
        """The checksum of every artifact, by name; empty for those that are not written."""
        return artifact_names(self._database.files())

    def _file(self, name: str) -> str:
        return f"{ARTIFACTS}/{name}{SUFFIX}"

    def _write_copies(self) -> None:
        """Write the spec and the environment as files for people to read, unless they exist."""
        about = self._database.about()
        copies = {SPEC: about["spec"], ENVIRONMENT: about["environment"] + "\n"}
        for name, text in copies.items():
            path = self.path / name
            if not path.exists():
                write_whole(path, text.encode())

    def records(self) -> tuple[Record, ...]:
        """The records there are, in the order of the plan."""
        return self._database.records()

    def begun(self) -> dict[str, int]:
        """How often each case has begun without a result, not counting interrupts."""
        return self._database.begun()

    def begin(self, case: AnyCase) -> None:
        """Note that a case begins, so that one that ends the process is known."""
        self._require_there()
        self._at_work[case.id] = self.begun().get(case.id, 0)
        self._database.begin(case.id, times=self._at_work[case.id] + 1)

    def interrupt(self) -> None:
        """Note that the cases at work did not end the process themselves."""
        if not self._database.is_there():
            return
        for case, times in self._at_work.items():
            self._database.begin(case, times=times)

    def add(self, case: AnyCase, outcome: Outcome) -> None:
        """Store the outcome of a case: its tensors first, then its record."""
        self._require_there()
        try:
            checksums = dict(self._keep(case.target))
            if not self._keeps_private:
                outcome = replace(outcome, guess=None, said=())
            if outcome.guess is not None or outcome.objective:
                packed = replace(outcome, shown="").pack()
                checksums[self._file(case.id)] = self.artifacts.write(case.id, packed)
        except OSError as error:
            raise UnreadableFile(
                f"cannot write to {str(self.artifacts.folder)!r}: {error.strerror}; what was "
                "stored before is still there, and --resume goes on from it"
            ) from error
        self._database.add(outcome.record, checksums)
        self._kept.add(case.target.digest)
        self._at_work.pop(case.id, None)

    def _require_there(self) -> None:
        """Raise if the directory is another than when the audit began; nothing is written to it."""
        if not self._database.is_there():
            raise DataNotFound(
                f"{str(self.path)!r} was moved, removed or replaced while the audit in it ran; "
                "nothing more is written there, and --resume goes on where it is now"
            )

    def _keep(self, target: Target) -> Iterator[tuple[str, str]]:
        """Write the private inputs unless they are there; yield the file and its checksum."""
        if target.tensors and self._keeps_private and target.digest not in self._kept:
            data = pack(target.tensors, pack_words(target.words))
            yield self._file(target.digest), self.artifacts.write(target.digest, data)

    def close(self) -> None:
        """Close the database and release the directory."""
        is_there = self._database.is_there()
        self._database.close()
        with suppress(OSError):  # it is not empty if an attack was interrupted
            if is_there:
                (self.path / CHECKPOINTS).rmdir()
        self._lock.release()

    def __exit__(self, *error: object) -> None:
        self.close()


def _require_text(*texts: str) -> None:
    """Refuse what cannot be stored, such as a file name that is not UTF-8."""
    for text in texts:
        if text != text.encode(errors="replace").decode():
            shown = text.encode(errors="replace").decode()
            raise InvalidValue(
                f"expected names in UTF-8, got other bytes in {shown[:80]!r}; rename the file"
            )


def _plan(cases: Sequence[AnyCase]) -> dict[str, Planned]:
    """List cases by id, in order; those with the same identity are one."""
    return {
        case.id: Planned(case.id, case.description, name_infinities(case.identity))
        for case in cases
    }


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
def _close_if_refused(database: Database) -> Iterator[None]:
    """Leave a single file behind if the block fails, not a log beside it."""
    try:
        yield
    except BaseException:
        database.close()
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
