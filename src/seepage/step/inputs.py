"""A batch as training loops have it, and the space its inputs live in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from seepage.core import Batch, Domain
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.precision import upcast
from seepage.domains import Image, Signal

_INPUTS = ("pixel_values", "inputs", "inputs_embeds", "x")
_TOKENS = "input_ids"


def read_batch(batch: object) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a pair, a `Batch`, or a mapping as data loaders give them."""
    if isinstance(batch, Batch):
        return batch.inputs, batch.labels
    if isinstance(batch, Mapping):
        named = next((key for key in _INPUTS if key in batch), None)
        pair = (batch.get(named or _TOKENS), batch.get("labels"))
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        pair = (batch[0], batch[1])
    else:
        pair = (None, None)
    inputs, labels = pair
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor):
        raise InvalidValue(
            "expected a batch as (inputs, labels), two tensors, or a mapping of "
            f"{', '.join(_INPUTS)} and labels, got {type(batch).__name__}"
        )
    return inputs, labels


def usable(inputs: Tensor, labels: Tensor) -> Batch:
    """The batch as attacks can search for it, or words on why they cannot."""
    if not inputs.is_floating_point():
        raise NotApplicable(
            f"expected inputs that are real numbers, got {inputs.dtype}: nobody can search between "
            "whole numbers such as tokens; audit the step on their embeddings, or divide images by "
            "255"
        )
    if labels.ndim == 1 and not labels.is_floating_point() and labels.dtype != torch.bool:
        labels = labels.long()
    if labels.ndim == 2 and labels.shape[1] == 1 and not labels.is_floating_point():
        labels = labels[:, 0].long()
    if labels.ndim not in (1, 2) or (labels.ndim == 1 and labels.dtype != torch.int64):
        raise NotApplicable(
            f"expected class numbers (B,) or class probabilities (B, K), got labels of shape "
            f"{tuple(labels.shape)} and {labels.dtype}: only classifiers can be audited so far"
        )
    # Double precision stays, or a network in it would read other numbers than in training.
    return Batch(upcast(inputs.detach().clone()), labels.detach().clone())


def assumed_domain(inputs: Tensor) -> tuple[Domain, str]:
    """The space of inputs of which nothing is said, and words on what was assumed.

    Values are taken to lie in [0, 1], [-1, 1] or between the next powers of two, as inputs that
    were scaled or normalised do; entries keep the scale in which the network reads them.

    Example:
        >>> assumed_domain(torch.full((2, 3, 8, 8), 0.5))[0]
        Image(shape=(3, 8, 8), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), bounds=(0.0, 1.0))
    """
    low, high = float(inputs.min()), float(inputs.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidValue("expected finite inputs, got NaN or infinity; check the batch")
    reach = 2.0 ** max(0, math.ceil(math.log2(max(abs(low), abs(high), 1.0))))
    bounds = (0.0, 1.0) if low >= 0 and high <= 1 else (-reach, reach)
    shape = tuple(inputs.shape[1:])
    words = (
        f"the adversary is taken to know that inputs lie in [{bounds[0]:g}, {bounds[1]:g}], as the "
        "network reads them; give domain= for another range or for natural units"
    )
    if len(shape) == 3:
        return Image(shape, bounds=bounds), words
    # Anything else is channels of numbers in a row.
    rows = shape if len(shape) == 2 else (1, *shape) if len(shape) == 1 else (shape[0], -1)
    if -1 in rows:
        rows = (shape[0], math.prod(shape[1:]))
    return Signal(rows, bounds=bounds), words
