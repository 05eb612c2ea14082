"""The grid, the record and where records are kept; the executor is passed in."""

from seepage.audit.audit import Audit
from seepage.audit.case import Case
from seepage.audit.database import Planned
from seepage.audit.environment import environment
from seepage.audit.estimate import estimate
from seepage.audit.execution import Executor, serial, side_by_side
from seepage.audit.gate import Gate, Leak
from seepage.audit.outcome import Outcome
from seepage.audit.pool import Pool
from seepage.audit.ray_cluster import RayCluster
from seepage.audit.record import Record
from seepage.audit.result import AuditResult, load_audit
from seepage.audit.run import run_case
from seepage.audit.source import QUICKSTART, Source
from seepage.audit.spec import Part, Spec, build_spec, load_spec
from seepage.audit.store import AuditStore
from seepage.audit.victims import Victims, victims

__all__ = [
    "QUICKSTART",
    "Audit",
    "AuditResult",
    "AuditStore",
    "Case",
    "Executor",
    "Gate",
    "Leak",
    "Outcome",
    "Part",
    "Planned",
    "Pool",
    "RayCluster",
    "Record",
    "Source",
    "Spec",
    "Victims",
    "build_spec",
    "environment",
    "estimate",
    "load_audit",
    "load_spec",
    "run_case",
    "serial",
    "side_by_side",
    "victims",
]
