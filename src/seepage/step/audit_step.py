"""Auditing one step of anybody's training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from seepage.attacks.suitable import Suited, suitable
from seepage.audit import Case, Victims
from seepage.audit.identity import client_key
from seepage.clients import Client
from seepage.core import Batch, Domain, Observation, Protection, Task
from seepage.core.construct import described
from seepage.core.errors import InvalidValue, NotApplicable, SeepageError, in_a_line
from seepage.core.precision import upcast
from seepage.core.task import batchnorm_layers, unwrap
from seepage.defenses import chain
from seepage.step.attacking import attacked, written
from seepage.step.inputs import assumed_domain, read_batch, usable
from seepage.step.losses import per_example
from seepage.step.people import people_of
from seepage.step.private import privacy_of
from seepage.step.result import StepAudit
from seepage.step.shared import local_computation, low_precision, randomness
from seepage.step.untouched import copied, untouched
from seepage.threats import Threat
from seepage.zoo.logits import Logits, logits_of

_BATCHNORM = (
    "batch normalisation is by the batch, whose statistics the adversary is taken not to know; "
    "give threat=Threat(batchnorm='exact') for one who receives them"
)


def audit_step(
    model: nn.Module,
    loss: Callable[[Any, Tensor], Tensor],
    batch: Batch | tuple[Tensor, Tensor] | Mapping[str, Tensor],
    optimizer: Optimizer | None = None,
    *,
    domain: Domain | None = None,
    defense: Protection | None = None,
    threat: Threat | None = None,
    others: Tensor | None = None,
    privacy_engine: object = None,
    delta: float = 1e-5,
    seconds: float = 60.0,
    steps: int = 1_000,
    seed: int = 0,
) -> StepAudit:
    """Measure what one training step would give away, and leave everything as it was.

    The step is computed again on a copy of the network; neither the network, its gradients and
    mode, nor the optimizer, the batch or any random state is changed. With a model and an optimizer
    that Opacus's `make_private` returned, it is Opacus that computes it.

    The step is computed in the precision of the parameters, such as bfloat16. An autocast around
    the call is left out. What torch.compile or data-parallel training wraps around the network is
    taken off first.

    Args:
        model: Any classifier; what it returns may hold the logits under that name.
        loss: As the training loop calls it, reduced or not.
        batch: Inputs as the network reads them, and labels.
        optimizer: If given, what is shared is how far it moves; else the gradient. One of Opacus's
            clips and adds its noise as it does in training.
        domain: What inputs are, where they are in natural units; its normalisation is then
            applied before the network. If not given, inputs are as the network reads them.
        defense: What is done to the update before it is shared.
        threat: What the adversary knows; the number of people and the defense by default, and
            labels are inferred.
        others: Inputs of people who are not in the batch, for the guess that needs no update.
        privacy_engine: That made the model private, so that the result tells what was spent.
        delta: Of the epsilon that is told where the model is private.
        seconds: About how long all searches together may take; closed forms come on top.
        steps: At most this many steps of each search.
        seed: Of all randomness.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> batch = torch.rand(1, 1, 8, 8), torch.tensor([2])
        >>> result = audit_step(model, nn.CrossEntropyLoss(), batch, steps=10)
        >>> result.worst, result.recognisable
        (0, True)

    Raises:
        NotApplicable: The step is of a kind that no attack here can search: whole numbers as
            inputs, or targets that are no classes.
        InvalidValue: Network, loss and batch do not fit together.
    """
    if not (seconds > 0 and steps >= 1):
        raise InvalidValue(f"expected seconds > 0 and steps >= 1, got {seconds!r} and {steps!r}")
    if not isinstance(seed, int):
        raise InvalidValue(f"expected seed to be a whole number, got {seed!r}")
    if threat is not None and not isinstance(threat, Threat):
        raise InvalidValue(f"expected a threat such as Threat(knows_labels=True), got {threat!r}")
    own = copied(model)
    model, privacy = unwrap(model), privacy_of(optimizer, privacy_engine, delta)
    if privacy is not None:
        if defense is not None:
            raise InvalidValue(f"Opacus is the defense of this step; leave out {defense}")
        own, optimizer, defense = privacy.standard(own), None, privacy.defense
    with untouched(model):
        private = usable(*read_batch(batch))
        task, client, notes = _prepared(own, loss, private, optimizer, domain, defense)
        known = threat or Threat(batchnorm="unknown" if _by_batch(model) else "running")
        if known.batchnorm == "unknown":
            notes = (*notes, _BATCHNORM)
        who = people_of(task, private, others)
        if privacy is not None:
            notes = (privacy.note, *notes[1:])
            who = privacy.tapped(
                who,
                task,
                model,
                loss,
                shape=tuple(private.inputs.shape[1:]),
                knows_labels=known.knows_labels,
                rng=client_key(seed, client, who),
            )
        seen = _observed(task, client, known, who, seed)
        found = suitable(seen, steps=steps)

        def case(option: Suited) -> Case:
            name = described(option.name, written(option))
            return Case(task, client, known, option.attack, name, who, seed)

        promise = "" if privacy is None else privacy.account
        return attacked(case, seen, found, notes=notes, promise=promise, seconds=seconds)


def _prepared(
    own: nn.Module,
    loss: Callable[[Any, Tensor], Tensor],
    private: Batch,
    optimizer: Optimizer | None,
    domain: Domain | None,
    defense: Protection | None,
) -> tuple[Task, Client, tuple[str, ...]]:
    notes = [low_precision(own), randomness(own)]
    shape = tuple(private.inputs.shape[1:])
    if domain is None:
        domain, assumed = assumed_domain(private.inputs)
        notes.append(assumed)
    reads = shape if shape != tuple(domain.shape) else None
    reference = next((p for p in own.parameters() if p.requires_grad), None)
    if reference is None:
        raise InvalidValue(f"{type(own).__name__} has no trainable parameter: nothing is shared")
    outputs = _outputs(own, domain, private, shape, reference)
    soft = private.labels.is_floating_point()
    labels = private.labels.to(outputs if soft else outputs.device)
    unreduced, reduction = per_example(loss, outputs, labels)
    local, words = local_computation(optimizer, reduction)
    task = Task(Logits(own, shape=reads), unreduced, domain, name=type(own).__name__.lower())
    client = Client(local, chain() if defense is None else defense)
    return task, client, (words, *(note for note in notes if note))


def _outputs(
    own: nn.Module, domain: Domain, private: Batch, shape: tuple[int, ...], like: Tensor
) -> Tensor:
    """The logits of the step, or words on why there are none."""
    if math.prod(shape) != math.prod(domain.shape):
        raise InvalidValue(
            f"expected a domain of inputs of shape {shape}, got one of {tuple(domain.shape)}"
        )
    inputs = private.inputs.reshape(len(private), *domain.shape)
    domain.check(inputs)
    given = domain.normalise(inputs.to(like)).reshape(len(private), *shape)
    was_training = own.training
    try:
        with torch.no_grad():
            # In float32, to tell a mean from other reductions by more digits than bfloat16 has.
            outputs = upcast(logits_of(own.eval()(given)).detach())
        if outputs.ndim != 2:
            raise InvalidValue(
                f"expected {type(own).__name__} to return logits (B, K), got "
                f"{tuple(outputs.shape)}: only classifiers of whole inputs can be audited so far"
            )
        return outputs
    except SeepageError:
        raise
    except Exception as error:
        raise InvalidValue(
            f"{type(own).__name__} cannot be run on this batch, it raised {in_a_line(error)}"
        ) from error
    finally:
        own.train(was_training)


def _by_batch(model: nn.Module) -> bool:
    """Whether batch normalisation of this step is by the batch itself."""
    return any(layer.training for layer in batchnorm_layers(model).values())


def _observed(task: Task, client: Client, threat: Threat, who: Victims, seed: int) -> Observation:
    reference = next(iter(task.parameters.values()))
    batch = who.batch.to(device=reference.device, dtype=reference.dtype)
    try:
        if who.tapped is not None:
            return who.tapped.observe(task, defense=client.defense)
        return threat.observe(client, task, batch, rng=client_key(seed, client, who))
    except SeepageError:
        raise
    except Exception as error:
        raise NotApplicable(
            f"the gradient of {task.name} cannot be computed as a function, which every attack "
            f"needs: {in_a_line(error)}"
        ) from error
