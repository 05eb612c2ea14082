"""Rows that repeat each other, and bins made of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seepage.core import Task
from seepage.vetting.verdict import Finding
from seepage.vetting.weights import Rows, weight_rows

# Directions in fewer dimensions coincide by chance.
DIMENSIONS = 16
PARALLEL = 0.999
PIVOTS = 64
FEWEST, SHARE = 4, 0.1


def repeated_rows(task: Task) -> Iterator[Finding]:
    """Layers of which many rows are the same up to scale: they measure one thing many times.

    With biases that differ, they sort inputs into bins, and differences of neighbouring rows of
    the gradient are single inputs.

    References:
        Fowl et al., 2022 (fowl2022robbing)
    """
    for rows in weight_rows(task):
        group = parallel_rows(rows.matrix)
        if len(group) >= max(FEWEST, SHARE * len(rows.matrix)):
            yield _finding(rows, group)


def parallel_rows(matrix: Tensor) -> Tensor:
    """Numbers of the rows in the largest group that points one way, as far as pivots show it."""
    if matrix.shape[1] < DIMENSIONS or len(matrix) < FEWEST:
        return torch.empty(0, dtype=torch.long)
    unit = torch.nn.functional.normalize(matrix.double(), dim=1)
    chosen = torch.linspace(0, len(unit) - 1, min(PIVOTS, len(unit))).round().long()
    pivots = unit[chosen.to(unit.device)]
    alike = (pivots @ unit.T).abs() > PARALLEL
    best = alike[alike.sum(1).argmax()]
    return best.nonzero()[:, 0]


def _finding(rows: Rows, group: Tensor) -> Finding:
    of_all = f"{len(group)} of the {len(rows.matrix)} rows of {rows.name!r} are one row repeated"
    if rows.bias is None or not _bins(rows.matrix[group], rows.bias[group]):
        reason = f"{of_all} up to scale, which training does not lead to"
        return Finding("repeated rows", "suspicious", rows.name, reason)
    reason = (
        f"{of_all}, with biases that sort inputs into bins; what a bin holds alone stands in the "
        "gradient as it is"
    )
    return Finding("bins of biases", "malicious", rows.name, reason)


def _bins(matrix: Tensor, bias: Tensor) -> bool:
    """Whether the rows cut their one direction at different places."""
    cuts = (bias / matrix.norm(dim=1)).sort().values
    spread = cuts[-1] - cuts[0]
    return bool(spread > 0) and bool((cuts.diff() > 1e-9 * spread).all())
