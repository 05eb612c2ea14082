"""One layer of a stack: its geometry, its weights and the activation behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import conv1d, conv2d, linear

from seepage.attacks.linear_systems.activations import Activation


@dataclass(frozen=True, eq=False)
class Layer:
    """x -> alpha(w * x + b): a convolution over one or two axes, or a fully connected layer.

    A fully connected layer is a convolution over no axis: its shapes are `(N,)` and its kernel,
    stride and padding are empty.

    Args:
        name: Of the module, which prefixes its parameters in an update.
        input_shape: `(C, ...)`, without the batch axis.
        output_shape: `(O, ...)`.
        kernel: Width of the kernel along each axis.
        stride: Along each axis.
        padding: Zeros on either side of each axis.
        weight: `(O, C, *kernel)`.
        bias: `(O,)`, or None.
        activation: What follows it, element by element.
    """

    name: str
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    weight: Tensor
    bias: Tensor | None
    activation: Activation

    def __repr__(self) -> str:
        """Name the layer and its shapes."""
        return f"Layer({self.name!r}, {self.input_shape} -> {self.output_shape}, {self.activation})"

    def __call__(self, inputs: Tensor) -> Tensor:
        """Run the layer on a batch `(B, ...)`."""
        return self.activation(self.linear(inputs))

    def linear(self, inputs: Tensor) -> Tensor:
        """The part before the activation: z = w * x + b."""
        values = inputs.reshape(-1, *self.input_shape)
        if not self.convolutional:
            return linear(values, self.weight, self.bias)
        convolve = conv1d if len(self.kernel) == 1 else conv2d
        return convolve(values, self.weight, self.bias, self.stride, self.padding)

    @property
    def parameters(self) -> tuple[str, str]:
        """What an update calls the weight and the bias."""
        prefix = f"{self.name}." if self.name else ""
        return f"{prefix}weight", f"{prefix}bias"

    @property
    def convolutional(self) -> bool:
        """Whether weights are shared between positions."""
        return bool(self.kernel)

    @property
    def inputs(self) -> int:
        """Entries of the input, n."""
        return math.prod(self.input_shape)

    @property
    def outputs(self) -> int:
        """Entries of the output, |z|."""
        return math.prod(self.output_shape)

    @property
    def channels(self) -> int:
        """Output channels, o."""
        return self.output_shape[0]
