"""What a gradient shows of a network: inputs, places in a batch, one example above the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.clients._gradient import Gradient
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
    if task.domain.discrete or noise.numel() < _DIMENSIONS:
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

    The batch has two examples or more, of which the first eight are used.
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


FEWEST_EXAMPLES = 8
_MOST = 16
# An example with a smaller error (relative to the largest) is memorised and not compared.
_KNOWN = 1e-5


@dataclass(frozen=True)
class Concentration:
    """How far one example outweighs all the others in some layer.

    Args:
        plain: max over layers of max_i ||g_i|| / (sum_j ||g_j|| - max_i ||g_i||), the D-SNR.
        relative: The same with every g_i divided by the norm of the loss's gradient at the logits.
        layer: The layer where `relative` is largest.
        examples: How many examples were compared.
    """

    plain: float
    relative: float
    layer: str
    examples: int


def concentration(task: Task, batch: Batch) -> Concentration | None:
    """D-SNR over the first examples of a batch; None if too few have an error."""
    task = task.in_mode("eval")
    norms, errors = [], []
    for number in range(min(len(batch), _MOST)):
        one = slice(number, number + 1)
        update = Gradient()(task, batch.inputs[one], batch.labels[one])
        norms.append(torch.stack([tensor.norm() for tensor in update]))
        errors.append(_error_norm(task, batch.inputs[one], batch.labels[one]))
    error = torch.stack(errors).double()
    wrong = error > _KNOWN * float(error.max())
    if int(wrong.sum()) < FEWEST_EXAMPLES:
        return None
    each = torch.stack(norms).double()[wrong]
    relative = _dominance(each / error[wrong, None])
    worst = int(relative.argmax())
    name = list(task.parameters)[worst]
    return Concentration(float(_dominance(each).max()), float(relative[worst]), name, len(each))


def _dominance(norms: Tensor) -> Tensor:
    """For each column, the largest entry over the sum of the others; zero where all are zero."""
    largest = norms.amax(0)
    rest = norms.sum(0) - largest
    return torch.where(largest > 0, largest / rest.clamp_min(1e-300), 0.0)


def _error_norm(task: Task, inputs: Tensor, labels: Tensor) -> Tensor:
    """The norm of the loss's gradient at the logits."""
    with torch.no_grad():
        outputs = task.outputs(task.parameters, inputs)
    outputs.requires_grad_(True)
    (gradient,) = torch.autograd.grad(task.loss(outputs, labels).sum(), outputs)
    norm: Tensor = gradient.norm()
    return norm
