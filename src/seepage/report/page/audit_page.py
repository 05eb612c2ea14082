"""The report of one audit as a page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from seepage.audit.audit_result import AuditResult
from seepage.audit.choices import Choice
from seepage.audit.record import Record
from seepage.report.headroom import headrooms
from seepage.report.leak import Attempt, attempts
from seepage.report.page.bound_section import bound_section
from seepage.report.page.curve_sections import convergence_section, tradeoff_section
from seepage.report.page.defense_section import defense_section
from seepage.report.page.document import document, join_markup
from seepage.report.page.opening import assumptions, opening, rerun_section
from seepage.report.page.people_section import Look, Shown, pair, people_section, unscored_section
from seepage.report.page.record_section import record_section
from seepage.report.verdict import audit_verdict, missing


def audit_page(audit: AuditResult, *, choices: Sequence[Choice] = ()) -> str:
    """One self-contained HTML page; also of an audit that is running or broken.

    Args:
        audit: From `load_audit`.
        choices: What each defense costs, where utility was measured.
    """
    records = audit.records
    tried = attempts(records)
    truth = _look(audit.truth, audit.truth_said)
    guess = _look(audit.guess, audit.guess_said)
    judged = audit_verdict(audit)
    pictures = None if judged.worst is None else pair(judged.worst, truth=truth, guess=guess)
    sections = [
        people_section(tried, truth=truth, guess=guess) if tried else None,
        unscored_section(records, guess=audit.guess),
        defense_section(tried) if tried else None,
        tradeoff_section(choices),
        bound_section(headrooms(tried, audit.bounds)),
        convergence_section(tried, objective=_objective(audit)),
        record_section(records) if records else None,
        rerun_section(records, spec=audit.spec, environment=audit.environment),
    ]
    return document(
        f"{audit.title}: {judged.headline}",
        first=join_markup(
            opening(
                f"Seepage audit: {audit.title}", judged, pictures=pictures, missing=missing(audit)
            ),
            assumptions(records) if records else None,
        ),
        sections=[section for section in sections if section is not None],
    )


def _look(
    read: Callable[[Record], Tensor | None],
    said: Callable[[Record], tuple[tuple[str, ...], ...]],
) -> Look:
    def look(attempt: Attempt) -> Shown | None:
        shown = said(attempt.record) or read(attempt.record)
        return None if shown is None else shown[attempt.index]

    return look


def _objective(audit: AuditResult) -> Callable[[Attempt], Sequence[float]]:
    def objective(attempt: Attempt) -> Sequence[float]:
        values = audit.objective(attempt.record)
        return () if values is None else values.tolist()

    return objective
