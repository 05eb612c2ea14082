"""Composition: a chain of defenses is again a defense."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from seepage.core import Defense, Rng, Update
from seepage.core.errors import InvalidValue
from seepage.core.update import Granularity


@dataclass(frozen=True)
class Chain:
    """Defenses applied from left to right; built by `chain`."""

    links: tuple[Defense, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an impossible order."""
        for first, then in pairwise(self.links):
            if first.produces != then.consumes:
                raise InvalidValue(
                    f"{then} takes {then.consumes} updates, but {first} before it gives "
                    f"{first.produces} ones; per-example links come first, then Mean(), then "
                    "the rest"
                )

    def __repr__(self) -> str:
        """Read like the call that made it."""
        return f"chain({', '.join(map(repr, self.links))})"

    @property
    def consumes(self) -> Granularity:
        """What the first link takes."""
        return self.links[0].consumes if self.links else "aggregate"

    @property
    def produces(self) -> Granularity:
        """What the last link gives."""
        return self.links[-1].produces if self.links else "aggregate"

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Apply every link, each with a key of its own."""
        for index, link in enumerate(self.links):
            update = link(update, rng=rng.fork(index))
        return update

    def expected(self, update: Update) -> Update:
        """Apply the deterministic part of every link."""
        for link in self.links:
            update = link.expected(update)
        return update


def chain(*defenses: Defense) -> Defense:
    """Compose defenses; nested chains are flattened and a chain of one is that one.

    Example:
        >>> from seepage.defenses import AddGaussian, ClipEach, Mean
        >>> chain(ClipEach(1.0), Mean(), AddGaussian(0.1))  # DP-SGD
        chain(ClipEach(1.0), Mean(), AddGaussian(0.1))
        >>> chain(Mean(), ClipEach(1.0))
        Traceback (most recent call last):
        ...
        seepage.core.errors.InvalidValue: ClipEach(1.0) takes per_example updates, but \
Mean() before it gives aggregate ones; per-example links come first, then Mean(), then the rest
    """
    links: list[Defense] = []
    for defense in defenses:
        if not isinstance(defense, Defense):
            raise InvalidValue(f"expected defenses in a chain, got {defense!r}")
        links.extend(defense.links if isinstance(defense, Chain) else [defense])
    return links[0] if len(links) == 1 else Chain(tuple(links))
