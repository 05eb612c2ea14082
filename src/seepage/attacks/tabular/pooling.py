"""One table from many members of an ensemble, and how far they agree."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.domains import Categorical, Tabular


def aligned(members: Tensor, labels: Tensor, *, reference: int) -> Tensor:
    """Every member's rows in the order of one of them: the order of a batch means nothing.

    Rows are matched so that their summed squared distance is least, and only within a label, since
    labels are known of every row.

    Args:
        members: Normalised rows `(R, B, D)`.
        labels: `(B,)`, or `(B, K)` probabilities; the same for every member.
        reference: The member whose order is kept.

    References:
        Vero et al., 2023, Sec. 4.2 (vero2023tableak); Kuhn, 1955 (kuhn1955hungarian)
    """
    from scipy.optimize import linear_sum_assignment

    codes = labels[:, None] if labels.ndim == 1 else labels
    strangers = (codes[:, None] != codes[None]).any(-1).cpu()
    kept = members[reference].double().cpu()
    ordered = []
    for member in members:
        costs = (kept[:, None] - member.double().cpu()[None]).square().sum(-1)
        # Dearer than any assignment within labels can be.
        costs = costs.masked_fill(strangers, float(costs.sum()) + 1)
        _, columns = linear_sum_assignment(costs.numpy())
        ordered.append(member[torch.as_tensor(columns, device=member.device)])
    return torch.stack(ordered)


def pooled(members: Tensor) -> Tensor:
    """The median over members, entry by entry: `(R, B, D)` to `(B, D)`.

    Of an even number the two in the middle are averaged.
    """
    return members.quantile(0.5, dim=0)


def confidence(members: Tensor, domain: Tabular) -> Tensor:
    """How far members agree on each column, from 0, as on nothing, to 1: `(B, F)`.

        categories: 1 - H(p) / log K,       p the mean of the members' probabilities
        numbers:    1 - exp(h) / exp(h0),   h the entropy of a Gaussian fitted to the members,
                                            h0 that of the population

    To be compared within a kind of column: agreement on a number and on a category are not of one
    scale. Behind noise members agree on what the noise says, so that it tells nothing.

    Args:
        members: Aligned normalised rows `(R, B, D)`.
        domain: The table.

    Example:
        >>> table = Tabular((Categorical(name="vote", categories=("no", "yes")),))
        >>> agreed, split = [[[0.0, 1.0]]] * 2, [[[0.0, 1.0]], [[1.0, 0.0]]]
        >>> [confidence(torch.tensor(m), table).item() for m in (agreed, split)]
        [1.0, 0.0]

    Deviations:
        The paper gives the entropies themselves, which are of different scale for numbers.

    References:
        Vero et al., 2023, Sec. 4.3 (vero2023tableak)
    """
    parts = [
        _certainty(members[..., place].mean(0))
        if isinstance(column, Categorical)
        # Numbers are standardised: the deviation of the population is 1.
        else 1 - members[..., place.start].std(0, correction=0)
        for column, place in zip(domain.columns, domain.places, strict=True)
    ]
    return torch.stack(parts, dim=1).clamp(0, 1)


def _certainty(probabilities: Tensor) -> Tensor:
    entropy = torch.special.entr(probabilities).sum(-1)
    certainty: Tensor = 1 - entropy / math.log(probabilities.shape[-1])
    return certainty
