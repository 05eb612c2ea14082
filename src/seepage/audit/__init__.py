"""The grid, the record and where records are kept; the executor is passed in."""

from seepage.audit.audit import Audit, serial
from seepage.audit.case import Case
from seepage.audit.directory import AuditDirectory
from seepage.audit.environment import environment
from seepage.audit.record import Record
from seepage.audit.run import Outcome, run_case
from seepage.audit.spec import Part, Spec, load_spec
from seepage.audit.victims import Victims, victims

__all__ = [
    "Audit",
    "AuditDirectory",
    "Case",
    "Outcome",
    "Part",
    "Record",
    "Spec",
    "Victims",
    "environment",
    "load_spec",
    "run_case",
    "serial",
    "victims",
]
