"""What was asked for on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seepage.audit import Gate
from seepage.audit.database import DATABASE
from seepage.cli.captured import CaptureRequest
from seepage.core.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `seepage audit`.

    Args:
        spec: The file; None takes the bundled quickstart, or the spec of a resumed audit.
        out: The directory.
        device: Where the attacks run.
        executor: "local" or "ray".
        workers: Processes; None takes one, or what a cluster has.
        gates: What must not leak.
        resume: Go on with the audit in `out`, if there is one.
        retry_failed: Run the cases again that gave no result.
        overwrite: Replace the audit in `out`.
        dry_run: Run nothing; say what would run and for how long.
        plain: Lines for a log instead of a bar.
        quiet: Only the result.
        command: What goes on with it after an interrupt; `seepage audit ... --resume` if None.
        capture: A captured update instead of a spec.
    """

    spec: Path | None
    out: Path
    device: str
    executor: str
    workers: int | None
    gates: tuple[Gate, ...]
    resume: bool
    retry_failed: bool
    overwrite: bool
    dry_run: bool
    plain: bool
    quiet: bool
    command: str | None = None
    capture: CaptureRequest | None = None

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if self.resume and self.overwrite:
            raise InvalidValue("expected --resume or --overwrite, got both; choose one")
        if self.spec is not None and self.capture is not None:
            raise InvalidValue("expected a spec or --capture, got both; leave one out")
        if self.retry_failed and not self.resume:
            raise InvalidValue("--retry-failed goes with --resume, which is not given")

    @property
    def again(self) -> str:
        """The command that goes on with what was interrupted."""
        spec = f" {self.spec}" if self.spec else ""
        return self.command or f"seepage audit{spec} --out {self.out} --resume"

    @property
    def resumes(self) -> bool:
        """Whether there is an audit to go on with."""
        return self.resume and (self.out / DATABASE).is_file()
