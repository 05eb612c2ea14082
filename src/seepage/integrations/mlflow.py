"""MLflow: the verdict of an audit as metrics and a tag of a run, and its page as an artifact."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seepage.audit._audit_result import load_audit
from seepage.audit._folder import PAGE
from seepage.audit._record import Record
from seepage.audit.results import Level, Results
from seepage.core.errors import import_extra
from seepage.report._verdict import verdict

if TYPE_CHECKING:
    from seepage.step._step_result import StepAudit

# A tag holds so many characters on every server.
_LONGEST = 5000


def log_audit(folder: Path | str, *, step: int | None = None, page: bool = True) -> None:
    """Log an audit on disk to the active run of MLflow; one is begun if there is none.

    Metrics: `seepage.people`, and of them `seepage.identified`, `seepage.recognisable` (or worse)
    and `seepage.reconstructed`; `seepage.worst_psnr`, or of tables and texts the share that came
    back. All are counted without a defense if any case has none. Tag: `seepage.verdict`, the
    headline. Artifact: `seepage/NAME/report.html`.

    Args:
        folder: As `--out` named it.
        step: Of the training, so that MLflow draws a curve; None if there is none.
        page: Whether to send the page. It shows private inputs to everybody who may see the run.

    Raises:
        MissingExtra: If MLflow is not installed.
    """
    _log(load_audit(Path(folder)).results, step)
    if page:
        _mlflow().log_artifact(str(Path(folder) / PAGE), f"seepage/{Path(folder).name}")


def log_step(number: int, result: StepAudit, *, page: bool = True) -> None:
    """Log an audited step; for `AuditSteps(..., then=log_step)`.

    Args:
        number: The step of the training.
        result: Its audit.
        page: Whether to send the page, as for `log_audit`.
    """
    _log(result.records, number)
    if page:
        with tempfile.TemporaryDirectory() as folder:
            made = result.report(Path(folder) / "audit")
            _mlflow().log_artifact(str(made), f"seepage/step-{number:06d}")


def _log(records: Results | Sequence[Record], step: int | None) -> None:
    mlflow = _mlflow()
    results = Results.of(records)
    # As in the verdict: without a defense, or all cases if every one has some.
    people = results.bare.strongest()
    ranks = [row.level.rank for row in people]
    levels = {
        "identified": Level.singled_out,
        "recognisable": Level.recognisable,
        "reconstructed": Level.reconstructed,
    }
    metrics = {"people": float(len(people))}
    metrics |= {name: float(sum(r <= level.rank for r in ranks)) for name, level in levels.items()}
    worst = next((row.amount for row in people), None)
    if worst is not None and worst.value is not None and math.isfinite(worst.value):
        metrics[f"worst_{worst.metric}"] = worst.value
    mlflow.log_metrics({f"seepage.{name}": v for name, v in metrics.items()}, step=step)
    told = verdict(results).headline
    mlflow.set_tag("seepage.verdict", told[:_LONGEST])


def _mlflow() -> Any:  # noqa: ANN401 - a module
    return import_extra("mlflow", "mlflow", reason="this needs MLflow")
