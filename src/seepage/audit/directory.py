"""The directory of an audit: each result is on disk as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from seepage.audit.record import Record
from seepage.core.errors import InvalidValue, UnreadableFile

RECORDS = "records.jsonl"
SHEET = "contact_sheet.png"
OURS = ("spec.toml", "environment.json", RECORDS, SHEET)


class AuditDirectory:
    """Holds `spec.toml`, `environment.json`, `records.jsonl` and what the report adds.

    Args:
        path: Where; it must not exist yet or be empty, unless `overwrite`.
        spec: Text of the spec.
        environment: As plain data.
        overwrite: Replace an earlier audit; a directory that is not one is never touched.
    """

    def __init__(
        self, path: Path, *, spec: str, environment: Mapping[str, object], overwrite: bool = False
    ) -> None:
        """Create the directory."""
        self.path = path
        try:
            _make_room(path, overwrite)
            path.mkdir(parents=True, exist_ok=True)
            (path / "spec.toml").write_text(spec, encoding="utf-8")
            (path / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")
            (path / RECORDS).touch()
        except OSError as error:
            raise UnreadableFile(
                f"cannot write the audit to {str(path)!r}: {error.strerror}; choose another --out"
            ) from error

    def add(self, record: Record) -> None:
        """Append one record, complete or not at all."""
        line = json.dumps(record.plain(), allow_nan=False) + "\n"
        try:
            with (self.path / RECORDS).open("a", encoding="utf-8") as lines:
                lines.write(line)
        except OSError as error:
            raise UnreadableFile(
                f"cannot write to {str(self.path / RECORDS)!r}: {error.strerror}; what was "
                "written before is still there"
            ) from error


def _make_room(path: Path, overwrite: bool) -> None:
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not (path.is_dir() and (path / RECORDS).is_file()):
        raise InvalidValue(
            f"expected --out to name a new directory, but {str(path)!r} holds something else"
        )
    if not overwrite:
        raise InvalidValue(
            f"{str(path)!r} already holds an audit; choose another --out, or --overwrite it"
        )
    # Only what an audit writes: whatever else somebody keeps there is theirs.
    for name in OURS:
        (path / name).unlink(missing_ok=True)
