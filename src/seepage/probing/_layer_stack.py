"""Read a network as a stack of layers: geometry, weights and the activation after each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv2d, linear

from seepage.core._rng import Rng
from seepage.core._task import Task
from seepage.core.errors import NotApplicable
from seepage.probing._activations import Activation, recognise_activation
from seepage.probing._hooks import Visit, record_visits


@dataclass(frozen=True, eq=False)
class Layer:
    """x -> alpha(w * x + b): a convolution over one or two axes, or a fully connected layer.

    A fully connected layer is a convolution over no axis: its shapes are `(N,)` and its kernel,
    stride and padding are empty.

    Args:
        name: Name of the module, which prefixes its parameters in an update.
        input_shape: `(C, ...)`, without the batch axis.
        output_shape: `(O, ...)`.
        kernel: Width of the kernel along each axis.
        stride: Stride along each axis.
        padding: Zeros on either side of each axis.
        weight: `(O, C, *kernel)`.
        bias: `(O,)`, or None.
        activation: The element-wise activation after it.
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
        """Names of the weight and the bias in an update."""
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


INSTEAD = "use gradient matching, such as inverting_gradients()"

Axes = tuple[int, ...]

# Probes of large inputs hold at most so many entries, and are two at least.
_PROBES, _ENTRIES = 4, 2**20
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
# Modules that messages need not name.
_HARMLESS = (nn.Flatten, nn.Identity, nn.Dropout, nn.Tanh, nn.Sigmoid, nn.ReLU, nn.LeakyReLU)


@dataclass(frozen=True, eq=False)
class Stack:
    """Layers in the order in which they run, each reading the output of the one before.

    Args:
        layers: From the input to the logits, in double precision.
    """

    layers: tuple[Layer, ...]

    def __call__(self, inputs: Tensor) -> Tensor:
        """The logits `(B, K)` of normalised inputs `(B, ...)`."""
        values = inputs
        for layer in self.layers:
            values = layer(values)
        return values.flatten(1)


def read_stack(task: Task) -> Stack:
    """Read the network as a stack by watching it run; reject other networks.

    Layers and activations are recognised by what they compute. So any module will do whose forward
    pass is a chain of convolutions over one or two axes and of fully connected layers, with an
    element-wise activation after each.

    Example:
        >>> from seepage.zoo import cnn
        >>> [layer.output_shape for layer in read_stack(cnn(variant="cnn3-v3")).layers]
        [(6, 30, 30), (9, 28, 28), (10,)]
    """
    # In double precision two different computations do not agree by rounding.
    task = task.in_mode("eval").to(dtype=torch.float64)
    count = max(2, min(_PROBES, _ENTRIES // math.prod(task.domain.shape)))

    def probe(seed: int) -> Tensor:
        return task.move_inputs(task.domain.sample(count, rng=Rng(seed)))

    inputs = task.domain.normalise(probe(0))
    seen, outputs = record_visits(task.network, inputs)
    stack = Stack(tuple(_layers(task, seen, inputs, outputs)))
    other = probe(1)
    with torch.no_grad():
        expected = task.outputs(task.parameters, other)
    if not _agree(stack(task.domain.normalise(other)), expected):
        raise NotApplicable(
            f"expected {task.name} to be a chain of layers and activations, but it computes "
            f"something else on some inputs; {INSTEAD}"
        )
    return stack


def _agree(came: Tensor, expected: Tensor) -> bool:
    same = came.shape == expected.shape
    return same and torch.allclose(came, expected, rtol=1e-9, atol=1e-9)


def _layers(task: Task, seen: list[Visit], inputs: Tensor, outputs: Tensor) -> Iterator[Layer]:
    places = [i for i, visit in enumerate(seen) if isinstance(visit.module, _LAYERS)]
    if not places:
        raise NotApplicable(f"{task.name} has no linear layer or convolution; {INSTEAD}")
    names = [seen[i].name for i in places]
    for name in names:
        if names.count(name) > 1:
            raise NotApplicable(f"the layer {name!r} of {task.name} runs more than once; {INSTEAD}")
    if not _agree(seen[places[0]].inputs.flatten(1), inputs.flatten(1)):
        raise _explain_break(task, "before", seen[: places[0]], names[0])
    for here, after in zip(places, [*places[1:], None], strict=True):
        visit = seen[here]
        read = outputs if after is None else seen[after].inputs
        activation = recognise_activation(visit.outputs, read)
        if activation is None:
            raise _explain_break(task, "after", seen[here + 1 : after], visit.name)
        yield _layer(task, visit, activation)


def _explain_break(task: Task, side: str, between: Iterable[Visit], name: str) -> NotApplicable:
    strange = [str(visit) for visit in between if not isinstance(visit.module, _HARMLESS)]
    found = " and ".join(strange) or "a computation outside any module, such as a residual addition"
    return NotApplicable(
        f"expected an activation that can be undone (identity, tanh, sigmoid, leaky ReLU, ReLU) "
        f"{side} {name!r} of {task.name}, got {found}; {INSTEAD}"
    )


def _layer(task: Task, visit: Visit, activation: Activation) -> Layer:
    bias = visit.module.bias
    weight = task.parameters.get(f"{visit.name}.weight" if visit.name else "weight")
    if weight is None:
        raise NotApplicable(
            f"the layer {visit.name!r} of {task.name} is frozen, so the update does not hold its "
            f"gradient; {INSTEAD}"
        )
    kernel, stride, padding = _read_windows(task, visit)
    return Layer(
        name=visit.name,
        input_shape=tuple(visit.inputs.shape[1:]),
        output_shape=tuple(visit.outputs.shape[1:]),
        kernel=kernel,
        stride=stride,
        padding=padding,
        weight=weight,
        bias=bias.detach() if isinstance(bias, Tensor) else None,
        activation=activation,
    )


def _read_windows(task: Task, visit: Visit) -> tuple[Axes, Axes, Axes]:
    """Kernel, stride and padding along each axis: none for a fully connected layer."""
    module = visit.module
    if isinstance(module, nn.Linear):
        if visit.inputs.ndim != 2:
            raise NotApplicable(
                f"the layer {visit.name!r} of {task.name} is applied at several positions, inputs "
                f"{tuple(visit.inputs.shape[1:])}; {INSTEAD}"
            )
        return (), (), ()
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    plain = module.padding_mode == "zeros" and module.groups == 1 and set(module.dilation) == {1}
    if not plain:
        raise NotApplicable(
            f"expected a convolution with zero padding, one group and dilation 1, got {module} at "
            f"{visit.name!r} of {task.name}; {INSTEAD}"
        )
    padding, kernel = module.padding, module.kernel_size
    if padding == "same" and any(k % 2 == 0 for k in kernel):
        raise NotApplicable(
            f"the layer {visit.name!r} of {task.name} pads one side more than the other; {INSTEAD}"
        )
    if isinstance(padding, str):
        padding = tuple(k // 2 if padding == "same" else 0 for k in kernel)
    return kernel, module.stride, tuple(padding)
