"""The grid, the record and where records are kept; the executor is passed in."""

from seepage.audit.audit import Audit, serial
from seepage.audit.case import Case
from seepage.audit.database import Planned
from seepage.audit.environment import environment
from seepage.audit.outcome import Outcome
from seepage.audit.record import Record
from seepage.audit.result import AuditResult, load_audit
from seepage.audit.run import run_case
from seepage.audit.spec import Part, Spec, load_spec
from seepage.audit.store import AuditStore
from seepage.audit.victims import Victims, victims

__all__ = [
    "Audit",
    "AuditResult",
    "AuditStore",
    "Case",
    "Outcome",
    "Part",
    "Planned",
    "Record",
    "Spec",
    "Victims",
    "environment",
    "load_audit",
    "load_spec",
    "run_case",
    "serial",
    "victims",
]
