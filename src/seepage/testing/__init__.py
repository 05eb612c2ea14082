"""Public contract tests: run them on your own attacks, defenses and metrics.

Example:
    >>> from seepage.defenses import Clip
    >>> check_defense(Clip(1.0))
"""

from seepage.testing.active_attack import check_active_attack
from seepage.testing.attack import check_attack, check_knowledge
from seepage.testing.defense import check_defense
from seepage.testing.metric import check_metric
from seepage.testing.preparation import check_aggregation, check_preparation
from seepage.testing.violation import ContractError

__all__ = [
    "ContractError",
    "check_active_attack",
    "check_aggregation",
    "check_attack",
    "check_defense",
    "check_knowledge",
    "check_metric",
    "check_preparation",
]
