"""Audits: run attacks on all combinations of a spec, and keep a record of each case.

Its files, in the order in which an audit passes through them:

    _spec_text, _spec_entries, _spec   the text of a spec, its entries, and all that it combines
    _targets, _captured_data           whose data is attacked, and how guesses are scored
    _grid, _case                       every combination, and what decides the result of one
    _plan, _claims, _folder, _store    what is on disk, who works there, and writing to it
    _run_case, _workers, _ray          one case, many in processes, many on a cluster
    _run_spec                          a whole audit
    _record, _audit_result, results    one result, all that there are, and what they show
    _words, _choices, _evidence        labels; gates and choosing a defense; files for a dossier
"""

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
from seepage.audit._ray import RayCluster
from seepage.audit._record import Ceiling, Outcome, Record
from seepage.audit._run_case import AnyCase, Executor, run_case, serial, side_by_side
from seepage.audit._run_spec import environment, run
from seepage.audit._spec import Part, Spec, build_spec, load_spec
from seepage.audit._spec_text import QUICKSTART, SpecSource
from seepage.audit._store import AuditStore
from seepage.audit._targets import Target, select_targets
from seepage.audit._workers import Pool
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
