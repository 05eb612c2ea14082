"""The grid, the record and where records are kept; the executor is passed in."""

from seepage.audit.audit import Audit, serial
from seepage.audit.case import Case
from seepage.audit.choices import Choice, Leak, Leakage, leakages, pareto_front, ranked, strongest
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
    "Choice",
    "Leak",
    "Leakage",
    "Outcome",
    "Part",
    "Record",
    "Spec",
    "Victims",
    "environment",
    "leakages",
    "load_spec",
    "pareto_front",
    "ranked",
    "run_case",
    "serial",
    "strongest",
    "victims",
]
