"""Reports of audits: tables, contact sheets, HTML pages, and files for other programs."""

import warnings
from collections.abc import Iterable
from typing import Any

from seepage.audit._words import decibels, defense_words
from seepage.audit.results import Level, Result, Results
from seepage.audit.results._amount import amounts, most
from seepage.audit.results._intervals import (
    Interval,
    mean_interval,
    median_interval,
    share_interval,
    share_not_ruled_out,
)
from seepage.report._change import Change, Direction, changes, comparison_verdict, shifts
from seepage.report._contact_sheet import save_contact_sheet
from seepage.report._contradiction import Contradiction, contradictions
from seepage.report._exports import (
    as_csv,
    as_json,
    as_parquet,
    change_rows,
    flat_bounds,
    labelled_record,
    result_rows,
)
from seepage.report._finding import Verdict
from seepage.report._headroom import Headroom, explain_silence, headrooms, read_headroom
from seepage.report._summary import Row, summarise
from seepage.report._terminal_tables import bound_table, change_table, leak_table
from seepage.report._unscored import inapplicable, missing, unscored
from seepage.report._verdict import audit_verdict, verdict
from seepage.report._written_tables import (
    audit_markdown,
    comparison_markdown,
    markdown_table,
    markdown_words,
)
from seepage.report.page._audit_page import audit_page
from seepage.report.page._several_audits import comparison_page

__all__ = [
    "Change",
    "Contradiction",
    "Direction",
    "Headroom",
    "Interval",
    "Level",
    "Row",
    "Verdict",
    "amounts",
    "as_csv",
    "as_json",
    "as_parquet",
    "audit_markdown",
    "audit_page",
    "audit_verdict",
    "bound_table",
    "change_rows",
    "change_table",
    "changes",
    "comparison_markdown",
    "comparison_page",
    "comparison_verdict",
    "contradictions",
    "decibels",
    "defense_words",
    "explain_silence",
    "flat_bounds",
    "headrooms",
    "inapplicable",
    "labelled_record",
    "leak_table",
    "markdown_table",
    "markdown_words",
    "mean_interval",
    "median_interval",
    "missing",
    "most",
    "read_headroom",
    "result_rows",
    "save_contact_sheet",
    "share_interval",
    "share_not_ruled_out",
    "shifts",
    "summarise",
    "unscored",
    "verdict",
]


def _strongest(tried: Iterable[Result]) -> dict[tuple[str, int], Result]:
    return {row.person: row for row in Results(tried).strongest()}


# By its old name: what to write instead, and what does the same.
_OLD = {
    "Attempt": ("seepage.audit.results.Result", Result),
    "attempts": ("seepage.audit.results.Results.of", Results.of),
    "silences": ("explain_silence", explain_silence),
    "strongest": ("seepage.audit.results.Results.strongest", _strongest),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Return what an older version called by another name, with a warning."""
    if name not in _OLD:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new, found = _OLD[name]
    warnings.warn(f"seepage.report.{name} is now {new}", DeprecationWarning, stacklevel=2)
    return found
