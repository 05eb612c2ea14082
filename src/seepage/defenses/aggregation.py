"""Secure aggregation: the server sees what many clients sent together, and nobody's own update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from seepage.core import Batch, Update
from seepage.core.errors import InvalidValue
from seepage.defenses.chain import Link


@dataclass(frozen=True, repr=False)
class SecureAggregation(Link):
    """Deal the batch to several clients and share only the combination of their updates.

        U = sum_i (n_i / n) u_i,   or   U = sum_i u_i

    with u_i the defended update of client i, which holds n_i of the n examples: consecutive ones,
    as equal in number as can be. This is what a correct protocol reveals; masks and key exchange,
    which cancel in the sum, are not played through. For one gradient step the combination is the
    gradient of the whole batch.

    Args:
        clients: How many take part.
        average: Weigh clients by their number of examples, as federated averaging does; otherwise
            their updates are added up.

    Example:
        >>> SecureAggregation(10)
        SecureAggregation(10)

    References:
        Bonawitz et al., 2017 (bonawitz2017practical); McMahan et al., 2017
        (mcmahan2017communication) for the weights
    """

    clients: int
    average: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Check the number."""
        if self.clients < 1:
            raise InvalidValue(f"expected clients >= 1, got {self.clients!r}")

    def split(self, batch: Batch) -> list[Batch]:
        """Cut the batch into one piece per client."""
        if len(batch) < self.clients:
            raise InvalidValue(
                f"{self} deals examples to {self.clients} clients, but the batch has only "
                f"{len(batch)}; use a larger batch or fewer clients"
            )
        pieces = zip(
            torch.tensor_split(batch.inputs, self.clients),
            torch.tensor_split(batch.labels, self.clients),
            strict=True,
        )
        return [Batch(inputs, labels) for inputs, labels in pieces]

    def combine(self, updates: Sequence[Update], sizes: Sequence[int]) -> Update:
        """The weighted sum, differentiable."""
        weights = [size / sum(sizes) if self.average else 1.0 for size in sizes]
        total = weights[0] * updates[0].flat()
        for weight, update in zip(weights[1:], updates[1:], strict=True):
            total = total + weight * update.flat()
        return updates[0].unflatten(total)
