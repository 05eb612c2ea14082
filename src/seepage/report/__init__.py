"""Reports of audits: tables, contact sheets, HTML pages, and files for other programs."""

from seepage.report.amount import amounts, most
from seepage.report.change import Change, Direction, changes, comparison_verdict, shifts
from seepage.report.contact_sheet import save_contact_sheet
from seepage.report.contradiction import Contradiction, contradictions
from seepage.report.flat_rows import (
    as_csv,
    as_json,
    as_parquet,
    change_rows,
    flat_bounds,
    labelled_record,
    result_rows,
)
from seepage.report.headroom import Headroom, headrooms, read_headroom, silences
from seepage.report.intervals import (
    Interval,
    mean_interval,
    median_interval,
    share_interval,
    share_not_ruled_out,
)
from seepage.report.leak import Attempt, Level, Verdict, attempts, strongest
from seepage.report.leak_table import leak_table
from seepage.report.page.audit_page import audit_page
from seepage.report.page.comparison_page import comparison_page
from seepage.report.summary import Row, summarise
from seepage.report.tables import (
    audit_markdown,
    bound_table,
    change_table,
    comparison_markdown,
    markdown_table,
    markdown_words,
)
from seepage.report.unscored import inapplicable, missing, unscored
from seepage.report.verdict import audit_verdict, verdict
from seepage.report.words import decibels, defense_words

__all__ = [
    "Attempt",
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
    "attempts",
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
    "silences",
    "strongest",
    "summarise",
    "unscored",
    "verdict",
]
