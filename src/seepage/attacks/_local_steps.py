"""Attack clients that take several local steps: over epochs, or by one gradient in between."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from seepage.attacks.exact_batch._assign_labels import match_one_to_one
from seepage.clients import Client, FedAvg, Gradient, Local
from seepage.clients._step_rules import SGDRule
from seepage.core import (
    Attack,
    AttackWrapper,
    BaseAttack,
    Observation,
    Prepared,
    Reconstruction,
    Rng,
)
from seepage.core._protocols import needs_labels
from seepage.core.errors import InvalidValue, NotApplicable, require_at_least
from seepage.search._matching import GradientMatching
from seepage.search._objective import Candidate


def _require_client(observation: Observation) -> Client:
    """Return the client that the adversary simulates; raise `NotApplicable` if it is unknown."""
    client = observation.simulate.client
    if client is None:
        raise NotApplicable(
            f"expected a simulation of a Seepage client, got {observation.simulate!r}; "
            "use the attack that this one wraps"
        )
    return client


@dataclass(frozen=True, kw_only=True)
class EpochInvariance:
    """A prior: how much the mean input of an epoch differs between epochs.

        mean over pairs of epochs of || mean_i x_{e,i} - mean_i x_{f,i} ||^2 / D

    The mean does not depend on the order within an epoch, and every epoch sees the same data.

    References:
        Dimitrov et al., 2022, Sec. 4 (dimitrov2022data)
    """

    weight: float = 1.0
    epochs: int = 2

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Compare the means of all epochs."""
        shape = candidate.normalised.shape
        means = candidate.normalised.reshape(self.epochs, -1, *shape[1:]).mean(1).flatten(1)
        # Over all pairs, the mean squared distance is twice the variance.
        return 2 * means.var(0, correction=0).mean()


@dataclass(frozen=True)
class EpochAgnostic(AttackWrapper):
    """Search the inputs of every epoch separately, tied by what no order can change.

    The client went over its data several times in local batches. Which example was in which batch
    is unknown and differs between epochs, so each epoch has its own variables. A prior holds the
    epochs to the same data. In the end the epochs are paired one to one and averaged.

    Args:
        attack: The search, to which the prior is added.
        weight: Weight of the prior.

    Deviations:
        The prior compares means of inputs; the paper also tries means of features.

    References:
        Dimitrov et al., 2022 (dimitrov2022data)
    """

    attack: GradientMatching
    weight: float = field(default=1e-2, kw_only=True)

    def __post_init__(self) -> None:
        require_at_least(0, weight=self.weight)

    # The epochs are unrolled with them.
    needs_labels = True

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Unroll the epochs; then their guesses are paired and averaged."""
        client = _require_client(seen)
        local = client.local
        if not isinstance(local, FedAvg | Local) or local.epochs is None:
            raise NotApplicable(
                f"expected a client that trains for epochs, got {local}; use the attack as it is"
            )
        if seen.simulate.mixing is not None:
            raise NotApplicable(
                "expected data that was not mixed, since every epoch has candidates of its own; "
                "use the attack as it is"
            )
        labels, epochs = seen.require_labels("an attack over epochs"), local.epochs
        prior = EpochInvariance(weight=self.weight, epochs=epochs)
        search = replace(self.attack.search, terms=(*self.attack.search.terms, prior))

        def finish(guess: Reconstruction) -> Reconstruction:
            merged = _merge_epochs(guess.inputs.reshape(epochs, -1, *guess.inputs.shape[1:]))
            return replace(guess, inputs=merged, labels=labels)

        unrolled = _unroll_epochs(seen, labels, client, local, epochs)
        return Prepared(unrolled, finish, attack=replace(self.attack, search=search))


def _unroll_epochs(
    observation: Observation, labels: Tensor, client: Client, local: FedAvg | Local, epochs: int
) -> Observation:
    """Return the observation of a client that goes once over the examples of all epochs."""
    size = len(labels)
    if local.local_batch_size is not None and size % local.local_batch_size:
        raise NotApplicable(
            f"expected local batches that divide {size} examples, got {local.local_batch_size}; "
            "an epoch would end in the middle of one"
        )
    once = replace(local, epochs=1, local_batch_size=min(local.local_batch_size or size, size))
    simulate = observation.simulate.with_client(Client(once, client.defense))
    return replace(
        observation,
        simulate=simulate.with_task(observation.task),
        labels=labels.repeat(epochs, *(1,) * (labels.ndim - 1)),
        batch_size=size * epochs,
    )


def _merge_epochs(epochs: Tensor) -> Tensor:
    """Pair the inputs of every epoch `(E, B, ...)` with those of the first, and average.

    Example:
        >>> _merge_epochs(torch.tensor([[[0.0], [1.0]], [[0.8], [0.2]]])).flatten().tolist()
        [0.10000000149011612, 0.8999999761581421]
    """
    first = epochs[0].flatten(1)
    ordered = [epochs[0]]
    for other in epochs[1:]:
        distances = torch.cdist(first.double(), other.flatten(1).double()).square()
        ordered.append(other[match_one_to_one(-distances)])
    return torch.stack(ordered).mean(0)


def takes_signs(observation: Observation) -> bool:
    """Whether the client's steps are nearly signs of the gradient, as those of Adam."""
    client = observation.simulate.client
    local = None if client is None else client.local
    return isinstance(local, Local) and not isinstance(local.rule, SGDRule)


@dataclass(frozen=True)
class SoftSteps(AttackWrapper):
    """Search behind Adam with steps that keep a slope, see `Local.soften`; others as they are.

    Where entries of the update are nearly signs, the true simulation has no slope to follow.
    """

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Soften the steps that are simulated."""
        client = seen.simulate.client
        if client is None or not isinstance(client.local, Local) or not takes_signs(seen):
            return Prepared(seen)
        soft = replace(client, local=client.local.soften())
        return Prepared(replace(seen, simulate=seen.simulate.with_client(soft)))


@dataclass(frozen=True)
class SurrogateModel(BaseAttack):
    """Match the difference of parameters by one gradient at a point between before and after.

        theta_a = theta_0 + a (theta_T - theta_0),   g(x; theta_a) against theta_0 - theta_T

    No step is unrolled, so it costs as much as attacking a gradient, and neither the number of
    steps nor the order of the data need be known. Use it around an attack that compares
    directions: the length of the difference means nothing here.

    Args:
        attack: The search.
        positions: Values of a in [0, 1] to try; the lowest objective wins.

    Deviations:
        The paper learns a along with the inputs; here it is chosen from a few.

    References:
        Zhu et al., 2023 (zhu2023surrogate)
    """

    attack: Attack
    positions: tuple[float, ...] = field(default=(0.0, 0.5), kw_only=True)

    def __post_init__(self) -> None:
        if not self.positions or not all(0 <= a <= 1 for a in self.positions):
            raise InvalidValue(f"expected positions in [0, 1], got {self.positions!r}")

    @property
    def needs_labels(self) -> bool:
        """If the inner attack does."""
        return needs_labels(self.attack)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Attack at every position and keep the guess whose objective ended lowest."""
        if observation.update.kind != "difference":
            raise NotApplicable(
                "a surrogate model stands for local steps, but this update is a gradient; "
                "use the attack without it"
            )
        guesses = [
            self.attack(_observe_at(observation, position), rng=rng.fork("surrogate", index))
            for index, position in enumerate(self.positions)
        ]
        return min(guesses, key=lambda guess: min(guess.trace.finals, default=0.0))


def _observe_at(observation: Observation, position: float) -> Observation:
    """Return the observation of a client that shares one gradient at the surrogate."""
    update, model = observation.update, copy.deepcopy(observation.task.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in update.tensors:
                parameter.add_(update.tensors[name], alpha=position)
    name = f"{observation.task.name} at {position:g}"
    task = replace(observation.task, model=model, name=name)
    client = Client(Gradient(), _require_client(observation).defense)
    return replace(
        observation,
        task=task,
        update=update.descent(),
        simulate=observation.simulate.with_client(client).with_task(task),
    )
