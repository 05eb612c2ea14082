"""The folder of an audit, open for writing: each result is on disk as soon as it is known."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from seepage.audit._claims import CASES, Claims, FolderLock, InUse, require_unlocked
from seepage.audit._folder import (
    CHECKPOINTS,
    SPEC,
    case_file,
    find_leftovers,
    find_torn,
    find_written,
    holds_audit,
    inputs_file,
    list_copies,
    read_folder,
    read_records,
    remove_files,
    require_plain,
)
from seepage.audit._plan import Plan, Planned, make_seal, require_same_cases
from seepage.audit._record import Outcome, Record, pack_words
from seepage.audit._run_case import AnyCase
from seepage.audit._targets import Target
from seepage.core._whole_file import PRIVATE_FOLDER, seal, write_whole
from seepage.core.errors import DataNotFound, InvalidValue, SeepageError, UnreadableFile

# The environment variable that named a key in versions that could encrypt.
_KEY = "SEEPAGE_KEY_FILE"


class AuditStore(AbstractContextManager["AuditStore"]):
    """An audit's folder, open for writing, perhaps by several processes.

    Args:
        path: The folder.
        lock: This process's hold on it, released by `close`.
        plan: What runs.

    Attributes:
        mended: Files that were missing or altered when the audit was resumed.
        alone: Whether nobody else worked in the folder at that moment.
    """

    def __init__(self, path: Path, lock: FolderLock, plan: Plan) -> None:
        self.path, self.plan = path, plan
        self.mended: tuple[Path, ...] = ()
        self.alone = lock.alone
        self._lock = lock
        self._claims = Claims(path)
        self._records: dict[str, Record] = {}
        self._kept: set[str] = set()

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
        """Begin an audit of these cases in a new or empty directory.

        `overwrite` replaces an earlier audit, and never touches any other directory. Without
        `keep_private`, only scores are stored, neither private inputs nor guesses.
        """
        _require_text(title, spec)
        plan = Plan(title, spec, environment, make_seal(spec), keep_private, _plan(cases))
        with _explain_errors(f"the audit to {str(path)!r}", "choose another --out"):
            begun = InUse(
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
                    # The plan stays, so that what a kill leaves can be resumed or overwritten.
                    remove_files(path, find_written(path, Plan.read(path)))
                remove_files(path, list(find_leftovers(path)))
                plan.write(path)
                store = cls(path, lock, plan)
                store._write_copies()
                lock.share()
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
        """Go on with an audit of exactly these cases, or join other processes that run it.

        `retry_failed` runs failed cases again. `extend` is the spec of these cases, to add them to
        those of the audit. For both, nobody else may be at work. Without `keep_private`, an audit
        that stores private inputs is refused.
        """
        with _explain_errors(f"the audit to {str(path)!r}", "choose another --out"):
            require_plain(path)
            with _take_lock(path, share=not retry_failed and extend is None) as lock:
                store, wanted = cls(path, lock, Plan.read(path)), _plan(cases)
                if extend is None:
                    require_same_cases(path, store.plan.cases, wanted)
                if store.plan.private and not keep_private:
                    raise InvalidValue(
                        f"the audit in {str(path)!r} stores private inputs; remove them with "
                        f"seepage purge {path}, or leave --no-truth out"
                    )
                if extend is not None:
                    store._extend(wanted, extend)
                if lock.alone:
                    store._mend({case.target.digest: case.target for case in cases})
                    if retry_failed:
                        store._forget(one.case for one in store.records() if one.failed)
                lock.share()
                return store

    def _extend(self, wanted: Sequence[Planned], spec: str) -> None:
        """Plan the cases that are new; the spec is kept if it has cases that these lack."""
        begun, asked = ({case.id for case in cases} for cases in (self.plan.cases, wanted))
        if asked <= begun:
            return
        more = tuple(case for case in wanted if case.id not in begun)
        kept = spec if begun <= asked else self.plan.spec
        self.plan = replace(self.plan, spec=kept, cases=(*self.plan.cases, *more))
        self.plan.write(self.path)
        if kept == spec:
            (self.path / SPEC).unlink(missing_ok=True)

    def _mend(self, targets: Mapping[str, Target]) -> None:
        """Remove what is damaged; private inputs are written again, cases will run again."""
        held = read_folder(self.path, self.plan)
        self._records, self.mended = held.records, tuple(held.damaged)
        done = [file for case, file in self._claims.list_files() if case in self._records]
        for file in (*self.mended, *find_leftovers(self.path), *done, *find_torn(self.path)):
            file.unlink(missing_ok=True)
        self._claims.forget_unwritten()
        for name, target in targets.items():
            if inputs_file(self.path, name) in held.damaged:
                self._keep(target)
        self._write_copies()

    def _forget(self, cases: Iterator[str]) -> None:
        """Remove the results of these cases, which will run again."""
        for case in cases:
            case_file(self.path, case).unlink(missing_ok=True)
            del self._records[case]

    def _write_copies(self) -> None:
        """Write the spec and the environment as files for people to read, unless they exist."""
        for name, text in list_copies(self.plan).items():
            if not (self.path / name).exists():
                write_whole(self.path / name, text.encode())

    def records(self) -> tuple[Record, ...]:
        """The records there are by now, whoever wrote them, in the order of the plan."""
        self._records = read_records(self.path, self.plan, self._records).records
        return tuple(self._records.values())

    def tries(self) -> dict[str, int]:
        """How many processes died while they ran each case, not counting interrupts."""
        return self._claims.tries()

    def claim(self, case: AnyCase, *, counts: bool = True) -> bool:
        """Claim a case for this process; False if it is done, or another process has it.

        `counts` says whether a case that it runs can end this process.
        """
        with self._writing():
            if case.id in self._records or not self._claims.take(case.id, counts=counts):
                return False
            # It may have been done just before.
            if not case_file(self.path, case.id).exists():
                return True
            self.records()
            if case.id in self._records:
                self._claims.release(case.id)
            return case.id not in self._records

    def add(self, case: AnyCase, outcome: Outcome) -> None:
        """Store the outcome of a case, unless it has one: the private inputs, then all the rest."""
        with self._writing():
            if case.id in self._records:
                return
            if self.plan.private:
                self._keep(case.target)
            else:
                outcome = replace(outcome, guess=None, said=())
            (self.path / CASES).mkdir(PRIVATE_FOLDER, exist_ok=True)
            write_whole(case_file(self.path, case.id), seal(*outcome.parts()))
            self._claims.release(case.id)
        self._records[case.id] = outcome.record

    def _keep(self, target: Target) -> None:
        """Write the private inputs, if there are any and they are not written."""
        path = inputs_file(self.path, target.digest)
        if target.tensors and not (target.digest in self._kept and path.exists()):
            path.parent.mkdir(PRIVATE_FOLDER, exist_ok=True)
            words = {"name": target.digest, **pack_words(target.words)}
            write_whole(path, seal(target.tensors, words))
            self._kept.add(target.digest)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Write to the directory, if it is the one in which the audit began."""
        if not self._lock.is_there:
            raise DataNotFound(
                f"{str(self.path)!r} was moved, removed or replaced while the audit in it ran; "
                "nothing more is written there, and --resume goes on where it is now"
            )
        advice = "what was stored before is still there, and --resume goes on from it"
        with _explain_errors(f"to {str(self.path)!r}", advice):
            yield

    def close(self) -> None:
        """Release the directory, and give back cases at work, which did not end the process."""
        self._claims.close()
        if self._lock.is_there:
            self._claims.give_back()
            with suppress(OSError):  # it is not empty if an attack was interrupted
                (self.path / CHECKPOINTS).rmdir()
        self._lock.release()

    def __exit__(self, *error: object) -> None:
        self.close()


def _require_text(*texts: str) -> None:
    """Refuse what cannot be stored, such as a file name that is not UTF-8."""
    if os.environ.get(_KEY):
        raise InvalidValue(
            f"{_KEY} is set, but seepage does not encrypt any more; choose an --out on an "
            "encrypted disk, and unset it"
        )
    for text in texts:
        if text != text.encode(errors="replace").decode():
            shown = text.encode(errors="replace").decode()
            raise InvalidValue(
                f"expected names in UTF-8, got other bytes in {shown[:80]!r}; rename the file"
            )


def _plan(cases: Sequence[AnyCase]) -> tuple[Planned, ...]:
    """List cases in order; those with the same identity are one."""
    planned = {
        case.id: Planned(
            case.id,
            case.description,
            case.identity,
            case.target.digest if case.target.tensors else "",
        )
        for case in cases
    }
    return tuple(planned.values())


@contextmanager
def _take_lock(path: Path, *, share: bool = False) -> Iterator[FolderLock]:
    """Take a lock that outlives the block unless the block fails."""
    lock = FolderLock(path, share=share)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


@contextmanager
def _explain_errors(what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except SeepageError:
        raise
    except OSError as error:
        raise UnreadableFile(f"cannot write {what}: {error.strerror}; {advice}") from error
