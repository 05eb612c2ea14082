"""The grid, the record and where records are kept; the executor is passed in."""

from seepage.audit.audit import Audit
from seepage.audit.bound_case import BoundCase
from seepage.audit.case import Case
from seepage.audit.ceiling import Ceiling
from seepage.audit.choices import Choice, Leak, Leakage, leakages, pareto_front, ranked, strongest
from seepage.audit.database import Planned
from seepage.audit.environment import environment
from seepage.audit.estimate import estimate
from seepage.audit.execution import AnyCase, Executor, serial, side_by_side
from seepage.audit.gate import Breach, Gate
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
    "AnyCase",
    "Audit",
    "AuditResult",
    "AuditStore",
    "BoundCase",
    "Breach",
    "Case",
    "Ceiling",
    "Choice",
    "Executor",
    "Gate",
    "Leak",
    "Leakage",
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
    "leakages",
    "load_audit",
    "load_spec",
    "pareto_front",
    "ranked",
    "run_case",
    "serial",
    "side_by_side",
    "strongest",
    "victims",
]
