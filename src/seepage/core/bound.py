"""What a bound says: a number per person that no attack, or some attack, gets past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from seepage.core.errors import InvalidValue

# Of an error: "lower" says that no attack comes closer, "upper" that some attack comes this close.
Side = Literal["lower", "upper"]


@dataclass(frozen=True, eq=False)
class BoundValue:
    """A bound on the error of reconstructions, and what it rests on.

    Args:
        value: `(B,)`, one number per person; infinite or zero where it says nothing.
        side: Whether the error is at least or at most this.
        metric: Name of the metric it bounds, as scoring spells it.
        assumptions: Under which it holds, each a phrase a report can print.
        remark: Why the bound says nothing, where it does not; empty otherwise.
    """

    value: Tensor
    side: Side
    metric: str
    assumptions: tuple[str, ...] = ()
    remark: str = ""

    def __post_init__(self) -> None:
        """Refuse what a report could not draw."""
        if self.value.ndim != 1 or bool(self.value.isnan().any()):
            raise InvalidValue(
                f"expected a bound as one number per person, got {self.value!r}; say in a remark "
                "why it cannot be given"
            )

    @property
    def vacuous(self) -> bool:
        """Whether it says nothing."""
        return bool(self.remark)
