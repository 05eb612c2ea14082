"""The linear system that a layer's forward and backward pass impose on its input.

Let X hold the windows that a convolution reads, one column per position. The forward pass is W X
and the weight gradient dZ X^T. Both are linear in the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import fold, unfold

from seepage.attacks._jacobian import Jacobian
from seepage.core import Rng
from seepage.numerics._least_squares import Linear, invert_banded, minimum_norm
from seepage.probing._layer_stack import Layer

Sizes = tuple[int, ...]
# A vector that comes back with a smaller relative error is the only solution.
_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class LinearSystem:
    """The matrix u of a layer as an operator: it is applied and transposed, but never formed.

        u x = [ W X ; dZ X^T ] = [ z - b ; dL/dw ] = v

    It has |z| + |w| rows and n columns; vectors may have leading batch axes. With a leading axis of
    its own it holds several systems of one layer, each applied to one vector.

    Args:
        layer: The layer whose input x is unknown.
        delta: dL/dz, in the layer's output shape, `(..., o, ...)`.
        known: Where z is known, in the layer's output shape; other rows are zero. None for
            everywhere.

    Example:
        >>> from seepage.probing._activations import Identity
        >>> w, dz = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> fc = Layer("fc", (2,), (1,), (), (), (), w, None, Identity())
        >>> LinearSystem(fc, dz).apply(torch.tensor([1.0, 1.0])).tolist()
        [3.0, 3.0, 3.0]

    References:
        Chen and Campbell, 2022, Eq. 6 and 7 (chen2022analysing); Zhu and Blaschko, 2021
        (zhu2021recursive)
    """

    layer: Layer
    delta: Tensor
    known: Tensor | None = None

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"LinearSystem({self.layer.name!r}, {rows} x {columns})"

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.layer.outputs + self.layer.weight.numel(), self.layer.inputs

    @classmethod
    def stack(cls, systems: Sequence[LinearSystem]) -> LinearSystem:
        """Stack systems of one layer along a new first axis."""
        known = [system.known for system in systems if system.known is not None]
        deltas = torch.stack([system.delta for system in systems])
        return cls(systems[0].layer, deltas, torch.stack(known) if known else None)

    def apply(self, x: Tensor) -> Tensor:
        """Multiply by u: `(..., n)` to `(..., |z| + |w|)`."""
        windows = self._unfold(x.reshape(-1, x.shape[-1]))
        forward = self._where_known((self._weight @ windows).flatten(1))
        gradient = self._delta @ windows.mT
        return torch.cat([forward, gradient.flatten(1)], dim=1).reshape(*x.shape[:-1], -1)

    def adjoint(self, rows: Tensor) -> Tensor:
        """Multiply by the transpose of u: `(..., |z| + |w|)` to `(..., n)`."""
        flat = rows.reshape(-1, rows.shape[-1])
        forward, gradient = flat[:, : self.layer.outputs], flat[:, self.layer.outputs :]
        z = self._where_known(forward).reshape(len(flat), *self._delta.shape[-2:])
        kernels = gradient.reshape(len(flat), *self._weight.shape)
        x = self._fold(self._weight.T @ z + kernels.mT @ self._delta)
        return x.reshape(*rows.shape[:-1], -1)

    def right_hand_side(self, z: Tensor, gradient: Tensor) -> Tensor:
        """Join z, less the bias, and dL/dw to v, `(|z| + |w|,)`; of one system."""
        linear = z.reshape(self.layer.channels, -1)
        if self.layer.bias is not None:
            linear = linear - self.layer.bias[:, None]
        return torch.cat([self._where_known(linear.flatten()), gradient.flatten()])

    def to(self, like: Tensor) -> LinearSystem:
        """The same system in the precision and on the device of a tensor."""
        layer = replace(self.layer, weight=self.layer.weight.to(like), bias=None)
        return replace(self, layer=layer, delta=self.delta.to(like))

    def input_gradient(self) -> Tensor:
        """dL/dx = W^T dL/dz, `(n,)`; of one system."""
        return self._fold(self._weight.T @ self._delta[None]).flatten()

    def has_one_solution(self) -> Tensor:
        """Whether u has full column rank, so that u x = v has at most one solution, `(...)`.

        Solve u x = u r for a random vector r. If u has a null space, r has a part in it, and r does
        not come back.
        """
        alive = self.delta.abs().amax(tuple(range(-len(self.layer.output_shape), 0))) > 0
        if not self.layer.convolutional:
            return alive
        rows, columns = self.shape
        if rows < columns or count_covered_inputs(self.layer) < columns:
            return torch.zeros_like(alive)
        r = Rng(0).normal((columns,), like=self.delta).expand(*alive.shape, columns)
        lost = torch.linalg.vector_norm(minimum_norm(self, self.apply(r)) - r, dim=-1)
        nothing: Tensor = lost < _TOLERANCE * torch.linalg.vector_norm(r, dim=-1)
        return nothing

    def invert_forward(self) -> Linear | None:
        """Multiply by the inverse of C^T C, where C x = z - b is the forward pass.

        None where some z is unknown, or C x = z - b has several solutions.
        """
        if self.known is not None and not bool(self.known.all()):
            return None
        nothing = self.delta.new_zeros(self.layer.inputs)
        return invert_slopes(lambda x: self.layer.linear(x).flatten(), nothing, [self.layer])

    @property
    def _weight(self) -> Tensor:
        """One row per filter: `(o, c k k)`."""
        return self.layer.weight.flatten(1)

    @property
    def _delta(self) -> Tensor:
        """One row per filter: `(o, positions)`, or `(R, o, positions)` for several systems."""
        several = self.delta.ndim > len(self.layer.output_shape)
        positions = math.prod(self.layer.output_shape[1:])
        return self.delta.reshape(*(-1,) * several, self.layer.channels, positions)

    def _unfold(self, x: Tensor) -> Tensor:
        """What each position reads: `(R, n)` to `(R, c k k, positions)`."""
        size, window = self._window
        return unfold(x.reshape(-1, self.layer.input_shape[0], *size), **window)

    def _fold(self, windows: Tensor) -> Tensor:
        """The transpose of `_unfold`: add every window back where it was read, `(R, n)`."""
        size, window = self._window
        return fold(windows, size, **window).flatten(1)

    @cached_property
    def _window(self) -> tuple[Sizes, dict[str, Sizes]]:
        """The input's size and the window, padded to two axes for `fold` and `unfold`."""
        layer = self.layer
        ones = (1,) * (2 - len(layer.kernel))
        padding = (*(0,) * len(ones), *layer.padding)
        window = {
            "kernel_size": (*ones, *layer.kernel),
            "stride": (*ones, *layer.stride),
            "padding": padding,
        }
        return (*ones, *layer.input_shape[1:]), window

    def _where_known(self, forward: Tensor) -> Tensor:
        if self.known is None:
            return forward
        several = self.known.ndim > len(self.layer.output_shape)
        return forward * self.known.reshape(*(-1,) * several, self.layer.outputs)


def count_covered_inputs(layer: Layer) -> int:
    """Count the input entries that some window of the layer reads.

    Example:
        >>> from seepage.probing._activations import Identity
        >>> skipping = Layer(
        ...     "conv", (1, 6), (1, 2), (2,), (3,), (0,), torch.ones(1, 1, 2), None, Identity()
        ... )
        >>> count_covered_inputs(skipping)
        4
    """
    sizes, counts = layer.input_shape[1:], layer.output_shape[1:]
    axes = zip(sizes, counts, layer.kernel, layer.stride, layer.padding, strict=True)
    touched = [
        len({s * i + p - pad for i in range(count) for p in range(k)} & set(range(size)))
        for size, count, k, s, pad in axes
    ]
    return layer.input_shape[0] * math.prod(touched)


def invert_slopes(function: Linear, at: Tensor, layers: Sequence[Layer]) -> Linear | None:
    """Multiply by the inverse of F^T F, where F is the derivative of convolutions.

    Args:
        function: Outputs `(m,)` of the last layer, given the input `(n,)` of the first.
        at: The input.
        layers: Convolutions in the order in which they run; activations do not matter.

    Returns:
        None if F has no full column rank to rounding, or it takes long to find out.
    """
    if layers[-1].outputs < len(at):
        return None
    reach, stride = [0] * len(layers[0].kernel), [1] * len(layers[0].kernel)
    for layer in layers:
        reach = [r + (k - 1) * s for r, k, s in zip(reach, layer.kernel, stride, strict=True)]
        stride = [s * more for s, more in zip(stride, layer.stride, strict=True)]
    return invert_banded(Jacobian(function, at).squared, layers[0].input_shape, reach, like=at)
