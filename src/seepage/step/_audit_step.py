"""Auditing one step of anybody's training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from seepage.attacks._applicability import check_applicability
from seepage.audit._case import Case, client_key, observe_target
from seepage.clients import Client
from seepage.core import Attack, Batch, Domain, Protection, Task
from seepage.core._batch import are_numbers, class_numbers
from seepage.core._device import convert, upcast
from seepage.core._draws import private_draws
from seepage.core._once import computing_once
from seepage.core._progress import limited
from seepage.core._rng import require_seed
from seepage.core._task import trains_by_batch, unwrap
from seepage.core.errors import InvalidValue, NotApplicable, explain_errors
from seepage.defenses import chain
from seepage.probing._hooks import evaluating
from seepage.rehearsal import PublicData
from seepage.rehearsal._effort_plan import EffortName
from seepage.step._model_loss import find_model_loss
from seepage.step._real_step import (
    RealStep,
    TrainingLoop,
    freeze,
    send,
)
from seepage.step._shared_update import (
    choose_computation,
    copy_model,
    describe_precision,
    describe_random_layers,
    find_privacy,
    freeze_unmoved,
    keeping_activations,
    leave_unchanged,
    read_autocast,
    remove_backward_hooks,
)
from seepage.step._step_attacks import (
    Ranges,
    choose_domain,
    list_attacks,
    read_range,
    require_range,
)
from seepage.step._step_inputs import (
    MaskPadding,
    check_batch,
    choose_texts,
    find_unread,
    gather_texts,
    read_batch,
    read_mask,
)
from seepage.step._step_loss import hold_state, read_loss
from seepage.step._step_people import read_people
from seepage.step._step_result import StepAudit, run_attacks
from seepage.threats import Threat
from seepage.zoo._foreign import Logits, WithInputs, find_logits

_NO_FUNCTION = "the gradient of {} cannot be computed as a function, which every attack needs:"
_BATCHNORM = (
    "batch normalisation is by the batch, whose statistics the adversary is taken not to know; "
    "give threat=Threat(batchnorm='exact') for one who receives them"
)
_KEPT_SECRET = (
    "the adversary is taken not to know the defense; what is hidden from one who does not is no "
    "evidence for one who does, so audit it with Threat(knows_defense=True) as well"
)
_READ_TOO = (
    "the network also reads {} of the batch, which is left out, since attacks run it on the inputs "
    "alone; audit a network that holds it, or give the batch without it"
)
_UNREAD = "{} of the batch is not read; what a loss needs goes into a tuple, behind the labels"
_UNLABELLED = (
    "others came without labels, so that people are looked for among strangers of any label, where "
    "the label alone gets some of them found; give others=sp.PublicData(inputs, labels)"
)


def audit_step(
    model: nn.Module,
    loss: Callable[..., Tensor] | None,
    batch: Batch | Tensor | Sequence[Tensor] | Mapping[str, Tensor],
    optimizer: Optimizer | None = None,
    *,
    domain: Domain | tuple[float, float] | None = None,
    defense: Protection | None = None,
    threat: Threat | None = None,
    others: Tensor | PublicData | None = None,
    privacy_engine: object = None,
    delta: float = 1e-5,
    attacks: Sequence[str | Attack] | None = None,
    public: PublicData | Tensor | None = None,
    gradients: Mapping[str, Tensor | None] | None = None,
    effort: EffortName = "quick",
    seconds: float = 300.0,
    steps: int | None = None,
    seed: int = 0,
) -> StepAudit:
    """Measure what one training step would give away, and leave everything as it was.

    The step is computed again on a copy. Your network, its gradients and mode, the optimizer, the
    batch and every random state stay as they are. If `make_private` of Opacus returned the model
    and the optimizer, Opacus computes the step.

    The audited gradient is that of your loop, bit for bit: in the precision of the parameters,
    under the autocast around the call and through hooks, which run on the copy. Wrappers of
    torch.compile and of data-parallel training are removed first. Give `gradients` if the loop does
    more, such as scaling the loss or accumulating. If the audited gradient differs from that of the
    loop, the result says so before anything else.

    Args:
        model: Any network; what it returns may hold the logits under that name.
        loss: As the training loop calls it, reduced or not: `loss(outputs, labels)`. None for the
            loss that the network returns itself, as models of transformers do.
        batch: Inputs as the network reads them, and labels: classes, probabilities, or numbers of
            any shape; a tuple, or a mapping as tokenizers and data loaders give it. A third tensor,
            such as weights or a mask, goes to the loss as well. With inputs alone, as for an
            autoencoder, the loss is `loss(outputs, inputs)`. Integers `(B, L)` are tokens; with
            an `attention_mask`, texts may have several lengths.
        optimizer: If given, the client shares how far it moves its parameters; otherwise the
            gradient of all. An optimizer of Opacus clips and adds noise as it does in training.
        domain: Either a domain, if the inputs are in natural units: its normalisation is then
            applied before the network. Or the lowest and highest value of inputs as the network
            reads them. If not given, the range of `others` is assumed, or a wide one.
        defense: What the client does to the update before it is shared.
        threat: What the adversary knows; the number of people and the defense by default. Labels
            are inferred, and targets that are numbers are computed or searched for.
        others: Inputs of people who are not in the batch. The people of the batch are looked for
            among them, some of them serve as a control, and they give the range of inputs if there
            is no domain. Without them, the result never says that somebody is not identified. With
            labels, as `PublicData(inputs, labels)`, a person is looked for among those of the same
            label.
        privacy_engine: The engine that made the model private; the result then states epsilon.
        delta: Delta for this epsilon.
        attacks: What to run, as attacks or by name; by default `auto`, which computes what can be
            computed and chooses the strongest search for the rest.
        public: What `auto` rehearses on; by default `others` who are not needed as a control, or
            made-up inputs.
        gradients: The gradients of your own loop, by name of the parameter, such as
            `{n: p.grad for n, p in model.named_parameters()}` after `backward()`; `defense` is
            applied to them. If not given, they are computed again.
        effort: How hard `auto` tries: "quick", "standard" or "thorough".
        seconds: About how long the whole call may take at most: what prepares, rehearsals,
            searches and controls. Once it is over, a search ends with its next step, and a closed
            form the next time it tells its progress; a step, a decomposition and scoring are not
            interrupted. If time is too short for all steps, or for a control of three people,
            nobody is said to be safe.
        steps: Number of all steps of `auto`, instead of that of the effort; or the steps of each
            search that `attacks` names.
        seed: Of all randomness, between -2**63 and 2**63.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> batch = torch.rand(1, 1, 8, 8), torch.tensor([2])
        >>> result = audit_step(model, nn.CrossEntropyLoss(), batch, steps=10)
        >>> result.worst, result.recognisable
        (0, True)

    Raises:
        NotApplicable: The step is of a kind that no attack here can read, such as whole numbers
            that are no tokens.
        InvalidValue: Network, loss and batch do not fit together.
    """
    domain = read_range(domain)
    _check_options(optimizer, others, public, attacks, threat, seconds, steps)
    seed = require_seed(seed)
    labels_of_others = others.labels if isinstance(others, PublicData) else None
    others = others.inputs if isinstance(others, PublicData) else others
    own, wrapped = copy_model(model), model
    model, privacy = unwrap(model), find_privacy(model, optimizer, privacy_engine, delta)
    if privacy is not None:
        if defense is not None or gradients is not None:
            given = "gradients=" if defense is None else defense
            raise InvalidValue(f"Opacus is the defense of this step; leave out {given}")
        own, optimizer, defense = privacy.unwrap_model(own), None, privacy.defense
        loss = privacy.unwrap_loss(loss)
    else:
        remove_backward_hooks(own)
    unmoved = freeze_unmoved(own, model, optimizer)
    autocast = read_autocast(model)
    with ExitStack() as stack:
        for each in (limited(seconds), computing_once(), leave_unchanged(model)):
            stack.enter_context(each)
        stack.enter_context(keeping_activations())
        with private_draws() as draws:
            inputs, targets = check_batch(*read_batch(batch))
            padding = None
            if not inputs.is_floating_point():
                mask = read_mask(batch)
                texts = choose_texts(own, inputs, declared=domain, mask=mask)
                others = gather_texts(others, texts)
                domain, padding = texts, None if mask is None else texts.padding
            if loss is None:
                loss = find_model_loss(own, batch)
            read, unread = find_unread(own, batch)
            if padding is not None:
                own, wrapped = (MaskPadding(each, padding) for each in (own, wrapped))
            random = describe_random_layers(own, given=gradients is not None)
            step = _prepare_step(own, loss, inputs, targets, optimizer, domain, defense, others)
        if draws.drew:
            stack.enter_context(private_draws())
        task, client, shape = step.task, step.client, tuple(inputs.shape[1:])
        known = threat or Threat(batchnorm="unknown" if trains_by_batch(model) else "running")
        people = read_people(task, step.private, others, labels_of_others, public)
        key = client_key(seed, client, people.attacked)
        if privacy is None:
            mode = task.in_mode(known.mode)
            moved = task.move_batch(people.attacked.require_batch())
            loop = TrainingLoop(wrapped, step.own_loss, autocast, mode, client, moved, shape)
            with explain_errors(NotApplicable, _NO_FUNCTION.format(task.name)):
                real = loop.examine(gradients)
                task = freeze(task, real.unsent) if real.unsent else task
                who = send(real.gradients, client, known, task, people.attacked, key)
        else:
            privacy.require_reduction(client.local, len(inputs))
            who = privacy.capture_update(
                people.attacked, task, model, step.own_loss, shape, known, key
            )
            real = RealStep()
        real = real.leave_out(_READ_TOO.format(", ".join(read)) if read else "")
        unlabelled = others is not None and labels_of_others is None
        notes = (
            step.audited if privacy is None else privacy.note,
            *step.notes,
            random,
            unmoved,
            _UNREAD.format(", ".join(unread)) if unread else None,
            _BATCHNORM if known.batchnorm == "unknown" else None,
            _KEPT_SECRET if client.chain.links and not known.knows_defense else None,
            people.note,
            _UNLABELLED if unlabelled and class_numbers(step.private.labels) is not None else None,
            real.note,
        )
        with explain_errors(NotApplicable, _NO_FUNCTION.format(task.name)):
            seen = observe_target(who, client, known, task, seed)
        found = check_applicability(seen)
        listed = list_attacks(
            attacks,
            seen,
            found,
            effort=effort,
            steps=steps,
            seconds=seconds,
            controls=min(1, len(people.canaries)),
            shared=not client.chain.links,
            public=people.public,
            ranges=step.ranges,
            foreign=real.foreign and real.gradients is not None,
        )
        return run_attacks(
            [Case(task, client, known, attack, name, who, seed) for name, attack in listed],
            people.canaries,
            found,
            notes=tuple(note for note in notes if note),
            promise="" if privacy is None else privacy.account,
            real=real,
        )


def _check_options(
    optimizer: object,
    others: object,
    public: object,
    attacks: Sequence[str | Attack] | None,
    threat: object,
    seconds: object,
    steps: object,
) -> None:
    """Raise `InvalidValue` if an option of `audit_step` is of the wrong kind."""
    limited = steps is None or (isinstance(steps, int) and steps >= 1)
    if not (isinstance(seconds, int | float) and seconds > 0 and limited):
        raise InvalidValue(
            f"expected seconds > 0 and whole steps >= 1, got {seconds!r} and {steps!r}"
        )
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise InvalidValue(f"expected an optimizer of torch, or none, got {optimizer!r}")
    for name, passed in (("others", others), ("public", public)):
        if not isinstance(passed, Tensor | PublicData | None):
            raise InvalidValue(
                f"expected {name} as a tensor, or with labels as sp.PublicData(inputs, labels), "
                f"got {type(passed).__name__}"
            )
    if attacks is not None and not attacks:
        raise InvalidValue("expected at least one attack, or None for auto, got none")
    if threat is not None and not isinstance(threat, Threat):
        raise InvalidValue(f"expected a threat such as Threat(knows_labels=True), got {threat!r}")


@dataclass(frozen=True, eq=False)
class _PreparedStep:
    """A step as an audit needs it."""

    private: Batch
    task: Task
    client: Client
    ranges: Ranges
    audited: str
    notes: tuple[str | None, ...]
    own_loss: Callable[..., Tensor]


def _prepare_step(
    own: nn.Module,
    loss: Callable[..., Tensor],
    inputs: Tensor,
    targets: tuple[Tensor, ...],
    optimizer: Optimizer | None,
    declared: Domain | tuple[float, float] | None,
    defense: Protection | None,
    others: Tensor | None,
) -> _PreparedStep:
    shape = tuple(inputs.shape[1:])
    domain, ranges, assumed = choose_domain(shape, declared=declared, others=others)
    if assumed is not None:
        require_range(inputs, domain)
    reads = shape if shape != tuple(domain.shape) else None
    reference = next((p for p in own.parameters() if p.requires_grad), None)
    shown = type(own.model if isinstance(own, MaskPadding) else own).__name__
    if reference is None:
        raise InvalidValue(f"{shown} has no trainable parameter: nothing is shared")
    if any(p.is_complex() for p in own.parameters()):
        raise NotApplicable(
            f"{shown} has complex parameters, which no attack here reads; hold their real and "
            "imaginary parts in two parameters, or in one by torch.view_as_real"
        )
    given, outputs = _compute_outputs(own, domain, inputs, reference)
    loss, state = hold_state(loss, outputs, targets or (given,))
    read = read_loss(loss, outputs, given, targets)
    local, audited = choose_computation(optimizer, read.reduction)
    wrap = WithInputs if read.joined else Logits
    network, shape_read = wrap(own, shape=reads), read.target_shape
    task = Task(network, read.loss, domain, name=shown.lower(), target_shape=shape_read)
    client = Client(local, chain() if defense is None else defense)
    labels = read.labels if are_numbers(read.labels) else targets[0]
    private = Batch(inputs, labels.to(inputs.device))
    notes = (describe_precision(own), assumed, state)
    return _PreparedStep(private, task, client, ranges, audited, notes, read.own or loss)


def _compute_outputs(
    own: nn.Module, domain: Domain, inputs: Tensor, like: Tensor
) -> tuple[Tensor, Tensor]:
    """What the network reads in the step and what it returns, or raise with the reason why not."""
    shape, size = tuple(inputs.shape[1:]), len(inputs)
    if math.prod(shape) != math.prod(domain.shape):
        raise InvalidValue(
            f"expected a domain of inputs of shape {shape}, got one of {tuple(domain.shape)}"
        )
    natural = inputs.reshape(size, *domain.shape)
    domain.check(natural)
    moved = convert(natural, like)
    given = domain.normalise(moved).reshape(size, *shape)
    name = type(own).__name__
    refusal = f"{name} cannot be run on this batch, it raised"
    with explain_errors(InvalidValue, refusal), evaluating(own):
        # In float32, to tell a mean from other reductions by more digits than bfloat16 has.
        outputs = upcast(find_logits(own(given)).detach())
    if outputs.ndim == 0 or len(outputs) != size:
        raise InvalidValue(
            f"expected {name} to return an output for each of {size} inputs, got "
            f"{tuple(outputs.shape)}"
        )
    return upcast(given), outputs
