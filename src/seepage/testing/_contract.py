"""Contract tests: the laws that every attack, defense and metric keeps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seepage.clients._gradient import Gradient
from seepage.core import (
    ActiveAttack,
    Aggregation,
    Attack,
    Batch,
    Defense,
    Domain,
    InputDefense,
    Metric,
    Observation,
    Paired,
    Reconstruction,
    Rng,
    Task,
    Update,
)
from seepage.core._chain import chain
from seepage.core._client import Client
from seepage.core.errors import MissingKnowledge
from seepage.scoring._scores import METRICS, score
from seepage.threats._threat import Threat


class ContractError(AssertionError):
    """A part breaks a law that every part of its kind must keep."""


def _require(holds: bool, part: object, law: str) -> None:
    if not holds:
        raise ContractError(f"{part!r} breaks a law: {law}")


def _check_value(part: Any) -> None:  # noqa: ANN401
    """Require a frozen dataclass that equals a copy built from its fields."""
    frozen = is_dataclass(part)
    with suppress(FrozenInstanceError):
        part.changed = True
        frozen = False
    _require(frozen, part, "it is a frozen dataclass")
    options = {f.name: getattr(part, f.name) for f in fields(part) if f.init}
    _require(part == type(part)(**options), part, "its fields rebuild it")


LABELLED = Threat(knows_labels=True)
# Above this a guess looks like the truth; differences above it are noise of the last steps.
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
    reported; without labels it works or says that it needs them; and every example is recovered
    with a PSNR of at least `at_least`.

    Args:
        attack: The attack to check.
        client: The client that shares.
        task: The broadcast network.
        batch: The private batch.
        at_least: PSNR in dB that a working attack reaches here.
        threat: What the adversary knows.
    """
    seen = threat.observe(client, task, batch, rng=Rng(0))
    guess = _attack_twice(attack, seen)
    shape = (len(batch), *task.domain.shape)
    _require(tuple(guess.inputs.shape) == shape, attack, f"its guess has shape {shape}")
    try:
        attack(replace(seen, labels=None), rng=Rng(1))
    except MissingKnowledge as error:
        _require("labels" in str(error), attack, "it says which knowledge it misses")
    worst = float(_psnr(guess, batch, task).min())
    _require(worst >= at_least, attack, f"it recovers {at_least} dB here (got {worst:.1f})")


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

    An attack wrapped by `seepage.attacks.adaptive` adapts to the defense only if it is known.

    Args:
        attack: The attack to check.
        client: The client that shares, with a defense.
        task: The broadcast network.
        batch: The private batch.
        slack: Tolerated optimisation noise in dB, on the mean over examples. PSNR above 40 dB
            counts as 40.
        threat: What the adversary knows, including the defense. It is compared with the same
            threat without the defense and its mixing.
    """
    means = []
    for known in (threat, threat.forget_defense()):
        guess = attack(known.observe(client, task, batch, rng=Rng(0)), rng=Rng(1))
        means.append(float(_psnr(guess, batch, task).clamp(max=CEILING).mean()))
    with_it, without = means
    law = f"knowing {client.defense} never hurts ({with_it:.1f} dB with, {without:.1f} without)"
    _require(with_it >= without - slack, attack, law)


def _attack_twice(attack: Attack, seen: Observation) -> Reconstruction:
    """Check the laws that need no truth, and return the guess."""
    held = [*seen.update, *([] if seen.labels is None else [seen.labels])]
    before = _join(seen.task, *held)
    guess = attack(seen, rng=Rng(1))
    _require(torch.equal(before, _join(seen.task, *held)), attack, "the observation is not changed")
    _require(bool(guess.inputs.isfinite().all()), attack, "its guess is finite")
    valid = torch.equal(seen.task.domain.project(guess.inputs), guess.inputs)
    _require(valid, attack, "its guess is valid in the domain")
    _require(guess.trace.seconds > 0, attack, "it reports its effort")
    torch.rand(1)
    again = attack(seen, rng=Rng(1))
    _require(torch.equal(guess.inputs, again.inputs), attack, "the same key gives the same guess")
    return guess


def _join(task: Task, *tensors: Tensor) -> Tensor:
    return torch.cat([t.flatten().double() for t in (*task.parameters.values(), *tensors)])


def _psnr(guess: Reconstruction, batch: Batch, task: Task) -> Tensor:
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

    Laws: the honest network is not changed; the planted network has the same inputs and classes,
    and finite outputs; the same key plants the same network and gives the same guess; the
    observation is not changed; guesses are valid, and no more than the examples; effort is
    reported; and `recovered` examples have a PSNR of at least `at_least`.

    Args:
        attack: The attack to check.
        client: The client that shares.
        task: The honest network.
        batch: The private batch.
        at_least: PSNR in dB that a working attack reaches here.
        recovered: Number of examples it recovers.
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
    _require(task.digest == before, attack, "the honest network is not changed")
    _require(planted.domain == task.domain, attack, "what it plants takes the same inputs")
    _require(planted.classes == task.classes, attack, "what it plants has the same classes")
    with torch.no_grad():
        outputs = planted.outputs(planted.parameters, batch.inputs)
    _require(bool(outputs.isfinite().all()), attack, "what it plants gives finite outputs")
    again = attack.plant(task, rng=Rng(2))
    _require(again.digest == planted.digest, attack, "the same key plants the same network")
    seen = threat.observe(client, planted, batch, rng=Rng(0))
    guess = _attack_twice(attack, seen)
    alike = guess.inputs.shape[1:] == batch.inputs.shape[1:]
    few = 1 <= len(guess.inputs) <= len(batch)
    _require(alike and few, attack, "it guesses inputs, and no more than the examples")
    reached = int((_psnr(guess, batch, task) >= at_least).sum())
    law = f"it recovers {recovered} examples at {at_least} dB here (got {reached})"
    _require(reached >= recovered, attack, law)


DRAWS = 400
# A few dozen entries are compared: chance puts one of them beyond 5 standard errors in 1 of 20 000.
ERRORS = 5.0


def check_defense(
    defense: Defense, *, neutral: Defense | None = None, rounding: float = 0.0
) -> None:
    """Raise `ContractError` unless a defense keeps every law.

    Laws: deterministic under a fixed key; arguments untouched; names, shapes and precision kept;
    `chain(d)` equals `d`; a frozen dataclass whose fields rebuild it; `expected` is the mean of
    many calls (for a deterministic defense, of one); `repeatable` only if every key gives the same.

    Args:
        defense: The defense to check.
        neutral: The same defense at zero strength, which must be the identity.
        rounding: Tolerated rounding error of the mean, relative to the update's largest entry.

    Example:
        >>> from seepage.defenses import AddGaussian
        >>> check_defense(AddGaussian(0.1), neutral=AddGaussian(0.0))
    """
    update = _example_update(defense)
    before = update.flat().clone()
    shared = defense(update, rng=Rng(1))
    _require(torch.equal(update.flat(), before), defense, "arguments are not changed")
    again = defense(update, rng=Rng(1))
    _require(_equal(shared, again), defense, "the same key gives the same result")
    chained = chain(defense)(update, rng=Rng(1))
    _require(_equal(chained, shared), defense, "chain(d) is the same as d")
    _require(shared.granularity == defense.produces, defense, "it gives what it says it produces")
    _require(shared.kind == update.kind, defense, "a gradient stays a gradient")
    _require(_form(shared) == _form(update, defense), defense, "names, shapes and dtype are kept")
    _check_value(defense)
    calls = torch.stack([defense(update, rng=Rng(2).fork(i)).flat() for i in range(DRAWS)])
    slack = rounding * float(before.abs().max())
    fixed = not getattr(defense, "repeatable", False) or bool((calls == calls[0]).all())
    _require(fixed, defense, "what is repeatable needs no key")
    tolerance = ERRORS * calls.std(0) / DRAWS**0.5 + slack + 1e-9
    off = (calls.mean(0) - defense.expected(update).flat()).abs()
    _require(bool((off <= tolerance).all()), defense, "`expected` is the mean of many calls")
    if neutral is not None:
        same = _equal(neutral(update, rng=Rng(1)), update)
        _require(same, neutral, "zero strength is the identity")


def _example_update(defense: Defense) -> Update:
    lead = (3,) if defense.consumes == "per_example" else ()
    shapes = {"weight": (4, 5), "bias": (4,), "scale": ()}
    draw = {n: Rng(0).fork(n).normal((*lead, *s)).double() for n, s in shapes.items()}
    return Update(draw, granularity=defense.consumes)


def _form(update: Update, defense: Defense | None = None) -> dict[str, tuple[object, ...]]:
    """Shape and dtype by name, without the batch axis if the defense removes it."""
    combined = defense is not None and defense.consumes != defense.produces
    return {n: (t.shape[combined:], t.dtype) for n, t in update.tensors.items()}


def _equal(a: Update, b: Update) -> bool:
    return a.tensors.keys() == b.tensors.keys() and torch.equal(a.flat(), b.flat())


def check_input_defense(preparation: InputDefense, *, task: Task, batch: Batch) -> None:
    """Raise `ContractError` unless a defense of data or network keeps every law.

    Laws: deterministic under a fixed key; arguments untouched; a frozen dataclass whose fields
    rebuild it; the training data is valid for the network; the target has one input for each
    private one, and its simulated update is finite and of the same form.

    Args:
        preparation: The defense to check.
        task: A network it can defend.
        batch: Data it can defend.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.bundled("photos", size=4)
        >>> check_input_defense(sp.MixUp(4), task=sp.zoo.mlp(hidden=(4,)), batch=photos)
    """
    _check_value(preparation)
    client = Client(Gradient(), preparation)
    held = client.broadcast(task)
    private = batch.inputs, batch.labels
    before = _join(held, *private)
    shared = client.share(held, batch, rng=Rng(1))
    _require(torch.equal(before, _join(held, *private)), preparation, "arguments are not changed")
    again = client.share(held, batch, rng=Rng(1))
    _require(_equal(shared.update, again.update), preparation, "the same key, the same update")
    (prepared,) = shared.prepared_batches
    held.check(prepared.batch)
    _require(len(prepared.target) == len(batch), preparation, "it seeks one input per private one")
    simulated = client.expected(held, prepared.target.inputs, prepared.target.labels)
    finite = bool(simulated.flat().isfinite().all())
    alike = _form(simulated) == _form(shared.update)
    _require(alike and finite, preparation, "the target gives a finite update of the same form")


def check_aggregation(aggregation: Aggregation, *, batch: Batch) -> None:
    """Raise `ContractError` unless an aggregation keeps every law.

    Laws: a frozen dataclass whose fields rebuild it; every example goes to one client, in order;
    the combination is linear in the updates.

    Args:
        aggregation: The defense to check.
        batch: Data it can split.

    Example:
        >>> import seepage as sp
        >>> check_aggregation(sp.SecureAggregation(2), batch=sp.data.bundled("photos", size=4))
    """
    _check_value(aggregation)
    parts = aggregation.split(batch)
    inputs, labels = (torch.cat([getattr(p, name) for p in parts]) for name in ("inputs", "labels"))
    complete = torch.equal(inputs, batch.inputs) and torch.equal(labels, batch.labels)
    _require(complete, aggregation, "every example goes to one client, in order")
    sizes = [len(part) for part in parts]
    first, second = (
        [Update({"w": Rng(seed).fork(i).normal((7,)).double()}) for i in range(len(parts))]
        for seed in (0, 1)
    )
    pairs = zip(first, second, strict=True)
    sums = [Update({"w": 2 * a.flat() + b.flat()}) for a, b in pairs]
    apart = 2 * aggregation.combine(first, sizes).flat() + aggregation.combine(second, sizes).flat()
    together = aggregation.combine(sums, sizes).flat()
    _require(torch.allclose(together, apart), aggregation, "combining is linear in the updates")


def check_metric(
    metric: Metric,
    *,
    shape: tuple[int, ...] = (3, 32, 32),
    domain: Domain | None = None,
    by_batch: bool = False,
) -> None:
    """Raise `ContractError` unless a metric keeps every law.

    Laws: one number per example; arguments untouched; deterministic; the truth itself leaks more
    than any noisy guess; scores follow a permutation of the examples; no example's score depends
    on another's, unless the metric is one of the batch.

    Args:
        metric: The metric to check.
        shape: Shape of one input.
        domain: Where inputs are drawn from instead of images, for metrics of tables or tokens.
        by_batch: Whether an example may be found in the guess for another one, as words are.

    Example:
        >>> from seepage.scoring import METRICS
        >>> check_metric(METRICS["psnr"])
    """
    noisy = _example_pairs(shape, domain)
    exact = replace(noisy, guess=noisy.truth.clone(), guessed_labels=noisy.labels.clone())
    kept = noisy.truth.clone(), noisy.guess.clone()
    scores, perfect = metric(noisy), metric(exact)
    untouched = torch.equal(kept[0], noisy.truth) and torch.equal(kept[1], noisy.guess)
    _require(untouched, metric, "arguments are not changed")
    _require(scores.shape == (len(noisy),), metric, "it gives one number per example")
    _require(torch.equal(metric(noisy), scores), metric, "it is deterministic")
    sign = 1.0 if metric.higher_leaks_more else -1.0
    _require(bool((sign * perfect > sign * scores).all()), metric, "the truth leaks most")
    order = torch.tensor([2, 0, 3, 1])
    permuted = metric(_reorder(noisy, order))
    _require(_close(permuted, scores[order]), metric, "scores follow a permutation")
    alone = torch.cat([metric(_reorder(noisy, torch.tensor([i]))) for i in range(len(noisy))])
    _require(by_batch or _close(alone, scores), metric, "no score depends on another example's")


def _example_pairs(shape: tuple[int, ...], domain: Domain | None) -> Paired:
    labels = torch.arange(4)
    wrong, assignment = (labels + 1) % 4, (0, 1, 2, 3)
    if domain is not None:
        truth, guess = (domain.sample(4, rng=Rng(0).fork(name)) for name in ("truth", "guess"))
        return Paired(truth, guess, labels, wrong, assignment, domain=domain)
    truth = Rng(0).fork("truth").uniform((4, *shape))
    noise = Rng(0).fork("noise").normal((4, *shape))
    strength = torch.tensor([0.05, 0.1, 0.2, 0.4]).reshape(-1, *(1,) * len(shape))
    return Paired(truth, (truth + strength * noise).clamp(0, 1), labels, wrong, assignment)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b)


def _reorder(paired: Paired, order: Tensor) -> Paired:
    wrong = paired.guessed_labels
    return replace(
        paired,
        truth=paired.truth[order],
        guess=paired.guess[order],
        labels=paired.labels[order],
        assignment=tuple(paired.assignment[i] for i in order.tolist()),
        guessed_labels=None if wrong is None else wrong[order],
    )
