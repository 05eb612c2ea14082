"""The weight matrices of a network, one row for each thing a layer measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from seepage.core import Task

KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Rows shorter than this, relative to the longest, are dead and point nowhere.
DEAD = 1e-6


@dataclass(frozen=True, eq=False)
class Rows:
    """A layer as a matrix.

    Args:
        name: Of the module.
        convolutional: Whether its weights are shared between positions.
        matrix: `(rows, entries)`, without the rows that are dead.
        bias: Of those rows, or None.
    """

    name: str
    convolutional: bool
    matrix: Tensor
    bias: Tensor | None


def weight_rows(task: Task) -> Iterator[Rows]:
    """Every linear layer and convolution of a network."""
    for name, module in task.model.named_modules():
        if isinstance(module, KINDS):
            matrix = module.weight.detach().flatten(1)
            norms = matrix.norm(dim=1)
            alive = norms > DEAD * norms.max()
            bias = None if module.bias is None else module.bias.detach()[alive]
            convolutional = not isinstance(module, nn.Linear)
            yield Rows(name, convolutional, matrix[alive], bias)
