"""Public contract tests: run them on your own attacks, defenses and metrics.

Example:
    >>> from seepage.defenses import Clip
    >>> check_defense(Clip(1.0))
"""

from seepage.testing.check_attacks import check_active_attack, check_attack, check_knowledge
from seepage.testing.check_defenses import check_aggregation, check_defense, check_input_defense
from seepage.testing.check_metrics import check_metric
from seepage.testing.contract import ContractError

__all__ = [
    "ContractError",
    "check_active_attack",
    "check_aggregation",
    "check_attack",
    "check_defense",
    "check_input_defense",
    "check_knowledge",
    "check_metric",
]
