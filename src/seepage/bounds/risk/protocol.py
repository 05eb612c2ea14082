"""What a risk score must look like."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from seepage.clients import Client
from seepage.core import Batch, Rng, Task


@runtime_checkable
class RiskScore(Protocol):
    """Who is at risk, without attacking anybody: one number per person, a frozen value."""

    @property
    def name(self) -> str:
        """The key in tables."""

    @property
    def higher_leaks_more(self) -> bool:
        """Direction."""

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> Tensor:
        """Score each person, `(B,)`.

        Args:
            client: Who shares, and behind which defense, whose expectation is differentiated.
            task: The broadcast network, in the mode the client runs it.
            batch: Everybody who takes part.
            rng: For random directions.
        """
