"""Audits: run attacks on all combinations of a spec, and keep a record of each case."""

import warnings
from typing import Any

from seepage._options import ProgressListener, RunOptions
from seepage.audit._audit_result import AuditResult, load_audit
from seepage.audit._case import BoundCase, Case
from seepage.audit._choices import (
    Breach,
    Choice,
    Gate,
    Leak,
    Leakage,
    find_breaches,
    leakages,
    pareto_front,
    ranked,
    strongest,
)
from seepage.audit._evidence import save_evidence
from seepage.audit._grid import Audit, estimate
from seepage.audit._plan import Planned
from seepage.audit._record import Ceiling, Outcome, Record
from seepage.audit._run_case import AnyCase, Executor, run_case, serial, side_by_side
from seepage.audit._run_spec import environment, run
from seepage.audit._spec import Part, Spec, build_spec, load_spec
from seepage.audit._spec_text import QUICKSTART, SpecSource
from seepage.audit._store import AuditStore
from seepage.audit._targets import Target, select_targets
from seepage.audit._workers import Pool, RayCluster
from seepage.audit.results import Level, Result, Results

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
    "Level",
    "Outcome",
    "Part",
    "Planned",
    "Pool",
    "ProgressListener",
    "RayCluster",
    "Record",
    "Result",
    "Results",
    "RunOptions",
    "Spec",
    "SpecSource",
    "Target",
    "build_spec",
    "environment",
    "estimate",
    "find_breaches",
    "leakages",
    "load_audit",
    "load_spec",
    "pareto_front",
    "ranked",
    "run",
    "run_case",
    "save_evidence",
    "select_targets",
    "serial",
    "side_by_side",
    "strongest",
]

_RENAMED = {"Victims": "Target", "victims": "select_targets"}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Return what an older version called by another name, with a warning."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = f"seepage.audit.{name} is now {_RENAMED[name]}"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return globals()[_RENAMED[name]]
