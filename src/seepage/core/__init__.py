"""The types that all parts share, and the protocols that attacks, defenses and metrics follow."""

from seepage.core.attack import AttackWrapper, BaseAttack, Prepared, SideBySideAttack
from seepage.core.batch import Batch
from seepage.core.domain import Domain
from seepage.core.loss import cross_entropy
from seepage.core.observation import (
    Mixing,
    Observation,
    OwnSimulation,
    PreparedBatch,
    Simulate,
    Statistics,
)
from seepage.core.protocols import (
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
from seepage.core.reconstruction import Certificate, Paired, Reconstruction, Trace
from seepage.core.rng import Rng, rng
from seepage.core.task import Task
from seepage.core.update import Update

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
    "rng",
]
