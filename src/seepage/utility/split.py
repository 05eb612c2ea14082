"""How the data of a federation lie with its clients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from seepage.core import Rng
from seepage.core.errors import InvalidValue

# A split that leaves a client without any example is drawn again, so many times.
TRIALS = 100


@dataclass(frozen=True)
class Dirichlet:
    """Every class is shared out in proportions of its own, drawn from Dirichlet(alpha).

    A small alpha leaves most of a class to one client; a large one comes near "iid".

    References:
        Yurochkin et al., 2019 (yurochkin2019bayesian)
    """

    alpha: float

    def __post_init__(self) -> None:
        """Check the concentration."""
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise InvalidValue(f"expected alpha > 0, got {self.alpha!r}")


Split = Literal["iid"] | Dirichlet


def shares(labels: Tensor, *, clients: int, split: Split, rng: Rng) -> list[Tensor]:
    """Deal all examples to clients: their numbers, one tensor per client, none of them empty.

    Example:
        >>> from seepage.core import rng
        >>> dealt = shares(torch.arange(10) % 2, clients=3, split="iid", rng=rng(0))
        >>> [len(share) for share in dealt], sorted(torch.cat(dealt).tolist()) == list(range(10))
        ([4, 3, 3], True)
    """
    if clients > len(labels):
        raise InvalidValue(
            f"expected an example for each of the {clients} clients, got {len(labels)} examples; "
            "use fewer clients"
        )
    if split == "iid":
        return list(torch.tensor_split(rng.permutation(len(labels)), clients))
    for trial in range(TRIALS):
        dealt = _by_class(labels, clients, split.alpha, rng.fork(trial))
        if all(len(share) for share in dealt):
            return dealt
    raise InvalidValue(
        f"expected {split} to leave every one of {clients} clients an example, but {TRIALS} draws "
        f"over {len(labels)} examples left some without; use a larger alpha or fewer clients"
    )


def _by_class(labels: Tensor, clients: int, alpha: float, rng: Rng) -> list[Tensor]:
    kinds = labels if labels.ndim == 1 else labels.argmax(1)
    gamma = np.random.default_rng(rng.generator().initial_seed())
    dealt: list[list[Tensor]] = [[] for _ in range(clients)]
    for kind in sorted(set(kinds.tolist())):
        members = torch.nonzero(kinds == kind).flatten()
        members = members[rng.fork("order", kind).permutation(len(members))]
        proportions = torch.from_numpy(gamma.dirichlet([alpha] * clients)).cumsum(0)[:-1]
        cuts = (proportions * len(members)).round().long()
        for share, part in zip(dealt, torch.tensor_split(members, cuts), strict=True):
            share.append(part)
    return [torch.cat(share) for share in dealt]
