"""The loss that a network computes itself, as models of transformers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from seepage.core._device import upcast
from seepage.core.errors import InvalidValue, summarise_error
from seepage.integrations.gathered_step import SMOOTHING
from seepage.probing._hooks import evaluating
from seepage.zoo._foreign import find_logits

# Relative difference up to which two losses are the same.
_CLOSE = 1e-5
# What the trainer of transformers gives a network besides its batch.
_ITEMS = "num_items_in_batch"


def _classify(outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of one class for each example, or of several with probabilities."""
    return functional.cross_entropy(upcast(outputs), labels, label_smoothing=smoothing)


def _classify_places(outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of a class for each place of a text, such as of the words behind masks."""
    return _classify(outputs.flatten(0, 1), labels.flatten(), smoothing)


def _predict_next(outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of the next token at each place; a prompt before the text has no labels."""
    prompt = outputs.shape[1] - labels.shape[1]
    following = functional.pad(labels, (prompt, 1), value=-100)[:, 1:]
    return _classify_places(outputs, following, smoothing)


def _regress(outputs: Tensor, labels: Tensor) -> Tensor:
    """Mean squared error, of one number for each example or of several."""
    return functional.mse_loss(outputs.reshape(labels.shape), labels)


def _choose_several(outputs: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy of classes of which several may be right."""
    return functional.binary_cross_entropy_with_logits(outputs, labels)


@dataclass(frozen=True)
class _Scaled:
    """A multiple of a loss, as where a trainer divides by all items of accumulated batches."""

    loss: Callable[[Tensor, Tensor], Tensor]
    factor: float

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.factor * self.loss(outputs, labels)


_SMOOTHED = (_classify, _predict_next, _classify_places)
_LOSSES = (*_SMOOTHED, _regress, _choose_several)


def find_model_loss(model: nn.Module, batch: object) -> Callable[[Tensor, Tensor], Tensor]:
    """Find out which loss of logits and labels a network computes when it is called with a batch.

    The usual ones are compared with what the network returns as its `loss`.

    Raises:
        InvalidValue: It returns no loss, or one that is not known here.
    """
    if not isinstance(batch, Mapping) or batch.get("labels") is None:
        raise InvalidValue(
            "expected a batch as a mapping with labels where the network computes its own loss, "
            f"got {', '.join(batch) if isinstance(batch, Mapping) else type(batch).__name__}; give "
            "loss=, as the training loop calls it"
        )
    smoothing = batch.get(SMOOTHING)
    given = {n: part for n, part in batch.items() if n != SMOOTHING}
    alone = {n: part for n, part in given.items() if n != _ITEMS}
    try:
        with evaluating(model):
            returned = model(**alone)
            divided = model(**given) if _ITEMS in batch else returned
    except Exception as error:
        raise InvalidValue(
            f"{type(model).__name__} cannot be run on this batch, it raised "
            f"{summarise_error(error)}"
        ) from error
    own = returned.get("loss") if isinstance(returned, Mapping) else None
    if not isinstance(own, Tensor) or own.numel() != 1:
        raise InvalidValue(
            f"expected {type(model).__name__} to return a loss of one number beside its logits; "
            "give loss=, as the training loop calls it"
        )
    if not bool(own.isfinite()):
        raise InvalidValue(
            f"expected a finite loss of {type(model).__name__}, got NaN or infinity, as where it "
            "ignores every label, such as -100"
        )
    for loss, value in _compute_losses(find_logits(returned), batch["labels"]):
        if torch.allclose(value, upcast(own).reshape(()), rtol=_CLOSE, atol=1e-7):
            if smoothing and loss in _SMOOTHED:
                return partial(loss, smoothing=float(smoothing))
            return loss if _ITEMS not in batch else _Scaled(loss, float(divided["loss"] / own))
    raise InvalidValue(
        f"the loss that {type(model).__name__} computes is none of cross-entropy of classes, of "
        "places or of next tokens, squared error or binary cross-entropy; give loss=, as a "
        "function of logits and labels"
    )


def _compute_losses(
    logits: Tensor, labels: Tensor
) -> Iterator[tuple[Callable[[Tensor, Tensor], Tensor], Tensor]]:
    """The usual losses with their values, as far as they take such logits and labels."""
    for loss in _LOSSES:
        try:
            value = upcast(loss(logits, labels)).reshape(())
        except (RuntimeError, ValueError, IndexError):
            continue
        yield loss, value
