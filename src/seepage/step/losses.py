"""The loss of each example, from a loss that training loops reduce to one number."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.clients.gradient import Reduction
from seepage.core.errors import InvalidValue, in_a_line
from seepage.core.task import Loss

_CLOSE = 1e-4


@dataclass(frozen=True)
class OneByOne:
    """A reduced loss, taken of each example alone."""

    loss: Callable[[Any, Tensor], Tensor]

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """One value per example."""
        pairs = ((outputs[i : i + 1], labels[i : i + 1]) for i in range(len(labels)))
        return torch.stack([self.loss(one, label).reshape(()) for one, label in pairs])


@dataclass(frozen=True)
class OfLogits:
    """A loss that reads `.logits` of what a network returns, given the logits alone."""

    loss: Callable[[Any, Tensor], Tensor]

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Wrap the logits up again."""
        return self.loss(SimpleNamespace(logits=outputs), labels)


def per_example(
    loss: Callable[[Any, Tensor], Tensor], outputs: Tensor, labels: Tensor
) -> tuple[Loss, Reduction]:
    """The loss unreduced, and how it was reduced; found out on the outputs of the step itself.

    Args:
        loss: As the training loop calls it.
        outputs: Logits `(B, K)`.
        labels: `(B,)` or `(B, K)`.

    Example:
        >>> outputs, labels = torch.eye(3), torch.tensor([0, 1, 1])
        >>> per_example(nn.CrossEntropyLoss(reduction="sum"), outputs, labels)
        (CrossEntropyLoss(), 'sum')
    """
    if not callable(loss):
        raise InvalidValue(f"expected a loss to call on outputs and labels, got {loss!r}")
    loss, value = _called(loss, outputs, labels)
    if value.shape == labels.shape[:1] and (len(labels) > 1 or value.ndim == 1):
        return loss, "mean"
    if value.numel() != 1:
        raise InvalidValue(
            f"expected a loss of one number, or one per example ({len(labels)},), got "
            f"{tuple(value.shape)}"
        )
    for unreduced in _candidates(loss):
        losses = unreduced(outputs, labels)
        if losses.shape != labels.shape[:1]:
            continue
        reductions: tuple[tuple[Reduction, Tensor], ...] = (
            ("mean", losses.mean()),
            ("sum", losses.sum()),
        )
        for name, reduced in reductions:
            if torch.allclose(reduced, value.reshape(()), rtol=_CLOSE, atol=1e-7):
                return unreduced, name
    raise InvalidValue(
        "expected a loss that is the mean or the sum of the losses of each example, got one that "
        "is neither; leave class weights and terms that tie examples together out of the audit"
    )


def _called(
    loss: Callable[[Any, Tensor], Tensor], outputs: Tensor, labels: Tensor
) -> tuple[Callable[[Any, Tensor], Tensor], Tensor]:
    try:
        try:
            value = loss(outputs, labels)
        except AttributeError:
            loss = OfLogits(loss)
            value = loss(outputs, labels)
    except Exception as error:
        raise InvalidValue(
            f"expected a loss of outputs {tuple(outputs.shape)} and labels {tuple(labels.shape)}, "
            f"but it raised {in_a_line(error)}"
        ) from error
    if not isinstance(value, Tensor):
        raise InvalidValue(f"expected a loss that is a tensor, got {type(value).__name__}")
    return loss, value


def _candidates(loss: Callable[[Any, Tensor], Tensor]) -> list[Loss]:
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") != "none":
        unreduced = copy.deepcopy(loss)
        unreduced.reduction = "none"  # type: ignore[assignment]
        return [unreduced, OneByOne(loss)]
    return [OneByOne(loss)]
