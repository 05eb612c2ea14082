"""The private batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core._device import convert
from seepage.core.errors import InvalidValue


def are_numbers(labels: Tensor) -> bool:
    """Whether labels are numbers, such as probabilities or values to predict, and not classes."""
    return labels.is_floating_point()


def class_numbers(labels: Tensor) -> Tensor | None:
    """The class of each example `(B,)`, the heaviest of probabilities; None of other targets.

    Example:
        >>> class_numbers(torch.tensor([[0.2, 0.8]]))
        tensor([1])
        >>> class_numbers(torch.tensor([36.6]))
    """
    if labels.ndim == 1 and not are_numbers(labels):
        return labels
    if labels.ndim == 2 and are_numbers(labels) and are_probabilities(labels):
        return labels.argmax(1)
    return None


def are_probabilities(labels: Tensor) -> bool:
    """Whether rows `(B, K)` are not negative and sum to 1."""
    sums = labels.to(torch.promote_types(labels.dtype, torch.float32)).sum(1)
    # Each probability is rounded: in bfloat16 a sum is off by a few thousandths.
    rounding = max(1e-5, 2 * torch.finfo(labels.dtype).eps)
    return bool((labels >= 0).all()) and bool(((sums - 1).abs() <= rounding).all())


@dataclass(frozen=True, eq=False)
class Batch:
    """Private inputs with their labels.

    Args:
        inputs: `(B, ...)`, in natural units (images in [0, 1]); tokens are int64.
        labels: `(B,)` class numbers, `(B, K)` probabilities for mixed labels, or targets of any
            other shape, as the loss reads them.

    Example:
        >>> Batch(torch.zeros(2, 1, 4, 4), torch.tensor([3, 1]))
        Batch(2 inputs of shape (1, 4, 4))
    """

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.inputs.ndim < 2 or len(self.inputs) == 0:
            shape = tuple(self.inputs.shape)
            raise InvalidValue(f"expected inputs (B, ...) with B >= 1, got shape {shape}")
        if not self.inputs.is_floating_point() and self.inputs.dtype != torch.int64:
            raise InvalidValue(
                f"expected floating-point inputs in natural units, got {self.inputs.dtype}; "
                "divide 8-bit images by 255, or give tokens as int64"
            )
        if self.labels.ndim < 1 or len(self.labels) != len(self.inputs):
            raise InvalidValue(
                f"expected one label per input, got {len(self.inputs)} inputs and labels of "
                f"shape {tuple(self.labels.shape)}"
            )
        if not are_numbers(self.labels) and self.labels.dtype != torch.int64:
            raise InvalidValue(
                f"expected labels as int64 or floats, got {self.labels.dtype}; use labels.long() "
                "for class numbers (B,), and labels.float() for probabilities or numbers"
            )
        if self.labels.ndim == 2 and not are_numbers(self.labels):
            raise InvalidValue(
                f"expected label probabilities (B, K) as floats, got {self.labels.dtype}; "
                "use class numbers (B,) for hard labels"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        """Describe the batch without printing private data."""
        return f"Batch({len(self)} inputs of shape {tuple(self.inputs.shape[1:])})"

    def to(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Batch:
        """Return the batch on another device or with inputs of another precision."""
        moved = (t.to(device=device) for t in (self.inputs, self.labels))
        inputs, labels = (t if dtype is None else convert(t, dtype) for t in moved)
        return Batch(inputs, labels)
