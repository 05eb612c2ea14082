"""The types that all parts share, and the protocols that attacks, defenses and metrics follow."""

from seepage.core._attack import AttackWrapper, BaseAttack, Prepared, SideBySideAttack
from seepage.core._batch import Batch
from seepage.core._domain import Domain
from seepage.core._loss import cross_entropy
from seepage.core._observation import (
    Mixing,
    Observation,
    OwnSimulation,
    PreparedBatch,
    Simulate,
    Statistics,
)
from seepage.core._protocols import (
    ActiveAttack,
    Aggregation,
    Attack,
    BoundValue,
    Defense,
    InputDefense,
    LocalComputation,
    Metric,
    Protection,
    SideBySide,
)
from seepage.core._reconstruction import Certificate, Paired, Reconstruction, Trace
from seepage.core._rng import Rng, rng
from seepage.core._task import Task
from seepage.core._update import Update
from seepage.core._usable_update import require_continuous, require_usable

__all__ = [
    "ActiveAttack",
    "Aggregation",
    "Attack",
    "AttackWrapper",
    "BaseAttack",
    "Batch",
    "BoundValue",
    "Certificate",
    "Defense",
    "Domain",
    "InputDefense",
    "LocalComputation",
    "Metric",
    "Mixing",
    "Observation",
    "OwnSimulation",
    "Paired",
    "Prepared",
    "PreparedBatch",
    "Protection",
    "Reconstruction",
    "Rng",
    "SideBySide",
    "SideBySideAttack",
    "Simulate",
    "Statistics",
    "Task",
    "Trace",
    "Update",
    "cross_entropy",
    "require_continuous",
    "require_usable",
    "rng",
]
