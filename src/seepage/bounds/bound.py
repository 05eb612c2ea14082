"""What a bound must look like to stand in a catalogue."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Rng, Task


@runtime_checkable
class Bound(Protocol):
    """What theory allows, beside what attacks reach: a frozen value."""

    @property
    def name(self) -> str:
        """The key in tables."""

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Bound the error of reconstructions from this client's update, person by person.

        Args:
            client: Who shares, and behind which defense.
            task: The broadcast network, in the mode the client runs it.
            batch: Where the bound is evaluated: bounds are of the truth, attacks never see them.
            rng: For bounds that sample directions.
        """
