"""What lies in the directory of an audit, and making room for another."""

from __future__ import annotations

from pathlib import Path

from seepage.audit.artifacts import SUFFIX
from seepage.audit.database import DATABASE
from seepage.audit.lock import LOCK
from seepage.audit.result import ARTIFACTS
from seepage.core.errors import InvalidValue

SPEC = "spec.toml"
ENVIRONMENT = "environment.json"
SHEET = "contact_sheet.png"
PAGE = "report.html"
CHECKPOINTS = "checkpoints"

PARTIAL = ".partial"
_REPLACED = (
    *(f"{DATABASE}{end}" for end in ("", "-wal", "-shm")),
    Path(DATABASE).with_suffix(PARTIAL).name,
    SPEC,
    ENVIRONMENT,
    SHEET,
    PAGE,
)


def require_room(path: Path, overwrite: bool) -> None:
    """Refuse a place that holds an audit, unless it may be replaced, or anything else."""
    there = {file.name for file in path.iterdir()} if path.is_dir() else set()
    if DATABASE in there and not overwrite:
        raise InvalidValue(
            f"{str(path)!r} already holds an audit; --resume it, --overwrite it, or choose "
            "another --out"
        )
    # What is left where an audit was killed before it began is ours as well.
    ours = path.is_dir() and there <= {*_REPLACED, LOCK}
    if path.exists() and DATABASE not in there and not ours:
        raise InvalidValue(
            f"expected --out to name a new directory, but {str(path)!r} holds something else"
        )


def clear(path: Path) -> None:
    """Remove an earlier audit, and only that: whatever else somebody keeps there is theirs."""
    for name in _REPLACED:
        (path / name).unlink(missing_ok=True)
    for folder in (path / ARTIFACTS, path / CHECKPOINTS):
        for file in folder.glob("*"):
            if file.suffix in (SUFFIX, PARTIAL):
                file.unlink()
