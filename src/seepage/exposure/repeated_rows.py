"""Layers with many rows that are one row repeated, as those that sort inputs into bins have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core import Rng, Task
from seepage.core.digest import digest

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# In fewer dimensions, directions coincide by chance.
DIMENSIONS = 16
# Rows are compared with so many of them, so many at a time.
PIVOTS, HELD = 512, 64
FEWEST_ROWS = 4
# A cosine, the share of rows that nearly no training brings so near to one row, and how many such
# rows are enough to sort inputs into bins, however many others there are.
REPEATED = ((0.999, 0.1, 16.0), (0.9, 0.3, math.inf))
# Entries are also compared cut off at this multiple of the median entry of their row.
LARGEST_ENTRY = 3.0


@dataclass(frozen=True, eq=False)
class _LayerRows:
    """The weights of a layer as a matrix `(rows, entries)`, and the bias, without rows of zeros."""

    name: str
    convolutional: bool
    matrix: Tensor
    bias: Tensor | None


def list_rows(task: Task) -> Iterator[_LayerRows]:
    """Every linear layer and convolution of a network."""
    for name, module in task.model.named_modules():
        if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            matrix = module.weight.detach().flatten(1)
            # Below the smallest normal number rounding decides the direction. How large other rows
            # are must not matter: one huge row would hide all others.
            alive = matrix.abs().amax(1) >= torch.finfo(matrix.dtype).tiny
            bias = None if module.bias is None else module.bias.detach()[alive]
            yield _LayerRows(name, isinstance(module, CONVOLUTIONS), matrix[alive], bias)


@dataclass(frozen=True)
class _RepeatedRows:
    """How many rows of a layer are one row up to scale, and whether their biases make bins."""

    count: int
    is_bins: bool


def find_repeated_rows(rows: _LayerRows) -> _RepeatedRows | None:
    """The group of parallel rows that says most: bins before rows that only repeat; None if few.

    Example:
        >>> biases = torch.linspace(-1.0, 1.0, 20)
        >>> find_repeated_rows(_LayerRows("bins", False, torch.ones(20, 30), biases))
        _RepeatedRows(count=20, is_bins=True)
    """
    found = list[_RepeatedRows]()
    for directions in (rows.matrix, _cut_entries(rows.matrix)):
        groups = _parallel_rows(directions, [cosine for cosine, _, _ in REPEATED])
        for group, (_, share, enough) in zip(groups, REPEATED, strict=True):
            fewest = max(FEWEST_ROWS, share * len(rows.matrix))
            cuts = 0 if rows.bias is None else _count_cuts(rows.matrix[group], rows.bias[group])
            is_bins = rows.bias is not None and cuts >= min(fewest, enough)
            if is_bins or len(group) >= fewest:
                found.append(_RepeatedRows(len(group), is_bins))
    return max(found, key=lambda one: one.is_bins, default=None)


def _cut_entries(matrix: Tensor) -> Tensor:
    """The rows with no entry above a multiple of the median of those that are not zero."""
    size = matrix.double().abs()
    median = torch.where(size > 0, size, torch.nan).nanmedian(dim=1, keepdim=True).values
    return matrix.sign() * torch.minimum(size, LARGEST_ENTRY * median)


def _parallel_rows(matrix: Tensor, cosines: Sequence[float]) -> list[Tensor]:
    """For each cosine, the numbers of the most rows that are so near to one row, up to sign.

    Rows are compared with some of them. Which these are depends on the weights, so that nobody can
    place rows around them.
    """
    if matrix.shape[1] < DIMENSIONS or len(matrix) < FEWEST_ROWS:
        return [torch.empty(0, dtype=torch.long)] * len(cosines)
    # `normalize` alone would not make rows of tiny entries unit vectors.
    scaled = matrix.double() / matrix.double().abs().amax(1, keepdim=True)
    unit = torch.nn.functional.normalize(scaled, dim=1).float()
    chosen = Rng(0).fork("pivots", digest(matrix)).permutation(len(unit))[:PIVOTS]
    best = [torch.zeros(len(unit), dtype=torch.bool, device=unit.device)] * len(cosines)
    for part in torch.split(unit[chosen.to(unit.device)], HELD):
        near = (part @ unit.T).abs()
        for number, cosine in enumerate(cosines):
            alike = near > cosine
            most = alike[alike.sum(1).argmax()]
            best[number] = max(best[number], most, key=lambda rows: int(rows.sum()))
    return [rows.nonzero()[:, 0] for rows in best]


def _count_cuts(matrix: Tensor, bias: Tensor) -> int:
    """At how many different places parallel rows cut their common direction."""
    if not len(matrix):
        return 0
    wide = matrix.double()
    side = (wide @ wide[0]).sign()
    cuts = (side * bias.double() / wide.norm(dim=1)).sort().values
    spread = cuts[-1] - cuts[0]
    return 1 + int((cuts.diff() > 1e-9 * spread).sum())
