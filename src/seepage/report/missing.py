"""What an audit lacks, in one sentence."""

from __future__ import annotations

from seepage.audit import AuditResult
from seepage.report.words import counted, enumerated


def missing(audit: AuditResult) -> str | None:
    """Say what is not there yet, failed or cannot be read; None if nothing is."""
    every = (*audit.records, *audit.bounds)
    left = len(audit.planned) - len(every)
    failed = sum(record.error is not None for record in every)
    unscored = sum(
        value is None for record in audit.records for value in record.scores.get("psnr", ())
    )
    lacks = [
        f"{counted(left, 'case')} of {len(audit.planned)} not run yet" if left > 0 else "",
        f"{counted(failed, 'case')} failed" if failed else "",
        f"{counted(unscored, 'guess', 'guesses')} not finite" if unscored else "",
        f"{counted(len(audit.damaged), 'file')} of tensors damaged" if audit.damaged else "",
    ]
    said = [lack for lack in lacks if lack]
    return f"Not complete: {enumerated(said)}." if said else None
