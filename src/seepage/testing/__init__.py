"""Public contract tests: run them on your own attacks, defenses and metrics.

Example:
    >>> from seepage.defenses import Clip
    >>> check_defense(Clip(1.0))
"""

import warnings
from collections.abc import Callable

from seepage.testing._contract import (
    ContractError,
    check_active_attack,
    check_aggregation,
    check_attack,
    check_defense,
    check_input_defense,
    check_knowledge,
    check_metric,
)

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


def __getattr__(name: str) -> Callable[..., None]:
    """Keep the old name of `check_input_defense` for one release."""
    if name != "check_preparation":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn("check_preparation is now check_input_defense", DeprecationWarning, stacklevel=2)
    return check_input_defense
