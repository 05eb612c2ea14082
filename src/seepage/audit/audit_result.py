"""Reading an audit: finished, still running, or broken off."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from seepage.audit.artifacts import SUFFIX, Artifacts
from seepage.audit.database import DATABASE, Database, Planned
from seepage.audit.record import Outcome, Record, unpack_words
from seepage.core.errors import UnreadableFile

ARTIFACTS = "artifacts"


def artifact_names(files: Iterable[str]) -> list[str]:
    """The names of the artifacts among the files of an audit."""
    start = f"{ARTIFACTS}/"
    return [file[len(start) :].removesuffix(SUFFIX) for file in files if file.startswith(start)]


@dataclass(frozen=True)
class AuditResult:
    """What an audit has found so far; tensors are read when they are asked for.

    Args:
        path: The directory.
        title: What the audit is called.
        spec: Text of its spec.
        environment: Versions, platform and device, as plain data.
        planned: Every case, in order.
        records: Every result of an attack there is, in the same order.
        bounds: Every bound there is, likewise.
        damaged: Files of tensors that are truncated; what they held reads as None.
    """

    path: Path
    title: str
    spec: str
    environment: Mapping[str, Any]
    planned: tuple[Planned, ...]
    records: tuple[Record, ...]
    bounds: tuple[Record, ...] = ()
    damaged: tuple[Path, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether every case has a record."""
        return len(self.records) + len(self.bounds) == len(self.planned)

    def truth(self, record: Record) -> Tensor | None:
        """The private inputs `(B, ...)`; None where they are not kept."""
        return self._tensor(record.truth, "inputs")

    def guess(self, record: Record) -> Tensor | None:
        """What came back `(B, ...)`, in the order of the people; None where nothing did."""
        return self._tensor(record.case, "guess")

    def truth_said(self, record: Record) -> tuple[tuple[str, ...], ...]:
        """The private inputs in words; nothing where they are not read or not kept."""
        return self._said(record.truth)

    def guess_said(self, record: Record) -> tuple[tuple[str, ...], ...]:
        """What came back in words; nothing where inputs are not read or nothing did."""
        return self._said(record.case)

    def objective(self, record: Record) -> Tensor | None:
        """The objective at the start and after each step `(T,)`; None for closed forms."""
        return self._tensor(record.case, "objective")

    def outcomes(self) -> Iterator[Outcome]:
        """Every record whose private inputs or guesses are kept, with the tensors behind it."""
        for record in self.records:
            truth, guess = self.truth(record), self.guess(record)
            objective = self.objective(record)
            values = () if objective is None else tuple(objective.tolist())
            # Without scores there was no truth; with scores it is missing.
            if truth is not None or (guess is not None and not record.scores):
                yield Outcome(record, truth, guess, values, self.guess_said(record))

    def _said(self, name: str) -> tuple[tuple[str, ...], ...]:
        try:
            return unpack_words(Artifacts(self.path / ARTIFACTS).words(name))
        except UnreadableFile:  # named in `damaged`
            return ()

    def _tensor(self, name: str, key: str) -> Tensor | None:
        try:
            return (Artifacts(self.path / ARTIFACTS).read(name) or {}).get(key)
        except UnreadableFile:  # named in `damaged`
            return None


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
        records=tuple(record for record in records if record.bound is None),
        bounds=tuple(record for record in records if record.bound is not None),
        damaged=tuple(artifacts.path(name) for name in artifacts.damaged(names)),
    )
