"""The report as one self-contained HTML page: a module per section, and the parts they share."""

from seepage.report.page.audit_page import audit_page
from seepage.report.page.comparison_page import comparison_page

__all__ = ["audit_page", "comparison_page"]
