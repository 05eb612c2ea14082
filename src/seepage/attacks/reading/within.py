"""A simulated update that is right as soon as it is as near to the observed one as can be told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from seepage.core import Rng, Update
from seepage.defenses.link import OnAggregate


@dataclass(frozen=True, eq=False, repr=False)
class Within(OnAggregate):
    """Move every entry towards the observed one, by no more than the defense may have moved it.

        g*_i + sign(d_i) max(|d_i| - limit_i, 0),   d_i = g_i - g*_i

    With limit 0 this is g, and the entry is compared as it is; with an infinite one it is g*, and
    the entry says nothing. Between them, whatever lies within the limit explains what was seen.

    Of an update that holds some of the tensors, those are moved.

    Args:
        observed: g*.
        limit: For every entry, how far the defense may have moved it.
        factor: What the client multiplied g with.

    References:
        Tobin, 1958 (tobin1958estimation) on values of which only a bound is known
    """

    observed: Update
    limit: Update
    factor: float = field(default=1.0, kw_only=True)

    def __call__(self, update: Update, *, rng: Rng) -> Update:
        """Move; there is no randomness."""
        return self.expected(update)

    def expected(self, update: Update) -> Update:
        """Move, differentiably."""
        observed, limit = (_part(whole, update).flat() for whole in (self.observed, self.limit))
        away = update.flat() * self.factor - observed
        beyond = (away.abs() - limit).clamp_min(0)
        return update.unflatten(observed + away.sign() * beyond)


def _part(whole: Update, update: Update) -> Update:
    return replace(whole, tensors={name: whole.tensors[name] for name in update.tensors})
