"""The gradient that a training loop really computes, so that exactly this is audited.

Attacks need a step as a function of the inputs, without wrappers, hooks and autocast. What a client
sends comes from the loop itself. So the loop's `backward` is run on a copy, and its numbers are
attacked; the function is what the adversary simulates.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from seepage.audit._targets import Target
from seepage.capture._capture import strip_prefixes
from seepage.clients import Client, FedAvg, Gradient
from seepage.core import Batch, LocalComputation, Observation, Rng, Task, Update
from seepage.core._device import upcast
from seepage.core._digest import digest
from seepage.core._draws import private_draws
from seepage.core._task import batchnorm_layers, copy_unwrapped, unwrap
from seepage.core._update import Granularity
from seepage.core.errors import InvalidValue, SeepageError
from seepage.step._shared_update import describe_random_layers, keeping_activations
from seepage.step._step_inputs import MaskPadding
from seepage.step._step_loss import tell_share
from seepage.threats import Simulation, Threat
from seepage.zoo._foreign import find_logits

Gradients = Mapping[str, Tensor]
# Above this share of its norm, a gradient is another than the network, loss and batch give.
_FOREIGN = 0.05
# Below this share, the order of float32 additions explains the difference.
_ROUNDING = 1e-5
# A loss is scaled by a power of two from here on; clipping and averaging only make it smaller.
_SMALLEST_SCALE = 16
# Half precision rounds the numbers of a scaled loss by less than this share.
_UNEVEN = 0.01
_LOSS_IS_TRAINED = (
    "the loss reads trainable parameters itself, such as centres of classes or a penalty on weights"
    ", whose gradient is left out; move them into the network, and a penalty into the optimizer"
)


@dataclass(frozen=True, eq=False)
class RealStep:
    """What a training loop would send, and how it compares with what is simulated.

    Args:
        gradients: One per parameter of the task, before any defense; None if the simulated ones
            have the same bits, or take their place.
        difference: Why the audited gradient is not that of the loop, in words; empty if it is.
        note: How far the simulation is from it, in words; empty if only by rounding.
        unsent: Parameters of the task that no gradient reaches in the loop.
        foreign: Whether the simulation is so far off that a failed attack means nothing, or what
            it leaves out may tell the people of a batch apart, as dropout does.
    """

    gradients: Gradients | None = None
    difference: str = ""
    note: str = ""
    foreign: bool = False
    unsent: tuple[str, ...] = ()

    def leave_unsent(self, names: tuple[str, ...], count: int) -> RealStep:
        """Say that no gradient reaches these parameters, of so many."""
        told = (
            f"no gradient reaches {len(names)} of {count} trainable parameters in your loop, as "
            "where reentrant checkpointing begins at inputs that need none; they are not shared"
        )
        note = "; ".join(filter(None, [told, self.note]))
        return replace(self, note=note, unsent=(*names, *self.unsent))

    def leave_out(self, what: str) -> RealStep:
        """Say that a part of the step is not audited, so that finding nobody means nothing."""
        if not what:
            return self
        told = "; ".join(filter(None, [self.difference, what]))
        return replace(self, difference=told, foreign=True)


@dataclass(frozen=True, eq=False)
class TrainingLoop:
    """A step as the user's loop runs it, on a copy of the network.

    Args:
        model: The user's network, with whatever is wrapped around it; it is not changed.
        loss: As the loop calls it.
        autocast: The autocast around the call; see `read_autocast`.
        task: The network as a function, in the mode of the threat.
        client: Who sends, and behind which defense.
        batch: The private batch, in the units of the task.
        shape: Of one input, as the network reads it.
    """

    model: nn.Module
    loss: Callable[..., Tensor]
    autocast: torch.autocast
    task: Task
    client: Client
    batch: Batch
    shape: tuple[int, ...]

    def compute_gradients(self, *, draws: bool, again: bool = False) -> list[Tensor | None]:
        """Run forward and backward, and return the gradient of each parameter that is shared.

        It is None where no gradient reaches the parameter.

        Args:
            draws: Whether layers run as they do in the loop. Otherwise all but batch
                normalisation run as in evaluation, so that no layer of torch draws at random.
            again: Draw other numbers, where anything is drawn.
        """
        model = _copy_with_hooks(self.model)
        if not draws:
            normalising = [layer for layer in batchnorm_layers(model).values() if layer.training]
            model.eval()
            for layer in normalising:
                layer.train()
        trained = list(self._select_shared(model).values())
        # Nothing else gets a gradient: the loss may read parameters that are not of the copy.
        with keeping_activations(as_the_loop=True):
            torch.autograd.backward(self._compute_loss(model, again=again), inputs=trained)
        return [p.grad for p in trained]

    def _select_shared(self, model: nn.Module) -> dict[str, Tensor]:
        """The parameters that the task trains, by their names in the network."""
        pairs = zip(model.named_parameters(), self.task.model.parameters(), strict=True)
        return {name: own for (name, own), simulated in pairs if simulated.requires_grad}

    def _compute_loss(self, model: nn.Module, *, again: bool = False) -> Tensor:
        inputs = self.task.domain.normalise(self.batch.inputs).reshape(-1, *self.shape)
        with private_draws(again=again), self.autocast:
            outputs = model(inputs)
            # Without labels the inputs are the targets.
            targets = self.batch.labels if self.batch.labels.numel() else inputs
            try:
                value = self.loss(find_logits(outputs), targets)
            except AttributeError:
                value = self.loss(outputs, targets)
        return value.mean()

    def examine(self, given: object = None) -> RealStep:
        """Compare the gradient of the loop, computed here or given, with the simulated one."""
        self.task.check(self.batch)
        real = self.compare() if given is None else self.accept(given)
        return real.leave_out(_LOSS_IS_TRAINED if self._loss_is_trained() else "")

    def _loss_is_trained(self) -> bool:
        """Whether the loss depends on trainable parameters, and not only through the outputs."""
        model = copy_unwrapped(self.model).eval().requires_grad_(False)
        try:
            return self._compute_loss(model).requires_grad
        except Exception:  # noqa: BLE001 - `compare` tells why the loop cannot be run
            return False

    def compare(self) -> RealStep:
        """Compare the gradient of the loop with the simulated one, and choose what is audited."""
        own = self._simulate()
        try:
            computed = self.compute_gradients(draws=True)
            if unsent := self._find_unsent(computed, own):
                return self._without(unsent).compare().leave_unsent(unsent, len(own))
            sent = self._name(computed)
            if _same(sent, own):
                return RealStep(difference=_describe_unseen(self.model))
            quiet = self._name(self.compute_gradients(draws=False))
            always = self._describe_draws(quiet)
        except SeepageError:
            raise
        except Exception as error:  # noqa: BLE001 - the loop is the user's, with hooks of any kind
            return RealStep(
                difference="the step could not be compared with that of a training loop, which "
                f"raised {type(error).__name__} on a copy of the network"
            )
        left_out, drawn = [_describe_unseen(self.model), always], not _same(sent, quiet)
        if drawn:
            left_out.append(
                "what the network does in training alone, such as drawing at random, is left out, "
                f"which changes the gradient by {tell_share(_distance(sent, quiet))} of its norm"
            )
        distance, audited = _distance(quiet, own), None if _same(quiet, own) else quiet
        if audited is not None and not self.client.chain.only_changes_update:
            left_out.append(_state_defense(self.client, distance))
            audited = None
        # One person has nobody to be told apart from by dropout, but the step may be another one.
        other = not describe_random_layers(self.model) and _distance(sent, quiet) > _FOREIGN
        told = "; ".join(filter(None, left_out))
        foreign = bool(always) or (drawn and (len(self.batch) > 1 or other))
        if audited is None:
            return RealStep(difference=told, foreign=foreign)
        foreign |= distance > _FOREIGN
        return RealStep(audited, told, _note(distance, self.autocast), foreign)

    def accept(self, given: object) -> RealStep:
        """Take gradients by name (or None) that the loop computed, and say if they are others."""
        own_model = self.model.model if isinstance(self.model, MaskPadding) else self.model
        model = unwrap(own_model)
        computed, own = _read_gradients(given, model, self._select_shared(model)), self._simulate()
        if unsent := self._find_unsent(computed, own):
            return self._without(unsent).accept(given).leave_unsent(unsent, len(own))
        sent = self._name(computed)
        if not self.client.chain.only_changes_update:
            distance = _distance(sent, own)
            return RealStep(difference=_state_defense(self.client, distance) if distance else "")
        factor, scale = _find_scale(sent, own)
        sent = {name: tensor / scale for name, tensor in sent.items()}
        told, distance = "", _distance(sent, own)
        if scale > 1:
            exact = abs(factor / scale - 1) < _UNEVEN
            by = "it" if exact else f"{scale:g}, the nearest power of two"
            scaled = scale if exact else round(factor)
            told = (
                f"the gradients are those of a loss scaled by {scaled:g}, and are divided by {by}"
            )
        if distance <= _FOREIGN:
            return RealStep(sent, told, _note(distance, self.autocast))
        foreign = self._describe_own_draws() or (
            "the gradients are not those of this network, loss and batch, but differ by "
            f"{tell_share(distance)} of their norm: give the batch they were accumulated over, the "
            "loss as it was, and clipping or noise as defense="
        )
        return RealStep(sent, "; ".join(filter(None, [told, foreign])), foreign=True)

    def _simulate(self) -> Gradients:
        local = Gradient() if isinstance(self.client.local, FedAvg) else self.client.local
        own = local(self.task, self.batch.inputs, self.batch.labels)
        return own.detach().map(upcast).tensors

    def _name(self, gradients: Sequence[Tensor | None]) -> Gradients:
        # The task wraps the network, so its names are longer; the order is the same.
        pairs = zip(self.task.parameters.items(), gradients, strict=True)
        return {n: upcast(torch.zeros_like(p) if g is None else g) for (n, p), g in pairs}

    def _find_unsent(self, gradients: Sequence[Tensor | None], own: Gradients) -> tuple[str, ...]:
        """Parameters that no gradient reaches in the loop, though the simulation has one."""
        pairs = zip(self.task.parameters, gradients, strict=True)
        return tuple(name for name, g in pairs if g is None and bool(own[name].any()))

    def _without(self, unsent: Collection[str]) -> TrainingLoop:
        return replace(self, task=freeze(self.task, unsent))

    def _describe_draws(self, quiet: Gradients) -> str:
        """Say if the step is another one each time, and how far apart two of them are."""
        again = self._name(self.compute_gradients(draws=False, again=True))
        if (distance := _distance(quiet, again)) <= _ROUNDING:
            return ""
        return (
            "the network or the loss draws at random whenever it runs, and what is audited is one "
            f"draw: another changes the gradient by {tell_share(distance)} of its norm"
        )

    def _describe_own_draws(self) -> str:
        """The same of gradients that were given; empty if the loop cannot be run."""
        try:
            return self._describe_draws(self._name(self.compute_gradients(draws=False)))
        except Exception:  # noqa: BLE001 - the loop is the user's
            return ""


@dataclass(frozen=True, eq=False)
class _SentUpdate:
    """What the adversary sees of gradients that are computed already."""

    seen: Observation

    @cached_property
    def digest(self) -> str:
        """A hash of the update."""
        return digest(*(part for pair in self.seen.update.tensors.items() for part in pair))

    def observe(self, task: Task, *, defense: object = None) -> Observation:
        """The adversary's view, which is made already."""
        del task, defense
        return self.seen


def send(
    gradients: Gradients | None, client: Client, threat: Threat, task: Task, who: Target, key: Rng
) -> Target:
    """Let a client send these gradients, behind its defense; None for those that it computes."""
    if gradients is None:
        return who
    sending = replace(client, local=_Computed(client.local, gradients))
    seen = threat.observe(sending, task, task.move_batch(who.require_batch()), rng=key)
    known = client if threat.knows_defense else Client(client.local)
    simulate = Simulation(known, seen.task, seen.simulate.mixing)
    return replace(who, captured=_SentUpdate(replace(seen, simulate=simulate)))


@dataclass(frozen=True, eq=False)
class _Computed:
    """A local computation whose gradient is there already."""

    produces: ClassVar[tuple[Granularity, ...]] = ("aggregate",)

    local: LocalComputation
    gradients: Gradients

    def __call__(
        self, task: Task, inputs: Tensor, labels: Tensor, *, granularity: Granularity = "aggregate"
    ) -> Update:
        """Return the gradient, or how far one step of SGD moves along it."""
        del inputs, labels, granularity
        if not isinstance(self.local, FedAvg):
            return Update(self.gradients)
        moved = {}
        for name, before in task.parameters.items():
            after = torch.add(before, self.gradients[name].to(before), alpha=-self.local.lr)
            moved[name] = after - before
        return Update(moved, kind="difference")


def freeze(task: Task, names: Collection[str]) -> Task:
    """The same task, in which these parameters are not trained."""
    model = copy.deepcopy(task.model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and name not in names)
    return replace(task, model=model)


def _copy_with_hooks(model: nn.Module) -> nn.Module:
    """Copy a network with the hooks on its parameters, which torch does not copy."""
    own = copy_unwrapped(model)
    for original, copied in zip(unwrap(model).parameters(), own.parameters(), strict=True):
        copied.grad = None
        for hook in (original._backward_hooks or {}).values():
            copied.register_hook(hook)  # type: ignore[no-untyped-call]
    return own


def _describe_unseen(model: nn.Module) -> str:
    """Say what of the loop cannot be run on a copy of the network."""
    unseen = []
    if any("_orig_mod" in module._modules for module in model.modules()):
        unseen.append("the step is computed without torch.compile, which rounds differently")
    if any(p._post_accumulate_grad_hooks for p in model.parameters()):
        unseen.append("hooks that run after a gradient is accumulated are left out")
    wrapped = any(isinstance(m, nn.parallel.DistributedDataParallel) for m in model.modules())
    together = torch.distributed
    if wrapped and together.is_initialized() and together.get_world_size() > 1:
        unseen.append("the gradient is that of this process, before it is averaged with others")
    advice = "; give gradients= to audit your own"
    return " and ".join(unseen) + advice if unseen else ""


def _read_gradients(given: object, model: nn.Module, shared: Gradients) -> list[Tensor | None]:
    """Return one gradient per shared parameter, or None; raise if they do not fit the network."""
    if not isinstance(given, Mapping):
        raise InvalidValue(
            "expected gradients as a mapping of parameter names to tensors, such as "
            f"{{n: p.grad for n, p in model.named_parameters()}}, got {type(given).__name__}"
        )
    named = strip_prefixes({name: g for name, g in given.items() if g is not None})
    trained = strip_prefixes({n: p for n, p in model.named_parameters() if p.requires_grad})
    wrong = [n for n in named if n not in trained] or [
        n
        for n, g in named.items()
        if not isinstance(g, Tensor) or not g.is_floating_point() or g.shape != trained[n].shape
    ]
    if wrong or not named:
        raise InvalidValue(
            "expected a gradient in the shape of each trainable parameter, got "
            f"{f'another for {wrong[0]!r}' if wrong else 'none'}; give those of this network, "
            "after backward() and before zero_grad()"
        )
    # Embeddings may have sparse gradients.
    named = {name: g.to_dense() for name, g in named.items()}
    if not all(bool(g.isfinite().all()) for g in named.values()):
        raise InvalidValue(
            "expected finite gradients, got NaN or infinity: a loss scaler skips such a step, and "
            "nothing is sent"
        )
    return [
        named[n].detach().to(p.device) if n in named else None
        for n, p in strip_prefixes(shared).items()
    ]


def _same(one: Gradients, other: Gradients) -> bool:
    return all(torch.equal(one[name], other[name].to(one[name])) for name in one)


def _distance(one: Gradients, other: Gradients) -> float:
    """Return the norm of the difference, as a share of the norm of the first."""
    apart = math.sqrt(sum(float((one[n].double() - other[n].double()).square().sum()) for n in one))
    norm = math.sqrt(sum(float(one[n].double().square().sum()) for n in one))
    return apart / norm if norm else float(apart > 0)


def _find_scale(sent: Gradients, own: Gradients) -> tuple[float, float]:
    """Return by how much a loss was scaled, and the nearest power of two; 1 if it was not.

    Only what a loss scaler uses is recognised. Any other factor, such as that of clipping, would
    tell the adversary the norm of the private gradient.
    """
    along = sum(float((sent[n].double() * own[n].double()).sum()) for n in own)
    norm = sum(float(own[n].double().square().sum()) for n in own)
    if not along > 0 or not norm:
        return 1.0, 1.0
    factor = along / norm
    scale = 2.0 ** round(math.log2(factor))
    unscaled = {name: tensor / scale for name, tensor in sent.items()}
    is_scaled = scale >= _SMALLEST_SCALE and _distance(unscaled, own) <= _FOREIGN
    return (factor, scale) if is_scaled else (1.0, 1.0)


def _note(distance: float, autocast: torch.autocast) -> str:
    if distance <= _ROUNDING:
        return ""
    cast = str(autocast.fast_dtype).removeprefix("torch.")
    how = f", since autocast to {cast} rounds them" if autocast._enabled else ""
    return (
        "audited are the numbers of the training step, bit for bit; what the adversary simulates "
        f"for the same inputs differs by {tell_share(distance)} of their norm{how}"
    )


def _state_defense(client: Client, distance: float) -> str:
    return (
        f"{client.defense} starts from the data or from each example alone, so the gradient is "
        f"computed again and differs by {tell_share(distance)} of its norm from that of the loop"
    )
