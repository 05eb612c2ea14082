"""Laws of every attack that plants."""

from __future__ import annotations

import torch

from seepage.clients import Client
from seepage.core import ActiveAttack, Batch, Rng, Task
from seepage.scoring import METRICS, score
from seepage.testing.violation import require
from seepage.threats import Threat

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
