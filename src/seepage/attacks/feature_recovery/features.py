"""What feature recovery finds: the inputs of one layer inside a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from seepage.core import Observation, Rng


@dataclass(frozen=True, eq=False)
class Features:
    """Inputs of one fully connected layer, as far as an update gives them away.

    Args:
        layer: Name of the layer, as `named_modules` spells it, whose inputs these are.
        values: `(B, d)`, one row for each input, in no particular order unless `in_order`.
        span: `(d, k)`, orthonormal columns that span the inputs, also where single ones were not
            told apart.
        scaled: Whether the rows have their true length and sign, or a direction alone.
        residual: Relative difference between what the features explain and what was observed.
        told_apart: Whether nothing but noise is left unexplained. Where more is, some of the
            features may be of nobody.
        in_order: Whether feature i is that of an input with the i-th known label.
    """

    layer: str
    values: Tensor
    span: Tensor
    scaled: bool
    residual: float
    told_apart: bool = True
    in_order: bool = False


@runtime_checkable
class FeatureRecovery(Protocol):
    """A way to find the inputs of a layer in an update."""

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find them."""
