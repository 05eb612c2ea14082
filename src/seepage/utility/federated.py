"""Training in a federation: rounds, in which some clients share an update each."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from seepage.clients.gradient import Gradient
from seepage.core import LocalComputation, Rng
from seepage.core.errors import InvalidValue
from seepage.numerics.schedules import Constant, Schedule
from seepage.utility.training_plan import CropAndFlip, descent, whole

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


@dataclass(frozen=True, kw_only=True)
class Federated:
    """Rounds in which every sampled client shares one defended update, and the server averages.

    Clients weigh as much as the examples they bring. Behind `SecureAggregation` the cohort of the
    round takes the place of the clients that the defense would otherwise cut one batch into.

    Args:
        clients: How many hold the data.
        rounds: How many updates the server takes.
        sampled: How many take part in a round, chosen at random; None takes all.
        local: What a client computes on what it brings.
        split: "iid", or `Dirichlet(alpha)` for clients that hold different classes.
        batch_size: Examples a client brings to a round, drawn anew; None or too many brings all.
        lr: Learning rate of the server: 1 averages models, as federated averaging does.
        momentum: Of the server.
        weight_decay: Of the server.
        schedule: Factor of the server's learning rate in every round.
        augment: What a client does to its examples first; nothing by default.
        evaluate_every: Rounds between two evaluations.

    Example:
        >>> plan = Federated(clients=10, sampled=4, rounds=20, split=Dirichlet(0.5))
        >>> plan.local, plan.count_steps(examples=1000)
        (Gradient(reduction='mean'), 20)

    References:
        McMahan et al., 2017, Algorithm 1 (mcmahan2017communication)
    """

    clients: int
    rounds: int
    sampled: int | None = None
    local: LocalComputation = field(default_factory=Gradient)
    split: Split = "iid"
    batch_size: int | None = None
    lr: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = field(default_factory=Constant)
    augment: CropAndFlip | None = None
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("clients", "rounds", "sampled", "batch_size", "evaluate_every"):
            whole(name, getattr(self, name))
        if self.cohort > self.clients:
            raise InvalidValue(
                f"expected sampled <= clients = {self.clients}, got {self.sampled!r}"
            )
        if self.split != "iid" and not isinstance(self.split, Dirichlet):
            raise InvalidValue(f"expected split 'iid' or Dirichlet(alpha), got {self.split!r}")
        descent(self.lr, self.momentum, self.weight_decay)

    @property
    def cohort(self) -> int:
        """How many take part in a round."""
        return self.sampled or self.clients

    def count_steps(self, examples: int) -> int:
        """One for every round."""
        return self.rounds

    def evaluated_every(self, examples: int) -> int:
        """As asked for."""
        return self.evaluate_every

    def sample_rate(self, examples: int) -> float | None:
        """None: clients are drawn, not examples."""
        return None

    def deal(self, labels: Tensor, *, rng: Rng) -> _Cohorts:
        """Split the data once."""
        dealt = shares(labels, clients=self.clients, split=self.split, rng=rng.fork("split"))
        return _Cohorts(tuple(dealt), self.cohort, self.batch_size, rng.fork("rounds"))


@dataclass(frozen=True, eq=False)
class _Cohorts:
    """Some clients every round, each with some of its examples."""

    shares: tuple[Tensor, ...]
    sampled: int
    batch_size: int | None
    rng: Rng

    @property
    def fewest(self) -> int:
        """What the poorest client brings."""
        least = min(map(len, self.shares))
        return min(least, self.batch_size or least)

    def __call__(self, step: int) -> list[Tensor]:
        """What the clients of a round bring."""
        key = self.rng.fork(step)
        chosen = key.permutation(len(self.shares))[: self.sampled].tolist()
        return [self._brought(client, key.fork(client)) for client in sorted(chosen)]

    def _brought(self, client: int, key: Rng) -> Tensor:
        share = self.shares[client]
        order = key.permutation(len(share))
        return share[order[: self.batch_size]]
