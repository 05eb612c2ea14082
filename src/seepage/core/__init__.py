"""Nouns and protocols: what flows through the program, and the seams it flows past."""

from seepage.core.batch import Batch
from seepage.core.bound import BoundValue
from seepage.core.domain import Domain
from seepage.core.lesson import Lesson, Mixing
from seepage.core.observation import Observation, Simulate, Statistics
from seepage.core.paired import Paired
from seepage.core.protocols import (
    ActiveAttack,
    Aggregation,
    Attack,
    Defense,
    LocalComputation,
    Metric,
    Preparation,
    Protection,
    SideBySide,
)
from seepage.core.reconstruction import Certificate, Reconstruction, Trace
from seepage.core.rng import Rng, rng
from seepage.core.task import Task, cross_entropy
from seepage.core.update import Update

__all__ = [
    "ActiveAttack",
    "Aggregation",
    "Attack",
    "Batch",
    "BoundValue",
    "Certificate",
    "Defense",
    "Domain",
    "Lesson",
    "LocalComputation",
    "Metric",
    "Mixing",
    "Observation",
    "Paired",
    "Preparation",
    "Protection",
    "Reconstruction",
    "Rng",
    "SideBySide",
    "Simulate",
    "Statistics",
    "Task",
    "Trace",
    "Update",
    "cross_entropy",
    "rng",
]
