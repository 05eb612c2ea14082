"""What a gradient shows of a network, whatever its layers: inputs, and places in a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.clients.gradient import Gradient
from seepage.core import Batch, Rng, Task

# A gradient this parallel to an input of noise, both centred, holds it.
_PARALLEL = 0.999
# In fewer dimensions, directions coincide by chance.
_DIMENSIONS = 16
FEWEST_PLACES = 2
_MOST_PLACES = 8
# In float64, relative to the gradient of a parameter; rounding is far below.
_MOVED = 1e-6
# Parameters with less of the whole gradient hold rounding alone.
_NEGLIGIBLE = 1e-9


def find_held_input(task: Task) -> str | None:
    """Name of a parameter whose gradient is the input of an example, up to scale and shift.

    A layer that reads the input has such a gradient, whether it is an `nn.Linear`, a kernel as
    large as the image or a bare parameter. Found on noise, whatever the loss; None if there is no
    such parameter, or inputs are no numbers.

    Example:
        >>> from seepage.zoo import lenet, mlp
        >>> find_held_input(mlp()), find_held_input(lenet())
        ('hidden1.weight', None)
    """
    noise = task.domain.sample(1, rng=Rng(0))
    if not noise.is_floating_point() or noise.numel() < _DIMENSIONS:
        return None
    task = task.in_mode("eval")
    parameters = {name: p.detach().requires_grad_() for name, p in task.parameters.items()}
    inputs = task.move_inputs(noise)
    outputs = task.outputs(parameters, inputs)
    direction = Rng(1).normal(outputs.shape, like=outputs)
    gradients = torch.autograd.grad(
        (outputs * direction).sum(), [*parameters.values()], allow_unused=True
    )
    shape = tuple(noise.shape[1:])
    # Each channel may have a scale and a shift of its own.
    channels = shape[0] if noise.numel() >= _DIMENSIONS * shape[0] else 1
    held = _centre(inputs.reshape(channels, -1))
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and gradient.numel() % held.numel() == 0:
            rows = gradient.reshape(-1, held.numel())
            columns = gradient.reshape(held.numel(), -1).T
            if any(_is_parallel(vectors, held) for vectors in (rows, columns)):
                return name
    return None


def _centre(channels: Tensor) -> Tensor:
    exact = channels.double()
    return exact - exact.mean(-1, keepdim=True)


def _is_parallel(vectors: Tensor, held: Tensor) -> bool:
    """Whether the longest of these `(k, n)` is parallel to another, channel by channel."""
    longest = vectors[vectors.double().norm(dim=1).argmax()]
    cosines = torch.cosine_similarity(_centre(longest.reshape(held.shape)), held, dim=1)
    return bool((cosines.abs() > _PARALLEL).all())


def find_own_places(task: Task, batch: Batch) -> str | None:
    """Name of a parameter whose gradient depends on the order of the examples; None if none.

    The gradient of a batch is a sum over examples, so it does not matter which comes first, unless
    the network treats them by their place.

    Args:
        task: The network.
        batch: Of two examples or more, of which the first eight are used.
    """
    exact = task.to(dtype=torch.float64)
    inputs, labels = exact.move_inputs(batch.inputs[:_MOST_PLACES]), batch.labels[:_MOST_PLACES]
    before = Gradient()(exact, inputs, labels)
    after = Gradient()(exact, inputs.flip(0), labels.flip(0))
    least = _NEGLIGIBLE * float(before.norm())
    for name, gradient in before.tensors.items():
        moved = float((after.tensors[name] - gradient).norm())
        if moved > max(_MOVED * float(gradient.norm()), least):
            return name
    return None
