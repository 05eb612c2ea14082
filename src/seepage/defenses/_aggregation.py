"""Secure aggregation: the server sees only the combined update of several clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from seepage.core import Batch, Update
from seepage.core._chain import Link
from seepage.core.errors import InvalidValue, require_at_least


@dataclass(frozen=True, repr=False)
class SecureAggregation(Link):
    """Split the batch among several clients and share only the combination of their updates.

        U = sum_i (n_i / n) u_i,   or   U = sum_i u_i

    with u_i the defended update of client i. It holds n_i of the n examples: consecutive ones, in
    parts as equal as possible. This is what a correct protocol reveals. Masks and key exchange
    cancel in the sum and are not simulated. For one gradient step the combination is the gradient
    of the whole batch.

    Args:
        clients: Number of clients.
        average: Weigh clients by their number of examples, as federated averaging does; if False,
            add their updates.

    Example:
        >>> SecureAggregation(10)
        SecureAggregation(10)

    References:
        Bonawitz et al., 2017 (bonawitz2017practical); McMahan et al., 2017
        (mcmahan2017communication) for the weights
    """

    label = "Secure aggregation of {clients}"

    clients: int
    average: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        require_at_least(1, clients=self.clients)

    def split(self, batch: Batch) -> list[Batch]:
        """Split the batch into one part per client."""
        if len(batch) < self.clients:
            raise InvalidValue(
                f"{self} splits the batch among {self.clients} clients, but it has only "
                f"{len(batch)} examples; use a larger batch or fewer clients"
            )
        pieces = zip(
            torch.tensor_split(batch.inputs, self.clients),
            torch.tensor_split(batch.labels, self.clients),
            strict=True,
        )
        return [Batch(inputs, labels) for inputs, labels in pieces]

    def combine(self, updates: Sequence[Update], sizes: Sequence[int]) -> Update:
        """Compute the weighted sum, differentiably."""
        weights = [size / sum(sizes) if self.average else 1.0 for size in sizes]
        total = weights[0] * updates[0].flat()
        for weight, update in zip(weights[1:], updates[1:], strict=True):
            total = total + weight * update.flat()
        return updates[0].unflatten(total)
