"""Local training as people run it: an optimizer of torch, a schedule, clipping, accumulation."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.func import grad

from seepage.clients._gradient import batch_gradient
from seepage.clients._step_rules import SGDRule, StepRule, WarmState, make_rule, take_steps
from seepage.core import Batch, LocalComputation, Rng, Task, Update
from seepage.core._loss import Loss, TrainingLoss, Unreduced, adapt_loss, cross_entropy
from seepage.core._update import Granularity
from seepage.core.errors import InvalidValue, require_at_least, require_positive, require_within
from seepage.numerics._schedules import Constant, CosineDecay, LinearDecay, Schedule, WarmUp

# Options that are the optimizer's; None leaves torch's default.
_OPTIONS = ("momentum", "dampening", "nesterov", "betas", "eps", "alpha", "weight_decay")
# Inputs that are made up for the moments of a warm optimizer, at least.
_MADE_UP = 64
_SCHEDULES: Mapping[str, Schedule] = {
    "constant": Constant(),
    "linear": LinearDecay(),
    "cosine": CosineDecay(),
}


@dataclass(frozen=True, kw_only=True)
class Local:
    """The parameters after training with an optimizer of torch minus the parameters before.

    Local batches are consecutive slices of the data, repeated in the same order; the last one of
    an epoch may be smaller. Buffers of normalisation layers are not part of the update, and layers
    such as dropout are left out.

    Args:
        optimizer: "SGD", "Adam", "AdamW", "Adagrad" or "RMSprop".
        lr: Learning rate; or one for each step.
        steps: Number of steps of the optimizer; give this or `epochs`.
        epochs: Passes over the data instead of steps.
        local_batch_size: Examples per local batch; None uses all of them.
        schedule: How a single learning rate falls to zero over the steps: "constant", "linear" or
            "cosine".
        warmup: Number of first steps over which it rises linearly; the last of them has all of it.
        momentum: Of SGD and RMSprop. Options of the optimizer are torch's, and None is its default.
        dampening: Of SGD.
        nesterov: Of SGD.
        betas: Of Adam and AdamW.
        eps: Of all but SGD.
        alpha: Of RMSprop.
        weight_decay: Of all; AdamW's is taken off the weights themselves.
        clip_norm: The largest norm of a step's gradient, as by `clip_grad_norm_`.
        clip_value: The largest size of each of its entries, as by `clip_grad_value_`.
        accumulate: Local batches whose mean gradient makes one step. An epoch's last step takes
            those that are left, divided by the same number, as most training loops do.
        label_smoothing: Of cross-entropy, as in `torch.nn.CrossEntropyLoss`.
        proximal: FedProx's mu, which pulls towards the broadcast weights.
        shuffle: Whether every epoch goes through the data in an order of its own. The server does
            not know it, and simulates the data in the order of its own guess.
        warm: Steps that the optimizer took in earlier rounds, on data that the server does not
            know, here made up: so its moments are not zero at the start. The server simulates an
            optimizer that begins afresh.

    Example:
        >>> local = Local(optimizer="AdamW", lr=1e-3, epochs=2, local_batch_size=4, warmup=2)
        >>> local.count_steps(examples=10), local.list_rates(steps=4)
        (6, (0.0005, 0.001, 0.001, 0.001))

    References:
        Kingma and Ba, 2015 (kingma2015adam); Loshchilov and Hutter, 2019
        (loshchilov2019decoupled); Li et al., 2020, Algorithm 2 (li2020federated)
    """

    produces: ClassVar[tuple[Granularity, ...]] = ("aggregate",)

    optimizer: str
    lr: float | tuple[float, ...]
    steps: int | None = None
    epochs: int | None = None
    local_batch_size: int | None = None
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: int = 0
    momentum: float | None = None
    dampening: float | None = None
    nesterov: bool | None = None
    betas: tuple[float, ...] | None = None
    eps: float | None = None
    alpha: float | None = None
    weight_decay: float | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    label_smoothing: float = 0.0
    proximal: float = 0.0
    shuffle: bool = False
    warm: int = 0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidValue(
                f"expected either steps or epochs, got steps={self.steps!r}, epochs={self.epochs!r}"
            )
        counts = {"steps": self.steps, "epochs": self.epochs, "accumulate": self.accumulate}
        require_at_least(1, **counts, local_batch_size=self.local_batch_size)
        require_at_least(0, warmup=self.warmup, proximal=self.proximal, warm=self.warm)
        require_positive(clip_norm=self.clip_norm, clip_value=self.clip_value)
        require_within("[0, 1)", label_smoothing=self.label_smoothing)
        if self.schedule not in _SCHEDULES:
            raise InvalidValue(
                f"expected schedule 'constant', 'linear' or 'cosine', got {self.schedule!r}; or "
                "give lr a learning rate for each step"
            )
        _ = self.rule
        if not isinstance(self.lr, tuple):
            require_positive(lr=self.lr)
            return
        if self.schedule != "constant" or self.warmup:
            raise InvalidValue("expected one learning rate with a schedule, got one for each step")
        require_at_least(0, **{f"lr[{i}]": rate for i, rate in enumerate(self.lr)})
        if self.steps is not None:
            self.list_rates(self.steps)

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Train, differentiably, with a fresh optimizer and the data in this order."""
        if granularity != "aggregate":
            raise InvalidValue(
                "Local mixes its examples and has no per-example update; use Gradient(), or Clip "
                "in place of ClipEach"
            )
        return self._train(task, inputs, labels)

    def draw(self, task: Task, examples: int, *, rng: Rng) -> LocalComputation:
        """Draw the orders of the epochs and the state of the optimizer, if they are not known."""
        if not self.shuffle and not self.warm:
            return self
        orders = (rng.fork("order", i).permutation(examples) for i in range(self._epochs(examples)))
        warm = self._warm_up(task, examples, rng.fork("warm")) if self.warm else None
        return _DrawnLocal(self, tuple(orders) if self.shuffle else (), warm)

    def soften(self, share: float = 0.3) -> SoftLocal:
        """Return the same with steps whose derivative is not lost, for searches.

        Args:
            share: Of the median size of the gradient's entries, in place of `eps`.
        """
        return SoftLocal(self, share)

    @cached_property
    def rule(self) -> StepRule:
        """How the optimizer steps."""
        given = {name: getattr(self, name) for name in _OPTIONS}
        return make_rule(self.optimizer, {n: v for n, v in given.items() if v is not None})

    @property
    def adds_gradients(self) -> bool:
        """Whether the update is a sum of gradients of the data, each times a number."""
        plain = isinstance(self.rule, SGDRule) and not self.rule.weight_decay
        return plain and self.clip_value is None and not self.warm

    def count_steps(self, examples: int) -> int:
        """Number of steps of the optimizer on this many examples."""
        return self.steps or (self.epochs or 0) * len(self._list_steps(examples))

    def list_rates(self, steps: int) -> tuple[float, ...]:
        """The learning rate of every step, in a training of so many."""
        if isinstance(self.lr, tuple):
            if len(self.lr) != steps:
                raise InvalidValue(
                    f"expected a learning rate for each of {steps} steps, got {len(self.lr)}"
                )
            return self.lr
        schedule = _SCHEDULES[self.schedule]
        schedule = WarmUp(schedule, steps=self.warmup) if self.warmup else schedule
        return tuple(self.lr * schedule(step, steps) for step in range(steps))

    def _list_steps(self, examples: int) -> list[list[slice]]:
        """The local batches of each step of an epoch."""
        size = self.local_batch_size or examples
        batches = [slice(start, start + size) for start in range(0, examples, size)]
        every = self.accumulate
        return [batches[first : first + every] for first in range(0, len(batches), every)]

    def _epochs(self, examples: int) -> int:
        return math.ceil(self.count_steps(examples) / len(self._list_steps(examples)))

    def _train(
        self,
        task: Task,
        inputs: Tensor,
        labels: Tensor,
        *,
        softness: float = 0.0,
        orders: tuple[Tensor, ...] = (),
        warm: WarmState | None = None,
    ) -> Update:
        before, epoch = task.parameters, self._list_steps(len(inputs))
        loss = self._choose_loss(task)

        def compute_gradient(at: dict[str, Tensor], step: int) -> dict[str, Tensor]:
            order = orders[step // len(epoch)].to(inputs.device) if orders else None
            x, y = (inputs, labels) if order is None else (inputs[order], labels[order])
            batches = [(x[window], y[window]) for window in epoch[step % len(epoch)]]
            return self._compute_gradient(task, loss, at, batches)

        rates = self.list_rates(self.count_steps(len(inputs)))
        after = take_steps(self.rule, before, compute_gradient, rates, softness=softness, warm=warm)
        return Update({n: after[n] - before[n] for n in before}, kind="difference")

    def _warm_up(self, task: Task, examples: int, rng: Rng) -> WarmState:
        """The state of the optimizer after steps on made-up data, at the broadcast weights."""
        size, at = min(self.local_batch_size or examples, examples), dict(task.parameters)
        made = _make_up(task, max(size, _MADE_UP), rng)
        loss, state = self._choose_loss(task), WarmState.fresh(self.rule, at)
        for step in range(self.warm):
            order = rng.fork("step", step).permutation(len(made))[:size]
            batch = made.inputs[order], made.labels[order]
            gradient = self._compute_gradient(task, loss, at, [batch] * self.accumulate)
            state = state.see(self.rule, at, gradient)
        return state

    def _choose_loss(self, task: Task) -> Loss:
        share = self.label_smoothing
        return _smooth_labels(task.loss, share) if share else task.loss

    def _compute_gradient(
        self, task: Task, loss: Loss, at: dict[str, Tensor], batches: list[tuple[Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        """The gradient of one step, over the batches that accumulate."""
        total: dict[str, Tensor] = {}
        for x, y in batches:
            found = _mean_gradient(task, loss, at, x, y, over=self.accumulate)
            total = {n: total[n] + g for n, g in found.items()} if total else found
        if self.proximal:
            sent = task.parameters
            total = {n: g + self.proximal * (at[n] - sent[n]) for n, g in total.items()}
        return self._clip(total)

    def _clip(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.clip_norm is not None:
            norms = [torch.linalg.vector_norm(g) for g in gradients.values()]
            norm = torch.linalg.vector_norm(torch.stack(norms))
            share = (self.clip_norm / (norm + 1e-6)).clamp(max=1.0)
            gradients = {name: g * share for name, g in gradients.items()}
        if (most := self.clip_value) is not None:
            gradients = {name: g.clamp(-most, most) for name, g in gradients.items()}
        return gradients


@dataclass(frozen=True)
class SoftLocal:
    """A local training as searches can follow it; what it gives is not what the client sends.

    Behind Adam and its like, an entry of the update is nearly the sign of the gradient, whose
    derivative vanishes. Here `eps` is a share of the median size of the gradient's entries, so that
    signs are soft and all steps keep a slope.

    Args:
        local: The training.
        share: Of the median size.

    Example:
        >>> SoftLocal(Local(optimizer="Adam", lr=1e-3, steps=2)).share
        0.3
    """

    produces: ClassVar[tuple[Granularity, ...]] = ("aggregate",)

    local: Local
    share: float = 0.3

    def __post_init__(self) -> None:
        require_positive(share=self.share)

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Train with soft steps."""
        if granularity != "aggregate":
            return self.local(task, inputs, labels, granularity=granularity)
        return self.local._train(task, inputs, labels, softness=self.share)


@dataclass(frozen=True, eq=False)
class _DrawnLocal:
    """A local training with what the server does not see of it."""

    produces: ClassVar[tuple[Granularity, ...]] = ("aggregate",)

    local: Local
    orders: tuple[Tensor, ...]
    warm: WarmState | None

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Train as the client does."""
        if granularity != "aggregate":
            return self.local(task, inputs, labels, granularity=granularity)
        return self.local._train(task, inputs, labels, orders=self.orders, warm=self.warm)


def _make_up(task: Task, size: int, rng: Rng) -> Batch:
    """Inputs that nobody has, with any labels."""
    inputs = task.domain.make_up(size, rng=rng.fork("inputs"))
    if task.target_shape is not None:
        labels = rng.fork("labels").normal((size, *task.target_shape))
    else:
        labels = (rng.fork("labels").uniform((size,)) * task.classes).long()
    return task.move_batch(Batch(inputs, labels))


def _mean_gradient(
    task: Task, loss: Loss, at: Mapping[str, Tensor], inputs: Tensor, labels: Tensor, over: int
) -> dict[str, Tensor]:
    """The gradient of a local batch's mean loss, divided before it is differentiated."""

    def objective(parameters: dict[str, Tensor]) -> Tensor:
        outputs = task.outputs(parameters, inputs)
        mean = loss.mean if isinstance(loss, TrainingLoss) else lambda o, y: loss(o, y).mean()
        return mean(outputs, labels) / over

    if loss is task.loss and over == 1:
        return batch_gradient(task, at, inputs, labels)
    gradient: dict[str, Tensor] = grad(objective)(dict(at))
    return gradient


def _smooth_labels(loss: Loss, share: float) -> Loss:
    """The loss with smoothed labels; `InvalidValue` unless it is torch's cross-entropy."""
    if loss is cross_entropy:
        return adapt_loss(nn.CrossEntropyLoss(label_smoothing=share))
    alone = loss.alone if isinstance(loss, TrainingLoss) else None
    if not (isinstance(alone, Unreduced) and isinstance(alone.loss, nn.CrossEntropyLoss)):
        raise InvalidValue(
            "expected a cross-entropy for label_smoothing, got another loss; smooth inside the "
            "loss of the task"
        )
    own = copy.deepcopy(alone.loss)
    own.label_smoothing = share
    averaged = isinstance(loss, TrainingLoss) and loss.reduced is not None
    own.reduction = "mean" if averaged else "sum" if alone.summed else "none"
    return adapt_loss(own)
