"""FedSGD: the client shares the gradient of its batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor
from torch.func import grad, vmap

from seepage.core import Statistics, Task, Update
from seepage.core.device import upcast
from seepage.core.errors import InvalidValue
from seepage.core.task import batchnorm_layers
from seepage.core.update import Granularity
from seepage.probing.hooks import layer_inputs

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """The gradient of the batch loss at the broadcast parameters.

        g = (1/B) sum_i dL(x_i, y_i)/dtheta      (or the sum)

    Example:
        >>> Gradient(reduction="sum")
        Gradient(reduction='sum')

    References:
        McMahan et al., 2017 (mcmahan2017communication)
    """

    produces: ClassVar[tuple[Granularity, ...]] = ("aggregate", "per_example")

    reduction: Reduction = "mean"

    def __post_init__(self) -> None:
        """Check the reduction."""
        if self.reduction not in ("mean", "sum"):
            raise InvalidValue(f"expected reduction 'mean' or 'sum', got {self.reduction!r}")

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Differentiate the loss; per example, the reduction is left to what combines them."""
        if granularity == "per_example":
            return Update(_each(task, inputs, labels), granularity="per_example")
        return Update(batch_gradient(task, task.parameters, inputs, labels, self.reduction))


def batch_gradient(
    task: Task,
    parameters: Mapping[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
    reduction: Reduction = "mean",
) -> dict[str, Tensor]:
    """Gradient of the reduced loss at any parameters; the one place where it is computed."""

    def objective(at: dict[str, Tensor]) -> Tensor:
        losses = task.losses(at, inputs, labels)
        return losses.mean() if reduction == "mean" else losses.sum()

    gradient: dict[str, Tensor] = grad(objective)(dict(parameters))
    return gradient


def _each(task: Task, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    if task.mixes_examples:
        raise InvalidValue(
            f"per-example gradients of {task.name} do not exist while batch normalisation mixes "
            "the batch; use Threat(batchnorm='running') or a network without it"
        )

    def one(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return batch_gradient(task, task.parameters, x.unsqueeze(0), y.unsqueeze(0))

    each: dict[str, Tensor] = vmap(one)(inputs, labels)
    return each


def batch_statistics(task: Task, inputs: Tensor) -> dict[str, Statistics]:
    """Mean and biased variance over the batch at each batch-normalisation layer, differentiable.

    Args:
        task: Its mode decides what the layers before see.
        inputs: `(B, ...)`, in natural units.
    """
    with layer_inputs(task.network, list(batchnorm_layers(task.network))) as read:
        task.outputs(task.parameters, inputs)
    return measured(read)


def measured(read: Mapping[str, Tensor]) -> dict[str, Statistics]:
    """The statistics of what layers read, `(B, C, ...)` each."""
    return {name: _statistics(features) for name, features in read.items()}


def _statistics(features: Tensor) -> Statistics:
    features = upcast(features)  # as batch normalisation itself does
    others = [axis for axis in range(features.ndim) if axis != 1]
    return Statistics(features.mean(others), features.var(others, correction=0))
