"""Reading an audit: finished, still running, or interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from seepage.audit.artifacts import Artifacts
from seepage.audit.database import ARTIFACTS, DATABASE, Database, Planned, artifact_names
from seepage.audit.folder import require_plain
from seepage.audit.record import Outcome, Record, join_controls, unpack_words
from seepage.audit.record_schema import parse_json
from seepage.audit.results import Results
from seepage.core.encryption import Key, open_key
from seepage.core.errors import UnreadableFile


@dataclass(frozen=True)
class AuditResult:
    """What an audit has found so far; tensors are read from disk on demand.

    Args:
        path: The directory.
        title: What the audit is called.
        spec: Text of its spec.
        environment: Versions, platform and device, as plain data.
        planned: Every case, in order.
        records: Every result of an attack so far, in the same order.
        bounds: Every bound so far, likewise.
        controls: Every control so far, likewise.
        damaged: Files that are missing or were altered; their tensors read as None.
        private: Whether private inputs and guesses are stored.
        key: With which they are encrypted; None if they are not.
    """

    path: Path
    title: str
    spec: str
    environment: Mapping[str, Any]
    planned: tuple[Planned, ...]
    records: tuple[Record, ...]
    bounds: tuple[Record, ...] = ()
    controls: tuple[Record, ...] = ()
    damaged: tuple[Path, ...] = ()
    private: bool = True
    key: Key | None = field(default=None, repr=False)

    @property
    def complete(self) -> bool:
        """Whether every case has a record."""
        return len(self.every_record) == len(self.planned)

    @cached_property
    def results(self) -> Results:
        """What the attacks found so far: one row per case and person, judged together."""
        return Results.of(self.records)

    @property
    def every_record(self) -> tuple[Record, ...]:
        """Every record so far: of attacks, then of bounds and of controls."""
        return (*self.records, *self.bounds, *self.controls)

    @property
    def incomplete(self) -> tuple[Record, ...]:
        """The results whose private inputs or guesses are missing or were altered."""
        names = {path.stem for path in self.damaged}
        return tuple(record for record in self.every_record if names & {record.case, record.truth})

    def for_its_folder(self) -> AuditResult:
        """What pages in its own folder may show: no private data if that is encrypted."""
        return self if self.key is None else replace(self, private=False)

    def truth(self, record: Record) -> Tensor | None:
        """The private inputs `(B, ...)`; None if they are not stored."""
        return _require_batch(record, self._read_private(record.truth)[0].get("inputs"))

    def guess(self, record: Record) -> Tensor | None:
        """The guess `(B, ...)`, in the order of the examples; None if there is none."""
        return _require_batch(record, self._read_private(record.case)[0].get("guess"))

    def truth_said(self, record: Record) -> tuple[tuple[str, ...], ...]:
        """The private inputs in words; empty if they are not text or tables, or not stored."""
        return unpack_words(self._read_private(record.truth)[1])

    def guess_said(self, record: Record) -> tuple[tuple[str, ...], ...]:
        """The guess in words; empty if it is not text or tables, or if there is none."""
        return unpack_words(self._read_private(record.case)[1])

    def objective(self, record: Record) -> Tensor | None:
        """The objective at the start and after each step `(T,)`; None for closed forms."""
        found = self._read(record.case)[0].get("objective")
        return found if found is not None and found.ndim == 1 else None

    def outcomes(self) -> Iterator[Outcome]:
        """Every record whose private inputs or guesses are stored, with its tensors."""
        for record in self.records:
            truth, guess, course = self.truth(record), self.guess(record), self.objective(record)
            objective = () if course is None else tuple(course.tolist())
            # A record without scores never had a truth; with scores, the truth is missing.
            if truth is not None or (guess is not None and not record.scores):
                yield Outcome(record, truth, guess, objective, self.guess_said(record))

    def holds(self, name: str) -> bool:
        """Whether private inputs, or a guess at some, are stored under this name."""
        try:
            path = Artifacts(self.path / ARTIFACTS).path(name)
        except UnreadableFile:
            return False
        return self.private and path not in self.damaged and path.is_file()

    def _read_private(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        return self._read(name) if self.private else ({}, {})

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        artifacts = Artifacts(self.path / ARTIFACTS, self.key)
        try:
            if artifacts.path(name) in self.damaged:
                return {}, {}
            return artifacts.read(name)
        except UnreadableFile:
            return {}, {}


def _require_batch(record: Record, tensor: Tensor | None) -> Tensor | None:
    """Return a tensor with one row per person; None for any other, which no audit writes."""
    if tensor is None or tensor.ndim < 2 or tensor.numel() == 0 or tensor.is_complex():
        return None
    return tensor if len(tensor) == record.batch_size else None


def read_about(path: Path) -> dict[str, str]:
    """Read title and spec of an audit, whatever became of its records."""
    require_plain(path)
    with closing(Database(path / DATABASE, read_only=True)) as database:
        return {"title": path.name, "spec": "", **database.about()}


def _read_environment(text: str) -> dict[str, Any]:
    found = parse_json(text, "the environment")
    if not isinstance(found, dict):
        raise UnreadableFile("expected the environment of an audit as names and values")
    return found


def load_audit(path: Path | str) -> AuditResult:
    """Read the directory of an audit, without changing anything in it.

    Args:
        path: What `seepage audit --out` wrote.

    Raises:
        DataNotFound: If there is no audit.
        InvalidValue: If links or devices are in it.
        UnreadableFile: If its database is damaged, of another format, or no audit's; or if it is
            encrypted and SEEPAGE_KEY_FILE does not name its key.
    """
    path = Path(path)
    require_plain(path)
    with closing(Database(path / DATABASE, read_only=True)) as database:
        about, planned, records = database.about(), database.planned(), database.records()
        key = open_key(path, about)
        private = database.keeps_private()
        written = {k: v for k, v in artifact_names(database.files()).items() if v}
    artifacts = Artifacts(path / ARTIFACTS)
    return AuditResult(
        path=path,
        title=about.get("title", path.name),
        spec=about.get("spec", ""),
        environment=_read_environment(about.get("environment", "{}")),
        planned=planned,
        records=join_controls(record for record in records if record.bound is None),
        bounds=tuple(record for record in records if record.bound is not None),
        controls=tuple(record for record in records if record.control_kind),
        damaged=tuple(artifacts.path(name) for name in artifacts.find_damaged(written)),
        private=private,
        key=key,
    )
