"""Table 1 of Liu et al.: how errors grow behind each defense of a two-layer network."""

from __future__ import annotations

import math
from dataclasses import dataclass

from seepage.core.errors import InvalidValue

ASSUMPTIONS = (
    "up to constants and logarithms: an order of magnitude, not a number to compare attacks with",
    "with high probability over the weights",
    "f(x) = sum_j a_j s(w_j x) with a_j ~ N(0, 1/m^2), w_j ~ N(0, I), and the square loss",
    "inputs of norm 1, labels +1 or -1, the gradient summed over the batch",
    "the activation has bounded first and second derivatives",
)
UPPER = (
    "the tensor attack of Wang et al. reaches it: independent inputs, B^4 up to order d, and m "
    "of order d or more"
)
LOWER = "no attack is closer at the worst inputs; for unbiased ones"


@dataclass(frozen=True)
class Orders:
    """Orders of the error sqrt(mean_i ||guess_i - x_i||^2) for inputs of norm 1.

    Args:
        upper: Of what the tensor attack reaches; None where nothing is known.
        lower: Of what no attack gets below; zero without noise.
        assumptions: Under which they hold.
    """

    upper: float | None
    lower: float
    assumptions: tuple[str, ...]


def two_layer_orders(
    *,
    batch: int,
    inputs: int,
    width: int,
    std: float = 0.0,
    added: float = 0.0,
    clipped: float = 1.0,
    dropped: float = 0.0,
    pruned: float | None = None,
) -> Orders:
    """Table 1, every column by its own option.

        upper = (B + sigma_0 c) sqrt(d / ((1 - p) m)),            c = max(1, ||G|| / C)
        lower = sigma c sqrt(d / ((1 - p) (1 - p^) m))

    No defense and local aggregation leave every option at its default, and secure aggregation
    counts the examples of all clients. Pruning has no known upper bound.

    Args:
        batch: Number B of examples.
        inputs: Their dimension d.
        width: Number m of hidden units.
        std: Noise sigma the update is observed with.
        added: Noise sigma_0 that the defense adds; part of what it is observed with.
        clipped: ||G|| / C; below 1 nothing is clipped.
        dropped: Probability p of an entry being dropped.
        pruned: Share p^ of ||J||_F^2 in the entries that are pruned.

    Example:
        >>> two_layer_orders(batch=4, inputs=100, width=10_000, std=0.5).lower
        0.05
        >>> two_layer_orders(batch=4, inputs=100, width=10_000, added=2.0, clipped=2.0).upper
        0.8
        >>> two_layer_orders(batch=4, inputs=100, width=10_000, pruned=0.5).upper is None
        True

    References:
        Liu et al., 2024, Table 1 (liu2024systematic); Wang et al., 2023 (wang2023reconstructing)
    """
    if min(batch, inputs, width) < 1:
        raise InvalidValue(
            f"expected batch, inputs and width >= 1, got {batch!r}, {inputs!r} and {width!r}"
        )
    if not (std >= 0 and added >= 0 and clipped >= 0):
        raise InvalidValue(
            f"expected std, added and clipped >= 0, got {std!r}, {added!r} and {clipped!r}"
        )
    if not (0 <= dropped < 1 and 0 <= (pruned or 0) < 1):
        raise InvalidValue(f"expected dropped and pruned in [0, 1), got {dropped!r} and {pruned!r}")
    stretched = max(1.0, clipped)
    scale = math.sqrt(inputs / ((1 - dropped) * width))
    upper = None if pruned is not None else (batch + added * stretched) * scale
    lower = max(std, added) * stretched * scale / math.sqrt(1 - (pruned or 0))
    return Orders(upper, lower, (*ASSUMPTIONS, UPPER, LOWER))
