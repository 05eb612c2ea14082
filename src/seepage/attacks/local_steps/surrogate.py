"""Local steps seen as one gradient, taken somewhere on the way."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch

from seepage.attacks.local_steps.known import known_simulation
from seepage.clients import Client, Gradient
from seepage.core import Attack, Observation, Reconstruction, Rng, Task, Update
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key


@dataclass(frozen=True)
class SurrogateModel:
    """Match the difference of parameters by one gradient at a point between before and after.

        theta_a = theta_0 + a (theta_T - theta_0),   g(x; theta_a) against theta_0 - theta_T

    No step is unrolled, so it costs as much as attacking a gradient, and neither the number of
    steps nor the order of the data need be known. Use it around an attack that compares
    directions: the length of the difference means nothing here.

    Args:
        attack: What searches.
        positions: Values of a in [0, 1] to try; the lowest objective wins.

    Deviations:
        The paper learns a along with the inputs; here it is chosen from a few.

    References:
        Zhu et al., 2023 (zhu2023surrogate)
    """

    attack: Attack
    positions: tuple[float, ...] = field(default=(0.0, 0.5), kw_only=True)

    def __post_init__(self) -> None:
        """Check the positions."""
        if not self.positions or not all(0 <= a <= 1 for a in self.positions):
            raise InvalidValue(f"expected positions in [0, 1], got {self.positions!r}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Attack at every position and keep the guess whose objective ended lowest."""
        require_key(rng)
        if observation.update.kind != "difference":
            raise NotApplicable(
                "a surrogate model stands for local steps, but this update is a gradient; "
                "use the attack without it"
            )
        guesses = [
            self.attack(_at(observation, position), rng=rng.fork("surrogate", index))
            for index, position in enumerate(self.positions)
        ]
        return min(guesses, key=lambda guess: min(guess.trace.finals, default=0.0))


def _at(observation: Observation, position: float) -> Observation:
    """The observation of a client that shares one gradient at the surrogate."""
    task = _between(observation.task, observation.update, position)
    known = known_simulation(observation)
    client = Client(Gradient(), known.client.defense)
    return replace(
        observation,
        task=task,
        update=observation.update.descent(),
        simulate=replace(known, client=client, task=task),
    )


def _between(task: Task, update: Update, position: float) -> Task:
    model = copy.deepcopy(task.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in update.tensors:
                parameter.add_(update.tensors[name], alpha=position)
    return replace(task, model=model, name=f"{task.name} at {position:g}")
