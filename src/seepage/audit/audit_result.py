"""Reading an audit: finished, still running, or interrupted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from seepage.audit.artifacts import SUFFIX, Artifacts
from seepage.audit.database import DATABASE, Database, Planned
from seepage.audit.record import Outcome, Record, join_controls, unpack_words
from seepage.core.errors import UnreadableFile

ARTIFACTS = "artifacts"


def artifact_names(files: Iterable[str]) -> list[str]:
    """Return the names of the artifacts among the files of an audit."""
    start = f"{ARTIFACTS}/"
    return [file[len(start) :].removesuffix(SUFFIX) for file in files if file.startswith(start)]


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
        damaged: Truncated files; their tensors read as None.
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

    @property
    def complete(self) -> bool:
        """Whether every case has a record."""
        every = (*self.records, *self.bounds, *self.controls)
        return len(every) == len(self.planned)

    def truth(self, record: Record) -> Tensor | None:
        """The private inputs `(B, ...)`; None if they are not stored."""
        return self._read(record.truth)[0].get("inputs")

    def guess(self, record: Record) -> Tensor | None:
        """The guess `(B, ...)`, in the order of the examples; None if there is none."""
        return self._read(record.case)[0].get("guess")

    def truth_said(self, record: Record) -> tuple[tuple[str, ...], ...]:
        """The private inputs in words; empty if they are not text or tables, or not stored."""
        return unpack_words(self._read(record.truth)[1])

    def guess_said(self, record: Record) -> tuple[tuple[str, ...], ...]:
        """The guess in words; empty if it is not text or tables, or if there is none."""
        return unpack_words(self._read(record.case)[1])

    def objective(self, record: Record) -> Tensor | None:
        """The objective at the start and after each step `(T,)`; None for closed forms."""
        return self._read(record.case)[0].get("objective")

    def outcomes(self) -> Iterator[Outcome]:
        """Every record whose private inputs or guesses are stored, with its tensors."""
        for record in self.records:
            truth, (tensors, words) = self.truth(record), self._read(record.case)
            guess = tensors.get("guess")
            objective = tensors["objective"].tolist() if "objective" in tensors else ()
            # A record without scores never had a truth; with scores, the truth is missing.
            if truth is not None or (guess is not None and not record.scores):
                yield Outcome(record, truth, guess, tuple(objective), unpack_words(words))

    def _read(self, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        try:
            return Artifacts(self.path / ARTIFACTS).read(name)
        except UnreadableFile:  # listed in `damaged`
            return {}, {}


def load_audit(path: Path | str) -> AuditResult:
    """Read the directory of an audit, without changing anything in it.

    Args:
        path: What `seepage audit --out` wrote.

    Raises:
        DataNotFound: If there is no audit.
        UnreadableFile: If its database is damaged, of another format, or no audit's.
    """
    path = Path(path)
    database = Database(path / DATABASE, read_only=True)
    try:
        about, planned, records = database.about(), database.planned(), database.records()
        names = artifact_names(database.files())
    finally:
        database.close()
    artifacts = Artifacts(path / ARTIFACTS)
    return AuditResult(
        path=path,
        title=about.get("title", path.name),
        spec=about.get("spec", ""),
        environment=json.loads(about.get("environment", "{}")),
        planned=planned,
        records=join_controls(record for record in records if record.bound is None),
        bounds=tuple(record for record in records if record.bound is not None),
        controls=tuple(record for record in records if record.control_kind),
        damaged=tuple(artifacts.path(name) for name in artifacts.find_damaged(names)),
    )
