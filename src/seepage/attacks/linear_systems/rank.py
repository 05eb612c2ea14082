"""Does a linear system leave its unknown any freedom?"""

from __future__ import annotations

import torch

from seepage.attacks.linear_systems.least_squares import minimum_norm
from seepage.attacks.linear_systems.operator import LinearSystem, covered
from seepage.core.rng import Rng

_TOLERANCE = 1e-3


def determined(system: LinearSystem) -> bool:
    """Whether u x = v has at most one solution, which is whether u has full column rank.

    If anything lies outside the row space of u, a random vector r does, in part; so solving
    u x = u r and getting r back shows that nothing does.
    """
    if not system.layer.convolutional:
        return bool(system.delta.any())
    rows, columns = system.shape
    if rows < columns or covered(system.layer) < columns:
        return False
    r = Rng(0).normal((columns,), like=system.delta)
    lost = minimum_norm(system, system.apply(r)) - r
    return float(torch.linalg.vector_norm(lost) / torch.linalg.vector_norm(r)) < _TOLERANCE
