"""What single entries tell: which survived a sparse defense, and how small the others were."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.reading.plan import Plan
from seepage.attacks.reading.within import Within
from seepage.core import Update
from seepage.defenses import Clip, Dropout, Prune, TopK, chain

Sparse = Prune | TopK | Dropout


def read_survivors(link: Sparse, plan: Plan) -> Plan:
    """Compare what survived; what was pruned for being small must only be as small.

    Only what keeps zeros may follow: behind noise, or in a sum over clients, nobody sees which
    entries survived. There, and where fewer survived than there are unknowns, which leaves the
    input open, what was pruned is compared as if it had not been: zero is nearly right for it, and
    that brought back more than pruning the candidate's. The mean of dropout is simulated there.
    """
    observed = plan.observation.update
    seen = all(isinstance(later, Sparse | Clip | Within) for later in plan.after(link))
    if isinstance(link, Dropout) and not seen:
        return plan
    enough = int((observed.flat() != 0).sum()) >= plan.unknowns
    if not isinstance(link, Dropout) and not (seen and enough):
        return plan.standing_in(link, chain())
    sole = len(plan.defense.guards) == 1
    bound = _bound(link, observed) if sole else _unbounded(observed)
    limit = torch.where(observed.flat() != 0, 0.0, bound)
    factor = 1 / (1 - link.rate) if isinstance(link, Dropout) and link.rescale else 1.0
    return plan.standing_in(link, Within(observed, observed.unflatten(limit), factor=factor))


def _bound(link: Sparse, observed: Update) -> Tensor:
    """The largest magnitude that can have been removed, for every entry `(P,)`."""
    if isinstance(link, Dropout):
        return _unbounded(observed)
    if isinstance(link, Prune) and link.scope == "tensor":
        return observed.map(lambda t: _smallest(t).expand_as(t)).flat()
    flat = observed.flat()
    return _smallest(flat).expand_as(flat)


def _unbounded(observed: Update) -> Tensor:
    return torch.full_like(observed.flat(), torch.inf)


def _smallest(entries: Tensor) -> Tensor:
    """The smallest survivor; where nothing survived, anything may have been removed."""
    return torch.where(entries != 0, entries.abs(), torch.inf).min()
