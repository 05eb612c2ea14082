"""The linear system that a layer's forward and backward pass impose on its input.

All of it is one trilinear form T(x, w, dz) = <dz, w * x>, with * the convolution: fixing two
arguments gives the forward pass, the weight gradient or the input gradient of the layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d

from seepage.attacks.linear_systems.layer import Layer


@dataclass(frozen=True, eq=False)
class LinearSystem:
    """The matrix u of a layer, applied and transposed without ever being formed.

        u x = [ w * x ; d<dz, w * x>/dw ] = [ z - b ; dL/dw ] = v

    It has |z| + |w| rows and n columns; vectors may have leading batch axes.

    Args:
        layer: Whose input x is unknown.
        delta: dL/dz, in the layer's output shape.
        known: Where z is known, in the layer's output shape; rows elsewhere are zero. None for
            everywhere.

    Example:
        >>> from seepage.attacks.linear_systems.activations import Identity
        >>> w, dz = torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])
        >>> fc = Layer("fc", (2,), (1,), (), (), (), w, None, Identity())
        >>> LinearSystem(fc, dz).apply(torch.tensor([1.0, 1.0])).tolist()
        [3.0, 3.0, 3.0]

    References:
        Chen and Campbell, 2022, Eq. 6 and 7 (chen2022analysing); Zhu and Blaschko, 2021
        (zhu2021rgap)
    """

    layer: Layer
    delta: Tensor
    known: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.layer.outputs + self.layer.weight.numel(), self.layer.inputs

    def apply(self, x: Tensor) -> Tensor:
        """U x: `(..., n)` to `(..., |z| + |w|)`."""
        frame = _Frame(self.layer)
        planes = x.reshape(-1, *frame.inputs)
        forward = conv2d(planes, frame.weight, stride=frame.stride, padding=frame.padding)
        forward = self._where_known(forward.flatten(1))
        # Every channel of x against every channel of dz: a convolution whose kernel is dz, with
        # the stride as its dilation. Positions that no window reaches are cut off.
        lone = planes.reshape(-1, 1, *frame.inputs[1:])
        delta = self.delta.reshape(-1, 1, *frame.outputs[1:])
        products = conv2d(lone, delta, padding=frame.padding, dilation=frame.stride)
        height, width = frame.kernel
        gradient = products[..., :height, :width].reshape(
            len(planes), frame.inputs[0], -1, height, width
        )
        rows = torch.cat([forward, gradient.transpose(1, 2).flatten(1)], dim=1)
        return rows.reshape(*x.shape[:-1], -1)

    def adjoint(self, rows: Tensor) -> Tensor:
        """U^T r: `(..., |z| + |w|)` to `(..., n)`."""
        frame = _Frame(self.layer)
        flat = rows.reshape(-1, rows.shape[-1])
        forward, gradient = flat[:, : self.layer.outputs], flat[:, self.layer.outputs :]
        z = self._where_known(forward).reshape(-1, *frame.outputs)
        from_forward = frame.transposed(z, frame.weight)
        # One group per vector, because each brings a kernel of its own.
        delta = self.delta.reshape(frame.outputs).repeat(len(flat), 1, 1)[None]
        kernels = gradient.reshape(-1, *frame.weight.shape[1:])
        from_gradient = frame.transposed(delta, kernels, groups=len(flat))
        x = from_forward + from_gradient.reshape(from_forward.shape)
        return x.reshape(*rows.shape[:-1], -1)

    def right_hand_side(self, z: Tensor, gradient: Tensor) -> Tensor:
        """V: what the system must equal, from z and dL/dw."""
        linear = z.reshape(self.layer.channels, -1)
        if self.layer.bias is not None:
            linear = linear - self.layer.bias[:, None]
        return torch.cat([self._where_known(linear.flatten()), gradient.flatten()])

    def _where_known(self, forward: Tensor) -> Tensor:
        return forward if self.known is None else forward * self.known.flatten()


class _Frame:
    """The layer seen as a convolution over two axes, of which missing ones have length one."""

    def __init__(self, layer: Layer) -> None:
        missing = 2 - len(layer.kernel)
        ones = (1,) * missing
        channels, *sizes = layer.input_shape
        filters, *positions = layer.output_shape
        self.inputs = (channels, *ones, *sizes)
        self.outputs = (filters, *ones, *positions)
        self.kernel = (*ones, *layer.kernel)
        self.stride = (*ones, *layer.stride)
        self.padding = (*(0,) * missing, *layer.padding)
        self.weight = layer.weight.reshape(filters, channels, *self.kernel)

    def transposed(self, z: Tensor, kernels: Tensor, groups: int = 1) -> Tensor:
        """The transpose of a convolution in its input, with the rows no window reached as zeros."""
        reached = [
            (length - 1) * stride - 2 * padding + kernel
            for length, stride, padding, kernel in zip(
                self.outputs[1:], self.stride, self.padding, self.kernel, strict=True
            )
        ]
        left = [size - have for size, have in zip(self.inputs[1:], reached, strict=True)]
        return conv_transpose2d(
            z, kernels, stride=self.stride, padding=self.padding, output_padding=left, groups=groups
        )


def covered(layer: Layer) -> int:
    """Input entries that some window of the layer reaches.

    Example:
        >>> from seepage.attacks.linear_systems.activations import Identity
        >>> skipping = Layer(
        ...     "conv", (1, 6), (1, 2), (2,), (3,), (0,), torch.ones(1, 1, 2), None, Identity()
        ... )
        >>> covered(skipping)
        4
    """
    touched = [
        len({s * i + p - pad for i in range(count) for p in range(k)} & set(range(size)))
        for size, count, k, s, pad in zip(
            layer.input_shape[1:],
            layer.output_shape[1:],
            layer.kernel,
            layer.stride,
            layer.padding,
            strict=True,
        )
    ]
    return layer.input_shape[0] * math.prod(touched)
