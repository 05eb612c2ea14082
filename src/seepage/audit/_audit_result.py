"""Reading an audit: finished, still running, or interrupted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from seepage.audit._folder import case_file, inputs_file, read_folder, require_plain
from seepage.audit._plan import Plan, Planned
from seepage.audit._record import Outcome, Record, unpack_words
from seepage.audit.results import Results
from seepage.audit.results._controls import join_controls
from seepage.core._whole_file import read_plain, unpack, unseal

_Content = tuple[dict[str, Tensor], dict[str, str]]


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
        damaged: Files that are missing or were altered. A case whose file was altered has no
            record; private inputs read as None.
        private: Whether private inputs and guesses are stored.
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
        """The results whose private inputs are missing or were altered."""
        names = {path.stem for path in self.damaged}
        return tuple(record for record in self.every_record if names & {record.case, record.truth})

    def truth(self, record: Record) -> Tensor | None:
        """The private inputs `(B, ...)`; None if they are not stored."""
        return _require_batch(record, self._read_inputs(record)[0].get("inputs"))

    def guess(self, record: Record) -> Tensor | None:
        """The guess `(B, ...)`, in the order of the examples; None if there is none."""
        return _require_batch(record, self._read_guess(record)[0].get("guess"))

    def truth_said(self, record: Record) -> tuple[tuple[str, ...], ...]:
        """The private inputs in words; empty if they are not text or tables, or not stored."""
        return unpack_words(self._read_inputs(record)[1])

    def guess_said(self, record: Record) -> tuple[tuple[str, ...], ...]:
        """The guess in words; empty if it is not text or tables, or if there is none."""
        return unpack_words(self._read_guess(record)[1])

    def objective(self, record: Record) -> Tensor | None:
        """The objective at the start and after each step `(T,)`; None for closed forms."""
        found = self._read_case(record)[0].get("objective")
        return found if found is not None and found.ndim == 1 else None

    def outcomes(self) -> Iterator[Outcome]:
        """Every record whose private inputs or guesses are stored, with its tensors."""
        for record in self.records:
            truth, guess, course = self.truth(record), self.guess(record), self.objective(record)
            objective = () if course is None else tuple(course.tolist())
            # A record without scores never had a truth; with scores, the truth is missing.
            if truth is not None or (guess is not None and not record.scores):
                yield Outcome(record, truth, guess, objective, self.guess_said(record))

    def holds_inputs(self, record: Record) -> bool:
        """Whether the private inputs of a case are stored."""
        return self.private and _is_there(inputs_file(self.path, record.truth), self.damaged)

    def holds_guess(self, record: Record) -> bool:
        """Whether a guess at them may be stored."""
        return self.private and _is_there(case_file(self.path, record.case), self.damaged)

    def _read_inputs(self, record: Record) -> _Content:
        return _read(inputs_file(self.path, record.truth)) if self.private else ({}, {})

    def _read_guess(self, record: Record) -> _Content:
        return self._read_case(record) if self.private else ({}, {})

    def _read_case(self, record: Record) -> _Content:
        return _read(case_file(self.path, record.case))


def _is_there(path: Path, damaged: tuple[Path, ...]) -> bool:
    return path not in damaged and path.is_file()


def _read(path: Path) -> _Content:
    """Read tensors and words; nothing if they are missing or were altered."""
    try:
        data = read_plain(path)
        return unpack(data)[0], unseal(data)
    except OSError:
        return {}, {}


def _require_batch(record: Record, tensor: Tensor | None) -> Tensor | None:
    """Return a tensor with one row per person; None for any other, which no audit writes."""
    if tensor is None or tensor.ndim < 2 or tensor.numel() == 0 or tensor.is_complex():
        return None
    return tensor if len(tensor) == record.batch_size else None


def load_audit(path: Path | str) -> AuditResult:
    """Read the directory of an audit, without changing anything in it.

    Args:
        path: What `seepage audit --out` wrote.

    Raises:
        DataNotFound: If there is no audit.
        InvalidValue: If links or devices are in it.
        UnreadableFile: If its plan is damaged, of another format, or no audit's.
    """
    path = Path(path)
    require_plain(path)
    plan = Plan.read(path)
    held = read_folder(path, plan)
    records = tuple(held.records.values())
    return AuditResult(
        path=path,
        title=plan.title,
        spec=plan.spec,
        environment=plan.environment,
        planned=plan.cases,
        records=join_controls(record for record in records if record.bound is None),
        bounds=tuple(record for record in records if record.bound is not None),
        controls=tuple(record for record in records if record.control_kind),
        damaged=tuple(held.damaged),
        private=plan.private,
    )
