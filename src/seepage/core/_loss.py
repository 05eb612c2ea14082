"""Losses as training loops call them, which also tell the loss of each example."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.func import grad

from seepage.core.errors import InvalidValue

Loss = Callable[[Tensor, Tensor], Tensor]

# Losses of torch whose targets are numbers, one for each output.
ELEMENTWISE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.PoissonNLLLoss,
)
# Losses that specs know by name.
LOSSES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {loss.__name__: loss for loss in (nn.CrossEntropyLoss, *ELEMENTWISE)}
)
# What torch calls no class to be left out.
_NO_CLASS = -100


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each example: `(B, K)` logits, `(B,)` classes or `(B, K)` probabilities."""
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True)
class Unreduced:
    """A loss of torch without its reduction over the batch, `(B,)`.

    Args:
        loss: The loss with `reduction="none"`.
        summed: Whether the entries of an example are summed; else their mean is taken.

    Example:
        >>> Unreduced(nn.MSELoss(reduction="none"))(torch.ones(2, 3), torch.zeros(2, 3))
        tensor([1., 1.])
    """

    loss: nn.Module
    summed: bool = False

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Compute one value per example."""
        require_alike(self.loss, outputs, labels)
        values: Tensor = self.loss(outputs, labels)
        if values.ndim == 1:
            return values
        return values.flatten(1).sum(1) if self.summed else values.flatten(1).mean(1)


def require_loss(value: object) -> Tensor:
    """Return what a loss returned; raise `InvalidValue` unless it is a tensor of real numbers."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    came = value.dtype if isinstance(value, Tensor) else type(value).__name__
    raise InvalidValue(f"expected a loss that is a tensor of floats, got {came}; return it alone")


def require_alike(loss: object, outputs: Tensor, targets: Tensor) -> None:
    """Raise `InvalidValue` if torch would spread targets over outputs of another shape."""
    if isinstance(loss, ELEMENTWISE) and outputs.shape != targets.shape:
        raise InvalidValue(
            f"expected a target for each output {tuple(outputs.shape)}, got targets "
            f"{tuple(targets.shape)}, which torch would compare with all of them; reshape one"
        )


class _BinaryCrossEntropy(nn.BCELoss):
    """Binary cross-entropy that goes on as a straight line where a target is no probability.

    Attacks look for targets there too, where torch raises an error.
    """

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002 - as torch has it
        inside, weight = target.clamp(0, 1), self.weight
        values = nn.functional.binary_cross_entropy(input, inside, weight, reduction="none")
        odds = input.log().clamp(min=-100) - (1 - input).log().clamp(min=-100)
        values = values - (target - inside) * odds * (1 if weight is None else weight)
        if self.reduction == "none":
            return values
        return values.sum() if self.reduction == "sum" else values.mean()


def take_any_target(loss: Loss) -> Loss:
    """The same loss, defined for all targets that a search may try."""
    if type(loss) is not nn.BCELoss:
        return loss
    return _BinaryCrossEntropy(loss.weight, reduction=loss.reduction)


@dataclass(frozen=True)
class TrainingLoss:
    """A loss with its own mean over a batch, and its value for each example.

    The mean is what training differentiates, bit for bit. If it weights examples, such as by their
    class, the value of each example has its weight in it, so that their mean is the loss of the
    batch:

        L = 1/B sum_i l_i,   l_i = B a_i m_i,   dL/do_i = a_i dm_i/do_i

    with the outputs o_i and the loss m_i of example i alone. The weights a_i may depend on all
    targets, but not on the outputs.

    Args:
        alone: The loss of each example by itself, `(B,)`.
        reduced: One number for the batch; None for the mean of `alone`.
        weighted: Whether `reduced` weights examples.

    Example:
        >>> weights = torch.tensor([1.0, 3.0])
        >>> loss = adapt_loss(nn.CrossEntropyLoss(weight=weights))
        >>> outputs, labels = torch.zeros(2, 2), torch.tensor([0, 1])
        >>> loss(outputs, labels)
        tensor([0.3466, 1.0397])
        >>> bool(loss.mean(outputs, labels).isclose(loss(outputs, labels).mean()))
        True
    """

    alone: Loss
    reduced: Loss | None = None
    weighted: bool = False

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Compute one value per example, `(B,)`."""
        if not self.weighted:
            return self.alone(outputs, labels)
        weights, _ = self.weigh(outputs, labels)
        # An example that does not count may have no loss of its own, such as 0 / 0.
        (counting,) = weights.nonzero(as_tuple=True)
        losses = weights[counting] * self.alone(outputs[counting], labels[counting])
        return len(weights) * torch.zeros_like(weights).index_put((counting,), losses)

    def mean(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of the batch, as training computes it."""
        if self.reduced is None:
            return self(outputs, labels).mean()
        return self.reduced(outputs, labels).reshape(())

    def weigh(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The weight a_i of each example `(B,)`, and the share of slopes that they leave over."""
        at = outputs.detach()
        whole = grad(lambda given: self.mean_of(given, labels))(at).flatten(1)
        single = grad(lambda given: self.alone(given, labels).nansum())(at).flatten(1)
        single = torch.where(whole.any(1, keepdim=True), single, 0.0).nan_to_num()
        lengths = single.square().sum(1)
        weights = torch.where(lengths == 0, 0.0, (whole * single).sum(1) / lengths)
        return weights, (whole - weights[:, None] * single).norm() / whole.norm()

    def mean_of(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of the batch, without the values of each example."""
        return (self.reduced or self.alone)(outputs, labels).mean()

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TrainingLoss:
        """Return the loss with its tensors, such as class weights, moved."""
        alone, reduced = (
            None if part is None else move_loss(part, device=device, dtype=dtype)
            for part in (self.alone, self.reduced)
        )
        return replace(self, alone=alone or self.alone, reduced=reduced)


def move_loss(
    loss: Loss, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Loss:
    """Move the tensors of a loss; a function keeps its own."""
    match loss:
        case nn.Module():
            return copy.deepcopy(loss).to(device=device, dtype=dtype)
        case Unreduced():
            return replace(loss, loss=copy.deepcopy(loss.loss).to(device=device, dtype=dtype))
        case TrainingLoss():
            return loss.to(device=device, dtype=dtype)
        case _:
            return loss


def adapt_loss(loss: Loss) -> Loss:
    """Return a loss that gives one value per example; functions are taken to do so already.

    Example:
        >>> loss = adapt_loss(nn.BCEWithLogitsLoss())
        >>> loss(torch.zeros(2, 3), torch.ones(2, 3))
        tensor([0.6931, 0.6931])
    """
    loss = take_any_target(loss)
    if not isinstance(loss, nn.modules.loss._Loss):
        return loss
    reduction = loss.reduction
    if reduction not in ("mean", "sum", "none"):
        raise InvalidValue(
            f"expected {type(loss).__name__} with reduction 'mean', 'sum' or 'none', got "
            f"{reduction!r}; write a function that gives one value per example"
        )
    own = copy.deepcopy(loss)
    own.reduction = "none"
    alone = Unreduced(own, summed=reduction == "sum")
    if reduction != "mean":
        return TrainingLoss(alone)
    classed = getattr(loss, "ignore_index", _NO_CLASS) != _NO_CLASS
    weighted = not isinstance(loss, ELEMENTWISE) and getattr(loss, "weight", None) is not None
    return TrainingLoss(alone, copy.deepcopy(loss), weighted or classed)
