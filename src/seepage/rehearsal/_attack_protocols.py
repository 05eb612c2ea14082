"""What `auto` and attacks like it can be asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from seepage.core import Attack, Observation, Reconstruction, Rng

if TYPE_CHECKING:
    from seepage.data._public_data import PublicData


@runtime_checkable
class Rehearses(Protocol):
    """An attack that rehearses on public inputs, which an audit gives it."""

    def with_public(self, public: PublicData, /) -> Attack:
        """The same attack with these to rehearse on, unless it has some already."""


@runtime_checkable
class Searches(Protocol):
    """An attack that computes what it can, and searches for the rest."""

    def search_alone(self, seen: Observation, /) -> Attack | None:
        """The attack without closed forms; None if it only computes or only searches anyway."""

    def prove(self, seen: Observation, /, *, rng: Rng) -> Reconstruction | None:
        """What it computes and proves; None if that is left to its search."""
