"""Laws of every attack."""

from __future__ import annotations

from dataclasses import replace

import torch

from seepage.clients.client import Client
from seepage.core import ActiveAttack, Attack, Batch, Observation, Reconstruction, Rng, Task
from seepage.core.errors import MissingKnowledge
from seepage.scoring.scores import METRICS, score
from seepage.testing.contract import require
from seepage.threats.threat import Threat

LABELLED = Threat(knows_labels=True)
# Above this a guess looks like the truth, and how far above is the noise of the last steps.
CEILING = 40.0


def check_attack(
    attack: Attack,
    *,
    client: Client,
    task: Task,
    batch: Batch,
    at_least: float,
    threat: Threat = LABELLED,
) -> None:
    """Raise `ContractError` unless an attack keeps every law on this scenario.

    Laws: deterministic under a fixed key, whatever the global generator does; the observation is
    not changed; the guess is finite, of the right shape and valid in the domain; effort is
    reported; without labels it works or says that it needs them; and it recovers: every person's
    PSNR is at least `at_least`.

    Args:
        attack: The attack to check.
        client: Who shares.
        task: What was broadcast.
        batch: The private batch.
        at_least: PSNR in dB that a working attack reaches here.
        threat: What the adversary knows.
    """
    seen = threat.observe(client, task, batch, rng=Rng(0))
    before = _tensors(seen).clone()
    guess = attack(seen, rng=Rng(1))
    require(torch.equal(before, _tensors(seen)), attack, "the observation is not changed")
    _check_form(attack, seen, guess, len(batch))
    torch.rand(1)
    again = attack(seen, rng=Rng(1))
    require(torch.equal(guess.inputs, again.inputs), attack, "the same key gives the same guess")
    _check_ignorance(attack, replace(seen, labels=None))
    worst = float(_psnr(guess, batch, task).min())
    require(worst >= at_least, attack, f"it recovers {at_least} dB here (got {worst:.1f})")


def check_knowledge(
    attack: Attack,
    *,
    client: Client,
    task: Task,
    batch: Batch,
    slack: float = 0.5,
    threat: Threat = LABELLED,
) -> None:
    """Raise `ContractError` if knowing the defense lowers the leakage an attack reports.

    An attack wrapped by `seepage.attacks.adaptive` adapts to the defense where it is known, and
    is the attack as it stands where it is not.

    Args:
        attack: The attack to check.
        client: Who shares, with a defense.
        task: What was broadcast.
        batch: The private batch.
        slack: How many dB of optimisation noise to forgive, on the mean over people; 40 dB and
            more count as 40.
        threat: What the adversary knows, the defense among it; to be compared with the same
            without the defense and the mixing that is part of it.
    """
    informed, ignorant = (
        known.observe(client, task, batch, rng=Rng(0)) for known in (threat, threat.forget_defense())
    )
    with_it = float(_psnr(attack(informed, rng=Rng(1)), batch, task).clamp(max=CEILING).mean())
    without = float(_psnr(attack(ignorant, rng=Rng(1)), batch, task).clamp(max=CEILING).mean())
    law = f"knowing {client.defense} never hurts ({with_it:.1f} dB with, {without:.1f} without)"
    require(with_it >= without - slack, attack, law)


def _tensors(seen: Observation) -> torch.Tensor:
    """Every number of the observation, in one vector."""
    labels = [] if seen.labels is None else [seen.labels]
    tensors = [*seen.update, *seen.task.parameters.values(), *labels]
    return torch.cat([t.flatten().double() for t in tensors])


def _check_form(attack: Attack, seen: Observation, guess: Reconstruction, size: int) -> None:
    shape = (size, *seen.task.domain.shape)
    require(tuple(guess.inputs.shape) == shape, attack, f"its guess has shape {shape}")
    require(bool(guess.inputs.isfinite().all()), attack, "its guess is finite")
    projected = seen.task.domain.project(guess.inputs)
    require(torch.equal(projected, guess.inputs), attack, "its guess is valid in the domain")
    require(guess.trace.seconds > 0, attack, "it reports its effort")


def _check_ignorance(attack: Attack, unlabelled: Observation) -> None:
    try:
        attack(unlabelled, rng=Rng(1))
    except MissingKnowledge as error:
        require("labels" in str(error), attack, "it says which knowledge it misses")


def _psnr(guess: Reconstruction, batch: Batch, task: Task) -> torch.Tensor:
    low, high = task.domain.bounds
    return score(guess, batch, metrics=(METRICS["psnr"],), low=low, peak=high - low)["psnr"]


CHEATING = Threat(knows_labels=True, server="malicious")


def check_active_attack(
    attack: ActiveAttack,
    *,
    client: Client,
    task: Task,
    batch: Batch,
    at_least: float,
    recovered: int = 1,
    threat: Threat = CHEATING,
) -> None:
    """Raise `ContractError` unless an attack that plants keeps every law on this scenario.

    Laws: the honest network is not changed; what is planted takes the same inputs, tells the same
    classes apart and is finite; the same key plants the same network and gives the same guess; the
    observation is not changed; guesses are valid, no more than there are people, and effort is
    reported; and it recovers: so many people's PSNR is at least `at_least`.

    Args:
        attack: The attack to check.
        client: Who shares.
        task: What is trained.
        batch: The private batch.
        at_least: PSNR in dB that a working attack reaches here.
        recovered: For how many people.
        threat: What the adversary knows.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.bundled("photos", size=8)
        >>> check_active_attack(
        ...     sp.attacks.robbing_the_fed(bins=64, std=0.15),
        ...     client=sp.Client(sp.Gradient()),
        ...     task=sp.zoo.cnn(variant="cnn2-v2"),
        ...     batch=photos,
        ...     at_least=60.0,
        ...     recovered=4,
        ... )
    """
    before = task.digest
    planted = attack.plant(task, rng=Rng(2))
    require(task.digest == before, attack, "the honest network is not changed")
    _check_planted(attack, planted, task, batch)
    again = attack.plant(task, rng=Rng(2))
    require(again.digest == planted.digest, attack, "the same key plants the same network")
    seen = threat.observe(client, planted, batch, rng=Rng(0))
    kept = seen.update.flat().clone()
    guess = attack(seen, rng=Rng(1))
    require(torch.equal(kept, seen.update.flat()), attack, "the observation is not changed")
    same = torch.equal(guess.inputs, attack(seen, rng=Rng(1)).inputs)
    require(same, attack, "the same key gives the same guess")
    alike = guess.inputs.shape[1:] == batch.inputs.shape[1:]
    few = 1 <= len(guess.inputs) <= len(batch)
    require(alike and few, attack, "it guesses inputs, and no more than there are people")
    valid = torch.equal(task.domain.project(guess.inputs), guess.inputs)
    require(valid, attack, "its guess is valid in the domain")
    require(guess.trace.seconds > 0, attack, "it reports its effort")
    low, high = task.domain.bounds
    psnr = score(guess, batch, metrics=(METRICS["psnr"],), low=low, peak=high - low)["psnr"]
    reached = int((psnr >= at_least).sum())
    law = f"it recovers {recovered} people at {at_least} dB here (got {reached})"
    require(reached >= recovered, attack, law)


def _check_planted(attack: ActiveAttack, planted: Task, task: Task, batch: Batch) -> None:
    require(planted.domain == task.domain, attack, "what it plants takes the same inputs")
    require(planted.classes == task.classes, attack, "what it plants has the same classes")
    with torch.no_grad():
        outputs = planted.outputs(planted.parameters, batch.inputs)
    require(bool(outputs.isfinite().all()), attack, "what it plants gives finite outputs")
