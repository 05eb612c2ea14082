"""Undo an affine map between the input of a network and its first fully connected layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import vjp

from seepage.attacks._agreement import FLOAT32_ALONE
from seepage.attacks._jacobian import Pullback
from seepage.core import Rng, Task
from seepage.core.errors import NotApplicable
from seepage.numerics._least_squares import minimum_norm
from seepage.probing._first_layer import draw_noise, list_calls
from seepage.probing._hooks import layer_inputs

# Inputs on a line, and the largest part across it of what is affine.
_POINTS, _STRAIGHT = 5, 1e-9
# The share of what a layer read that may be left.
_SOLVED = 1e-4


@dataclass(frozen=True, eq=False)
class Front:
    """An affine map A x + c of the input, which the first fully connected layer reads.

    Batch normalisation by running statistics is one, as is another order or unit of the entries.

    Args:
        layer: Name of the layer.
        task: The network, in double precision.
    """

    layer: str
    task: Task

    def __call__(self, vector: Tensor) -> Tensor:
        """What the layer reads, `(m,)`, of a normalised input `(n,)`."""
        inputs = vector.reshape(1, *self.task.domain.shape)
        with layer_inputs(self.task.network, [self.layer]) as read:
            self.task.network(inputs)
        return read[self.layer].flatten()

    def undo(self, read: Tensor) -> Tensor:
        """The normalised input `(n,)` of which the layer reads this, by least squares.

        Where the map takes something away, as the mean, the input nearest to noise is taken.

        Raises:
            NotApplicable: There is none, so that this is not what was read of one input.
        """
        domain, wanted = self.task.domain, read.double()
        noise = domain.sample(1, rng=Rng(0).fork("front")).to(wanted)
        start = domain.normalise(noise).flatten()
        left = (wanted - self(start)).detach()
        found = start + minimum_norm(_Slopes(self, start), left)
        left = (wanted - self(found)).detach()
        if not bool(left.norm() <= _SOLVED * wanted.norm()):
            raise NotApplicable(
                f"no input of {self.task.name} gives what {self.layer!r} seems to have read; was "
                "the update made from one input, and not changed by a defense?"
            )
        return found.detach().to(read.dtype)


@dataclass(frozen=True, eq=False)
class _Slopes:
    """The matrix A of a front, by its products."""

    front: Front
    at: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of equations and unknowns."""
        return len(self.at), len(self.at)

    def apply(self, x: Tensor) -> Tensor:
        """The product with `(n,)`: the map is affine, so a difference is exact."""
        return (self.front(self.at + x) - self.front(self.at)).detach()

    @cached_property
    def _pull(self) -> Pullback:
        return cast(Pullback, vjp(self.front, self.at)[1])

    def adjoint(self, y: Tensor) -> Tensor:
        """The product of the transpose with `(m,)`."""
        return self._pull(y)[0].detach()


def find_front(task: Task) -> Front:
    """Find the first fully connected layer behind an affine map that keeps as many entries.

    Raises:
        NotApplicable: Something else comes first.
    """
    probe = draw_noise(task)
    layer, read = next(iter(list_calls(task, nn.Linear, probe)), ("", probe[:0]))
    keeps = not task.domain.discrete and read.shape == probe.flatten(1).shape
    if not (keeps and _is_affine(task)):
        raise NotApplicable(
            f"{task.name} has no fully connected layer that reads its input, or an affine map of "
            "it, so the closed form does not apply; use gradient matching"
        )
    return Front(layer, task.to(dtype=torch.float64).in_mode("eval"))


def _is_affine(task: Task) -> bool:
    """Whether what the first fully connected layer reads is affine in the input, on a line."""
    ends = task.domain.sample(2, rng=Rng(0).fork("line")).double()
    shares = torch.linspace(0, 1, _POINTS).double().reshape(-1, *ends[0].ndim * [1])
    line = task.domain.normalise(ends[0] + shares * (ends[1] - ends[0]))
    try:
        exact = task.to(dtype=torch.float64)
        _, read = list_calls(exact, nn.Linear, exact.move_inputs(line))[0]
    except FLOAT32_ALONE:
        return False
    if read.shape != line.flatten(1).shape:
        return False
    values = torch.linalg.svdvals(read[1:] - read[:1])
    return bool(values[0] > 0) and bool((values[1:] <= _STRAIGHT * values[0]).all())
