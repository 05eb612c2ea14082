"""What a client computes: the gradient of its batch (FedSGD), or local steps (FedAvg)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.func import grad, vmap

from seepage.clients._step_rules import SGDRule, take_steps
from seepage.core import Statistics, Task, Update
from seepage.core._device import upcast
from seepage.core._loss import TrainingLoss
from seepage.core._task import Reduction, batchnorm_layers
from seepage.core._update import Granularity
from seepage.core.errors import InvalidValue, require_at_least, require_positive, require_within
from seepage.probing._hooks import layer_inputs


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
        if self.reduction not in ("mean", "sum"):
            raise InvalidValue(f"expected reduction 'mean' or 'sum', got {self.reduction!r}")

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Differentiate the loss; per-example gradients are reduced later, by `Mean`."""
        if granularity == "per_example":
            return Update(_per_example(task, inputs, labels), granularity="per_example")
        return Update(batch_gradient(task, task.parameters, inputs, labels, self.reduction))


def batch_gradient(
    task: Task,
    parameters: Mapping[str, Tensor],
    inputs: Tensor,
    labels: Tensor,
    reduction: Reduction = "mean",
) -> dict[str, Tensor]:
    """Gradient of the reduced loss at the given parameters."""

    def objective(at: dict[str, Tensor]) -> Tensor:
        return task.batch_loss(at, inputs, labels, reduction)

    gradient: dict[str, Tensor] = grad(objective)(dict(parameters))
    return gradient


def _per_example(task: Task, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    if task.mixes_examples:
        raise InvalidValue(
            f"per-example gradients of {task.name} do not exist while batch normalisation mixes "
            "the batch; use Threat(batchnorm='running') or a network without it"
        )

    if isinstance(task.loss, TrainingLoss) and task.loss.weighted:
        raise InvalidValue(
            f"per-example gradients of {task.name} are not its own: the loss weights each example "
            "by the others in the batch; use Clip in place of ClipEach, or a loss without weights"
        )

    def differentiate(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return batch_gradient(task, task.parameters, x.unsqueeze(0), y.unsqueeze(0))

    gradients: dict[str, Tensor] = vmap(differentiate)(inputs, labels)
    return gradients


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """The parameters after local SGD minus the parameters before.

        v_t = momentum v_{t-1} + dL(batch_t)/dtheta_t,   theta_{t+1} = theta_t - lr v_t

    Local batches are consecutive slices of the data, repeated in the same order; the last one of
    an epoch may be smaller. Buffers of normalisation layers are not part of the update.

    Args:
        lr: Local learning rate.
        steps: Number of local steps; give this or `epochs`.
        epochs: Passes over the data instead of steps.
        local_batch_size: Examples per step; None uses all of them.
        momentum: As in `torch.optim.SGD`, without dampening.

    Example:
        >>> FedAvg(lr=0.1, epochs=2, local_batch_size=4).count_steps(examples=10)
        6

    References:
        McMahan et al., 2017 (mcmahan2017communication); Geiping et al., 2020, Eq. 8
        (geiping2020inverting)
    """

    produces: ClassVar[tuple[Granularity, ...]] = ("aggregate",)

    lr: float
    steps: int | None = None
    epochs: int | None = None
    local_batch_size: int | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidValue(
                f"expected either steps or epochs, got steps={self.steps!r}, epochs={self.epochs!r}"
            )
        counts = {"steps": self.steps, "epochs": self.epochs}
        require_at_least(1, **counts, local_batch_size=self.local_batch_size)
        require_positive(lr=self.lr)
        require_within("[0, 1)", momentum=self.momentum)

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Take the local steps, differentiably."""
        if granularity != "aggregate":
            raise InvalidValue(
                "FedAvg mixes its examples from the second step on and has no per-example update; "
                "use Gradient(), or Clip in place of ClipEach"
            )
        before, size = task.parameters, self.local_batch_size or len(inputs)
        starts = range(0, len(inputs), size)

        def compute_gradient(at: dict[str, Tensor], step: int) -> dict[str, Tensor]:
            start = starts[step % len(starts)]
            window = slice(start, start + size)
            return batch_gradient(task, at, inputs[window], labels[window])

        rates = (self.lr,) * self.count_steps(len(inputs))
        after = take_steps(SGDRule(momentum=self.momentum), before, compute_gradient, rates)
        return Update({n: after[n] - before[n] for n in before}, kind="difference")

    def count_steps(self, examples: int) -> int:
        """Number of local steps on this many examples."""
        return self.steps or (self.epochs or 0) * math.ceil(
            examples / (self.local_batch_size or examples)
        )


def batch_statistics(task: Task, inputs: Tensor) -> dict[str, Statistics]:
    """Mean and biased variance over the batch at each batch-normalisation layer, differentiable.

    Args:
        task: The network; its mode decides how the layers before normalise.
        inputs: `(B, ...)`, in natural units.
    """
    with layer_inputs(task.network, list(batchnorm_layers(task.network))) as read:
        task.outputs(task.parameters, inputs)
    return measure_statistics(read)


def measure_statistics(read: Mapping[str, Tensor]) -> dict[str, Statistics]:
    """Mean and biased variance over all axes but the channels, for the inputs of each layer."""
    statistics = {}
    for name, features in read.items():
        features = upcast(features)  # as batch normalisation does
        others = [axis for axis in range(features.ndim) if axis != 1]
        statistics[name] = Statistics(features.mean(others), features.var(others, correction=0))
    return statistics
