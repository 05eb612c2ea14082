"""What an audit found, as a table: one row per case and person, judged once over all of them."""

from seepage.audit.results._result import Level, Result
from seepage.audit.results._table import Results

__all__ = ["Level", "Result", "Results"]
