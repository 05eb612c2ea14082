"""Training plans: which clients compute on which examples, and how the server descends."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from seepage.clients._gradient import Gradient
from seepage.core import LocalComputation, Rng
from seepage.core.errors import InvalidValue, require_at_least, require_positive, require_within
from seepage.numerics._schedules import Constant, OneCycle, Schedule

Sampling = Literal["shuffled", "poisson"]
# The usual training takes so many passes over the data, and steps within these limits.
_PASSES, _STEPS = 20, (300, 1000)
# Its batches are so large, within these limits, for so many examples each; the learning rate is
# for the smallest of them.
_BATCH, _EXAMPLES_EACH, _RATE = (16, 64), 50, 0.05
# A split that leaves a client without any example is drawn again, this many times at most.
TRIALS = 100


@dataclass(frozen=True)
class CropAndFlip:
    """Shift images by up to `margin` pixels, padded with zeros, and mirror half of them.

    References:
        He et al., 2016, Sec. 4.2 (he2016deep)
    """

    margin: int = 4

    def __post_init__(self) -> None:
        require_at_least(0, margin=self.margin)

    def __call__(self, images: Tensor, *, rng: Rng) -> Tensor:
        """Augment images `(B, C, H, W)`."""
        if images.ndim != 4:
            shape = tuple(images.shape[1:])
            raise InvalidValue(f"{self} shifts images (C, H, W), got inputs of shape {shape}")
        height, width = images.shape[-2:]
        padded = torch.nn.functional.pad(images, (self.margin,) * 4)
        rows = self._shift(images, height, rng=rng.fork("rows"))
        columns = self._shift(images, width, rng=rng.fork("columns"))
        mirrored = rng.fork("mirror").uniform((len(images), 1), like=images) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        each = torch.arange(len(images), device=images.device)
        # Indices (B, H, W) around a slice put the channels last.
        chosen = padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return chosen.movedim(-1, 1)

    def _shift(self, images: Tensor, length: int, *, rng: Rng) -> Tensor:
        """Draw the source index of every pixel along one axis, `(B, length)`."""
        start = (rng.uniform((len(images), 1), like=images) * (2 * self.margin + 1)).long()
        return start + torch.arange(length, device=images.device)


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws the examples of every step.

    Args:
        draw: From a step to the indices of its examples, one tensor per client that takes part.
        smallest: Fewest examples of a client in one step; the expected number if that is random.
    """

    draw: Callable[[int], list[Tensor]]
    smallest: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """Stochastic gradient descent with the defense on every step.

        v_t = momentum v_{t-1} + defended gradient,   theta_{t+1} = theta_t - lr v_t

    In every step, one client holds one batch of the data.

    Args:
        epochs: Passes over the data; give this or `steps`.
        steps: Number of updates; give this or `epochs`.
        batch_size: Examples per step. "shuffled" drops an incomplete last batch, which is a
            different part of the data in every epoch.
        lr: Learning rate.
        momentum: As in `torch.optim.SGD`, without dampening.
        weight_decay: Factor of the weights that is added to the defended gradient.
        schedule: Factor of the learning rate at every step.
        sampling: "shuffled": batches of one size, every example once per epoch. "poisson": every
            example joins every step with probability B/N, as the account of DP-SGD assumes.
        augment: Augmentation of the examples; none by default.

    Example:
        >>> Training(epochs=2, batch_size=64).count_steps(examples=200)
        6

    References:
        Huang et al., 2021, Sec. A.1 (huang2021evaluating); Abadi et al., 2016 (abadi2016deep) on
        sampling
    """

    local: ClassVar[LocalComputation] = Gradient()
    # There is one client, whose batch a defense may split among several.
    cohort: ClassVar[None] = None

    epochs: int | None = None
    steps: int | None = None
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 0.0
    schedule: Schedule = field(default_factory=Constant)
    sampling: Sampling = "shuffled"
    augment: CropAndFlip | None = None

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise InvalidValue(
                f"expected either steps or epochs, got steps={self.steps!r}, epochs={self.epochs!r}"
            )
        require_at_least(1, steps=self.steps, epochs=self.epochs, batch_size=self.batch_size)
        _require_descent(self)
        if self.sampling not in ("shuffled", "poisson"):
            raise InvalidValue(f"expected sampling 'shuffled' or 'poisson', got {self.sampling!r}")

    @classmethod
    def usual(
        cls, examples: int, *, batch_size: int | None = None, steps: int | None = None
    ) -> Training:
        """The training to choose where nothing is known but the number of examples.

        It takes 20 passes over the data, but 300 to 1000 steps, in batches of 16 to 64. The
        learning rate rises to 0.05 and falls to zero, which suits networks of all kinds.

        Args:
            examples: How many there are.
            batch_size: Examples per step instead. As many examples are seen then, and small batches
                get a smaller learning rate.
            steps: Steps instead, as many as there are with the usual batch size.

        Example:
            >>> plan = Training.usual(80)
            >>> plan.steps, plan.batch_size, plan.lr
            (300, 16, 0.05)
            >>> plan = Training.usual(80, batch_size=4)
            >>> plan.steps, plan.batch_size, plan.lr
            (1200, 4, 0.0125)
        """
        least, most = _BATCH
        own = min(max(1, examples), max(least, min(most, examples // _EXAMPLES_EACH)))
        if steps is None:
            steps = max(_STEPS[0], min(_STEPS[1], _PASSES * examples // own))
        size = own if batch_size is None else batch_size
        return cls(
            steps=math.ceil(steps * own / size),
            batch_size=size,
            lr=_RATE * min(1.0, size / least),
            schedule=OneCycle(),
        )

    def count_steps(self, examples: int) -> int:
        """Count the updates on this many examples."""
        return self.steps or (self.epochs or 0) * self.evaluation_interval(examples)

    def evaluation_interval(self, examples: int) -> int:
        """Count the steps between two evaluations: one epoch."""
        return max(examples // self.batch_size, 1)

    def sample_rate(self, examples: int) -> float | None:
        """Probability B/N that an example joins a step, or None without Poisson sampling."""
        return self.batch_size / examples if self.sampling == "poisson" else None

    def build_sampler(self, labels: Tensor, *, rng: Rng) -> Sampler:
        """Decide which examples every step sees."""
        examples, size = len(labels), self.batch_size
        if size > examples:
            raise InvalidValue(
                f"expected at least batch_size = {size} examples to train on, got "
                f"{examples}; use a smaller batch_size"
            )

        def draw_poisson(step: int) -> list[Tensor]:
            joins = rng.fork(step).uniform((examples,)) < size / examples
            return [torch.nonzero(joins).flatten()]

        def draw_shuffled(step: int) -> list[Tensor]:
            epoch, position = divmod(step, examples // size)
            return [rng.fork(epoch).permutation(examples)[position * size :][:size]]

        return Sampler(draw_poisson if self.sampling == "poisson" else draw_shuffled, size)


@dataclass(frozen=True)
class Dirichlet:
    """Split every class among the clients in proportions drawn from Dirichlet(alpha).

    A small alpha leaves most of a class to one client; a large one comes near "iid".

    References:
        Yurochkin et al., 2019 (yurochkin2019bayesian)
    """

    alpha: float

    def __post_init__(self) -> None:
        require_positive(alpha=self.alpha)


Split = Literal["iid"] | Dirichlet


def _split_examples(labels: Tensor, *, clients: int, split: Split, rng: Rng) -> list[Tensor]:
    """Split all examples among clients: one tensor of indices per client, none of them empty.

    Example:
        >>> from seepage.core import rng
        >>> parts = _split_examples(torch.arange(10) % 2, clients=3, split="iid", rng=rng(0))
        >>> [len(part) for part in parts], sorted(torch.cat(parts).tolist()) == list(range(10))
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
        parts = _split_classes(labels, clients, split.alpha, rng.fork(trial))
        if all(len(part) for part in parts):
            return parts
    raise InvalidValue(
        f"expected {split} to leave every one of {clients} clients an example, but {TRIALS} draws "
        f"over {len(labels)} examples left some without; use a larger alpha or fewer clients"
    )


def _split_classes(labels: Tensor, clients: int, alpha: float, rng: Rng) -> list[Tensor]:
    classes = labels if labels.ndim == 1 else labels.argmax(1)
    generator = np.random.default_rng(rng.generator().initial_seed())
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for label in sorted(set(classes.tolist())):
        members = torch.nonzero(classes == label).flatten()
        members = members[rng.fork("order", label).permutation(len(members))]
        proportions = torch.from_numpy(generator.dirichlet([alpha] * clients)).cumsum(0)[:-1]
        cuts = (proportions * len(members)).round().long()
        for part, some in zip(parts, torch.tensor_split(members, cuts), strict=True):
            part.append(some)
    return [torch.cat(part) for part in parts]


@dataclass(frozen=True, kw_only=True)
class Federated:
    """Rounds in which every sampled client shares one defended update, and the server averages.

    Clients are weighted by their number of examples. With `SecureAggregation`, the clients of the
    round are those that are aggregated, instead of parts of one batch.

    Args:
        clients: Number of clients that hold the data.
        rounds: Number of updates that the server takes.
        sampled: Clients that take part in a round, chosen at random; None takes all.
        local: What a client computes on its examples.
        split: "iid", or `Dirichlet(alpha)` for clients that hold different classes.
        batch_size: Examples per client and round, drawn anew; None, or too many, takes all.
        lr: Learning rate of the server: 1 averages models, as federated averaging does.
        momentum: Momentum of the server.
        weight_decay: Weight decay of the server.
        schedule: Factor of the server's learning rate in every round.
        augment: Augmentation of the examples; none by default.
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
        names = ("clients", "rounds", "sampled", "batch_size", "evaluate_every")
        require_at_least(1, **{name: getattr(self, name) for name in names})
        if self.cohort > self.clients:
            raise InvalidValue(
                f"expected sampled <= clients = {self.clients}, got {self.sampled!r}"
            )
        if self.split != "iid" and not isinstance(self.split, Dirichlet):
            raise InvalidValue(f"expected split 'iid' or Dirichlet(alpha), got {self.split!r}")
        _require_descent(self)

    @property
    def cohort(self) -> int:
        """Number of clients that take part in a round."""
        return self.sampled or self.clients

    def count_steps(self, examples: int) -> int:
        """Count the updates: one for every round."""
        return self.rounds

    def evaluation_interval(self, examples: int) -> int:
        """Count the rounds between two evaluations."""
        return self.evaluate_every

    def sample_rate(self, examples: int) -> float | None:
        """None: clients are sampled, not examples."""
        return None

    def build_sampler(self, labels: Tensor, *, rng: Rng) -> Sampler:
        """Split the data once, then draw clients and some of their examples in every round."""
        key, size = rng.fork("split"), self.batch_size
        parts = _split_examples(labels, clients=self.clients, split=self.split, rng=key)
        rounds = rng.fork("rounds")

        def draw_clients(step: int) -> list[Tensor]:
            drawn = rounds.fork(step)
            chosen = sorted(drawn.permutation(self.clients)[: self.cohort].tolist())
            orders = [drawn.fork(client).permutation(len(parts[client])) for client in chosen]
            return [parts[c][order[:size]] for c, order in zip(chosen, orders, strict=True)]

        least = min(map(len, parts))
        return Sampler(draw_clients, min(least, size or least))


TrainingPlan = Training | Federated


def _require_descent(plan: TrainingPlan) -> None:
    """Check the options of stochastic gradient descent."""
    require_positive(lr=plan.lr)
    require_within("[0, 1)", momentum=plan.momentum)
    require_at_least(0, weight_decay=plan.weight_decay)
