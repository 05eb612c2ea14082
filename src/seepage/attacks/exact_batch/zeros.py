"""Where a direction is zero, and the multiple of a person that makes most of it so."""

from __future__ import annotations

from torch import Tensor

from seepage.attacks.exact_batch.sparse_descent import unit

# The share of a person's active neurons, at least, at which another is silent.
_AGREEING = 0.05


def silent_at(rows: Tensor, directions: Tensor, tolerance: float) -> Tensor:
    """Which neurons `(N, k)` each direction is zero at, relative to where it is largest."""
    size = (directions @ rows.T).abs()
    silent: Tensor = size <= tolerance * size.amax(1, keepdim=True)
    return silent


def share(silent: Tensor) -> Tensor:
    """The share of neurons that is silent, `(N,)`."""
    return silent.double().mean(1)


def lifted(rows: Tensor, directions: Tensor, person: Tensor) -> Tensor:
    """Add the multiple of a person that makes most entries zero, to each direction `(N, B)`.

    The wanted t is the one on which neurons agree: the middle of the shortest interval that holds
    a given share of -d_j(q) / d_j(p).

    Args:
        rows: `(k, B)`, of neurons active for the person.
        directions: Known but for the multiple.
        person: `(B,)`.
    """
    agreeing = max(4, int(_AGREEING * len(rows)))
    if not len(directions) or len(rows) <= agreeing:
        return directions
    wanted = (-(directions @ rows.T) / (rows @ person)).sort(1).values
    lengths = wanted[:, agreeing:] - wanted[:, :-agreeing]
    middle = lengths.argmin(1, keepdim=True) + agreeing // 2
    return unit(directions + wanted.gather(1, middle) * person)
