"""Does a linear system leave its unknown any freedom?"""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.linear_systems.least_squares import minimum_norm
from seepage.attacks.linear_systems.operator import LinearSystem, covered
from seepage.core.rng import Rng

_TOLERANCE = 1e-3


def determined(system: LinearSystem) -> Tensor:
    """Whether u x = v has at most one solution, which is whether u has full column rank, `(...)`.

    If anything lies outside the row space of u, a random vector r does, in part; so solving
    u x = u r and getting r back shows that nothing does.
    """
    axes = tuple(range(-len(system.layer.output_shape), 0))
    alive = system.delta.abs().amax(axes) > 0
    if not system.layer.convolutional:
        return alive
    rows, columns = system.shape
    if rows < columns or covered(system.layer) < columns:
        return torch.zeros_like(alive)
    r = Rng(0).normal((columns,), like=system.delta).expand(*alive.shape, columns)
    lost = torch.linalg.vector_norm(minimum_norm(system, system.apply(r)) - r, dim=-1)
    nothing: Tensor = lost < _TOLERANCE * torch.linalg.vector_norm(r, dim=-1)
    return nothing
