"""What a client shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue

Granularity = Literal["per_example", "aggregate"]
Kind = Literal["gradient", "difference"]


@dataclass(frozen=True, eq=False)
class Update:
    """One tensor per parameter.

    Args:
        tensors: By parameter name; with a leading axis `(B, ...)` if per example.
        granularity: Whether examples are still apart or already combined.
        kind: A gradient, or a difference of parameters (after minus before), which points the
            opposite way.
    """

    tensors: Mapping[str, Tensor]
    granularity: Granularity = "aggregate"
    kind: Kind = "gradient"

    def __post_init__(self) -> None:
        if not self.tensors:
            raise InvalidValue("expected an update of at least one tensor, got none")
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __repr__(self) -> str:
        return f"Update({len(self.tensors)} tensors, {self.granularity}, {self.kind})"

    def map(self, function: Callable[[Tensor], Tensor]) -> Update:
        """Apply a function to every tensor."""
        return replace(self, tensors={name: function(t) for name, t in self.tensors.items()})

    def flat(self) -> Tensor:
        """All entries in one vector `(P,)`, or one row per example `(B, P)`."""
        keep = 1 if self.granularity == "per_example" else 0
        # A bias of one example (B,) has no axis left to flatten.
        return torch.cat([t.reshape(*t.shape[:keep], -1) for t in self], dim=-1)

    def unflatten(self, vector: Tensor) -> Update:
        """An update with these entries in the shapes of this one; undoes `flat`."""
        pieces = torch.split(vector, [t.numel() for t in self])
        named = zip(self.tensors.items(), pieces, strict=True)
        return replace(self, tensors={name: p.reshape(t.shape) for (name, t), p in named})

    def norm(self) -> Tensor:
        """Euclidean norm over all tensors: a scalar, or one per example `(B,)`."""
        # Unlike a square root of a sum, it has a derivative (zero) where the update is zero.
        norm: Tensor = torch.linalg.vector_norm(self.flat(), dim=-1)
        return norm

    def descent(self) -> Update:
        """The update oriented as a gradient, whichever kind it is (a difference is negated)."""
        if self.kind == "gradient":
            return self
        return replace(self.map(torch.neg), kind="gradient")

    def detach(self) -> Update:
        """The same numbers without their history."""
        return self.map(Tensor.detach)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors.values())


def join_rows(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join the rows of several updates by parameter; those of a single one are not copied."""
    if len(parts) == 1:
        return dict(parts[0])
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
