"""How large a first layer must be for a batch to be recoverable: equations against unknowns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from seepage.core.errors import InvalidValue


def hidden_units_needed(batch: int, *, inputs: int, outputs: int) -> int | None:
    """Units that a hidden layer with bias needs so that equations outnumber unknowns.

        n2 + n1 n2 + n1 + n1 d >= B n2 + n1 B + B d
        n1 >= (B (d + n2) - n2) / (d + n2 + 1 - B)

    About B for inputs of high dimension; one unit is enough for one example. None where no width
    is: the batch is as large as d + n2 + 1.

    Args:
        batch: Number B of private inputs.
        inputs: Their dimension d.
        outputs: Units n2 of the layer that follows.

    Example:
        >>> hidden_units_needed(1, inputs=3072, outputs=10), hidden_units_needed(
        ...     8, inputs=1024, outputs=10
        ... )
        (1, 9)

    References:
        Qian and Hansen, 2020, Propositions 1 and 2 (qian2020what)
    """
    _require_batch(batch)
    spare = inputs + outputs + 1 - batch
    if spare <= 0:
        return None
    return max(1, math.ceil(Fraction(batch * (inputs + outputs) - outputs, spare)))


def filters_needed(batch: int, *, before: Sequence[int], after: Sequence[int]) -> int:
    """Filters that a first convolution needs so that its outputs are as many as its inputs.

        h = (d / d')^2 B C

    Along every axis where an image has two; a signal has one.

    Args:
        batch: Number B of private inputs.
        before: Shape `(C, d, ...)` of one input.
        after: Spatial sizes `(d', ...)` behind the convolution.

    Example:
        >>> filters_needed(4, before=(3, 32, 32), after=(16, 16))
        48

    References:
        Qian and Hansen, 2020, Proposition 3 (qian2020what)
    """
    _require_batch(batch)
    return math.ceil(Fraction(batch * math.prod(before), math.prod(after)))


def features_determined(batch: int, *, features: int, outputs: int) -> bool:
    """Whether the linear layer behind a convolution determines the features it reads.

        n1 >= n2 (B - 1) / (n2 - B)   for 1 < B < n2; always for one example

    Args:
        batch: Number B of private inputs.
        features: Number n1 = h d'^2 of features.
        outputs: Units n2 of the linear layer.

    Example:
        >>> features_determined(8, features=3072, outputs=10)
        True
        >>> features_determined(32, features=3072, outputs=10)
        False

    References:
        Qian and Hansen, 2020, Proposition 3 (qian2020what)
    """
    _require_batch(batch)
    if batch == 1:
        return True
    return batch < outputs and features * (outputs - batch) >= outputs * (batch - 1)


def _require_batch(batch: int) -> None:
    if batch < 1:
        raise InvalidValue(f"expected a batch of one or more, got {batch!r}")
