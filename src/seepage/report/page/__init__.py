"""The report as one self-contained HTML page: a module per section, and the parts they share."""

from seepage.report.page.audit_page import audit_page
from seepage.report.page.bounds import BoundRow
from seepage.report.page.comparison_page import comparison_page
from seepage.report.page.tradeoff import Choice, pareto_front

__all__ = ["BoundRow", "Choice", "audit_page", "comparison_page", "pareto_front"]
