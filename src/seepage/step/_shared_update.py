"""What a training step shares: the gradient, how far the optimizer moved, or what Opacus made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import SGD, Optimizer
from torch.utils import checkpoint

from seepage.audit._captured_data import CapturedUpdate
from seepage.audit._targets import Target
from seepage.capture import Capture, Setting
from seepage.clients import FedAvg, Gradient
from seepage.core import LocalComputation, Protection, Rng, Task
from seepage.core._draws import private_draws, restored_draws
from seepage.core._task import Reduction, copy_unwrapped
from seepage.core.errors import InvalidValue, summarise_error
from seepage.defenses import gaussian_epsilon
from seepage.integrations import opacus
from seepage.threats import Threat

_GRADIENT = "audited is the gradient of the step, which is what federated SGD shares"


def choose_computation(
    optimizer: Optimizer | None, reduction: Reduction
) -> tuple[LocalComputation, str]:
    """Choose what is audited of a step, and say why.

    Plain SGD moves the parameters by -lr times the gradient: that difference is audited. For
    any other optimizer the gradient is audited: what is computed from it gives away no more.
    """
    if optimizer is None:
        return Gradient(reduction=reduction), _GRADIENT
    rate = _find_plain_rate(optimizer)
    if rate is not None and reduction == "mean":
        return FedAvg(lr=rate, steps=1), (
            f"audited is how far one step of SGD moves the parameters, with lr={rate:g}"
        )
    return Gradient(reduction=reduction), (
        f"audited is the gradient behind the step of {type(optimizer).__name__}: what is computed "
        "from it gives away no more, to whoever sees it once"
    )


def _find_plain_rate(optimizer: Optimizer) -> float | None:
    """Return the learning rate if the optimizer only multiplies by it, else None."""
    if type(optimizer) is not SGD:
        return None
    # A group with a rate of zero does not move; if all have one, the rate is not known.
    groups = [group for group in optimizer.param_groups if group["lr"] != 0]
    bare = all(
        not group["momentum"] and not group["weight_decay"] and not group["maximize"]
        for group in groups
    )
    rates = {float(group["lr"]) for group in groups}
    return rates.pop() if bare and len(rates) == 1 and min(rates) > 0 else None


def freeze_unmoved(own: nn.Module, model: nn.Module, optimizer: Optimizer | None) -> str | None:
    """Freeze what the optimizer does not move, since it is not shared, and say so.

    Nothing is frozen without an optimizer.
    """
    if optimizer is None:
        return None
    groups = optimizer.param_groups
    moved = {id(p) for group in groups if group.get("lr") != 0 for p in group["params"]}
    pairs = zip(model.parameters(), own.parameters(), strict=True)
    trained = [(copied, id(given) in moved) for given, copied in pairs if given.requires_grad]
    still = [copied for copied, moves in trained if not moves]
    if not moved or not still:
        return None
    if len(still) == len(trained):
        return "the optimizer holds none of the network's parameters, so all are taken to move"
    for copied in still:
        copied.requires_grad_(False)
    return (
        f"{len(still)} of {len(trained)} trainable parameters are not moved by the optimizer, and "
        "are taken not to be shared; leave it out to audit the gradient of all"
    )


def describe_random_layers(model: nn.Module, *, given: bool = False) -> str | None:
    """Say which layers draw at random while training; the audit leaves them out.

    If gradients are given, they are of the loop, so that only simulations leave these layers out.
    """
    training = {type(m).__name__ for m in model.modules() if m.training and _drops(m)}
    if not (kinds := sorted(name for name in training if "drop" in name.lower())):
        return None
    names = ", ".join(kinds)
    if given:
        return f"{names} draws at random in your loop, and is left out of what is simulated"
    return (
        f"{names} is left out; of a batch, a step with it may give away more, since a "
        "unit that is dropped for all people but one shows that one alone"
    )


def describe_precision(model: nn.Module) -> str | None:
    """Say if the step is computed below float32, since its rounding hides digits."""
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    if not (narrow := sorted(str(d).removeprefix("torch.") for d in dtypes if d.itemsize < 4)):
        return None
    return (
        f"the step is computed in {' and '.join(narrow)}, as in training; the adversary reads its "
        "numbers in float32"
    )


def _drops(module: nn.Module) -> bool:
    rate = getattr(module, "p", getattr(module, "drop_prob", 0.0))
    return isinstance(rate, int | float) and rate > 0


@contextmanager
def leave_unchanged(model: nn.Module) -> Iterator[None]:
    """Restore random states and the modes of autograd after the block.

    Inside, gradients are recorded and autocast is off, whatever surrounds the call.
    """
    kind = "cuda" if any(p.is_cuda for p in model.parameters()) else "cpu"
    with (
        restored_draws(),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(kind, enabled=False),
    ):
        yield


def read_autocast(model: nn.Module) -> torch.autocast:
    """Return the autocast that surrounds the call, to be entered again later."""
    kind = next((p.device.type for p in model.parameters()), "cpu")
    return torch.autocast(
        kind,
        dtype=torch.get_autocast_dtype(kind),
        enabled=torch.is_autocast_enabled(kind),
        cache_enabled=torch.is_autocast_cache_enabled(),
    )


def remove_backward_hooks(model: nn.Module) -> None:
    """Remove hooks on the gradient of layers, through which torch.func cannot differentiate."""
    for module in model.modules():
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()


# What this thread, or task of asyncio, does where a network asks to compute activations twice.
_KEEPS: ContextVar[Literal["", "all", "as the loop"]] = ContextVar("seepage_keeps", default="")
_GENERATOR = checkpoint._checkpoint_without_reentrant_generator
_LOCK, _AUDITS = threading.Lock(), [0]


@contextmanager
def keeping_activations(*, as_the_loop: bool = False) -> Iterator[None]:
    """Keep activations instead of computing them twice; torch.func cannot do the latter.

    The numbers are the same, but for reentrant checkpointing: where its inputs need no gradient,
    nothing inside gets one. That is so here too `as_the_loop`. Other threads go on as they were.
    """
    token = _KEEPS.set("as the loop" if as_the_loop else "all")
    with _LOCK:
        _AUDITS[0] += 1
        if _AUDITS[0] == 1:
            checkpoint._checkpoint_without_reentrant_generator = _start
            checkpoint.CheckpointFunction.apply = staticmethod(_run)  # type: ignore[method-assign]
    try:
        yield
    finally:
        _KEEPS.reset(token)
        with _LOCK:
            _AUDITS[0] -= 1
            if not _AUDITS[0]:
                checkpoint._checkpoint_without_reentrant_generator = _GENERATOR
                del checkpoint.CheckpointFunction.apply


def _start(*args: Any, **options: Any) -> Generator[None]:  # noqa: ANN401
    return _keep() if _KEEPS.get() else _GENERATOR(*args, **options)


def _keep() -> Generator[None]:
    yield


def _run(function: Callable[..., Any], preserves: bool, *args: Any) -> Any:  # noqa: ANN401
    if not _KEEPS.get():
        torchs = super(checkpoint.CheckpointFunction, checkpoint.CheckpointFunction)
        return torchs.apply(function, preserves, *args)  # type: ignore[attr-defined]
    needed = any(isinstance(one, Tensor) and one.requires_grad for one in args)
    with torch.set_grad_enabled(torch.is_grad_enabled() and (needed or _KEEPS.get() == "all")):
        return function(*args)


def copy_model(model: object) -> nn.Module:
    """Copy a network in its own precision, without what is wrapped around it."""
    if not isinstance(model, nn.Module):
        raise InvalidValue(f"expected a torch.nn.Module, got {type(model).__name__}")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise InvalidValue(
            f"expected a network with weights, but {type(model).__name__} is on the meta device, "
            "which holds none; load them first"
        )
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise InvalidValue(
            f"expected a network with weights, but {type(model).__name__} has lazy layers that "
            "have not run; call it on a batch first"
        )
    try:
        return copy_unwrapped(model)
    except Exception as error:
        raise InvalidValue(
            f"expected a network that can be copied, but copying {type(model).__name__} raised "
            f"{summarise_error(error)}"
        ) from error


@dataclass(frozen=True)
class _Privacy:
    """Opacus's part in a step."""

    optimizer: Any
    engine: Any = None
    delta: float = 1e-5

    def unwrap_model(self, own: nn.Module) -> nn.Module:
        """Return the network itself, from a copy that keeps the gradient of every example."""
        unwrap = getattr(own, "to_standard_module", None)
        if unwrap is None:
            raise InvalidValue(
                f"expected the model that make_private returned, got {type(own).__name__}; its "
                "optimizer needs one that keeps the gradient of every example"
            )
        network: nn.Module = unwrap()
        return network

    def unwrap_loss(self, loss: Any) -> Any:  # noqa: ANN401 - as the training loop has it
        """Return the loss itself, from one that Opacus wrapped for ghost clipping."""
        return loss.criterion if opacus.is_private(loss) else loss

    def require_reduction(self, local: LocalComputation, size: int) -> None:
        """Raise `InvalidValue` if the loss is reduced in another way than Opacus was told."""
        told = self.optimizer.loss_reduction
        if size > 1 and isinstance(local, Gradient) and local.reduction != told:
            raise InvalidValue(
                f"expected a loss reduced by {told!r}, as make_private was told, got "
                f"{local.reduction!r}: gradients would be clipped at another norm; give it "
                f"loss_reduction={local.reduction!r}"
            )

    @property
    def defense(self) -> Protection:
        """The optimizer's clipping and noise, as a chain that an adversary can know."""
        return opacus.protection(self.optimizer)

    def capture_update(
        self,
        who: Target,
        task: Task,
        model: nn.Module,
        loss: Callable[..., Tensor],
        shape: tuple[int, ...],
        threat: Threat,
        rng: Rng,
    ) -> Target:
        """Return the same people with the update that Opacus itself computes of them."""
        batch = task.move_batch(who.require_batch())
        given = task.domain.normalise(batch.inputs).reshape(len(batch), *shape)
        # Without labels the inputs are the targets.
        targets = batch.labels if batch.labels.numel() else given
        with private_draws():
            made = opacus.shared_gradient(
                model, self.optimizer, loss, given, targets, rng=rng.fork("client")
            )
        # Names are those of the user's network, and the task wraps it: the order is the same.
        update = dict(zip(task.parameters, made.values(), strict=True))
        setting = Setting(batch_size=len(batch), framework="opacus", mode=task.mode)
        known = batch.labels.cpu() if threat.knows_labels else None
        capture = Capture(update, "gradient", setting=setting)
        return replace(who, captured=CapturedUpdate(capture, known))

    @property
    def account(self) -> str:
        """What differential privacy promises, in words."""
        noise = float(self.optimizer.noise_multiplier)
        one = gaussian_epsilon(noise_multiplier=noise, delta=self.delta)
        words = f"epsilon {one:.3g} for this step alone if everybody takes part in it"
        if self.engine is not None:
            spent = opacus.spent(self.engine, delta=self.delta)
            words = f"epsilon {spent:.3g} by Opacus's account of all steps so far, and {words}"
        return f"{words}, at delta {self.delta:g}"

    @property
    def note(self) -> str:
        """Which gradient is audited, in words."""
        optimizer = self.optimizer
        return (
            "audited is the gradient that Opacus's optimizer steps along, computed by Opacus: "
            f"clipped to {float(optimizer.max_grad_norm):g} per example, noise multiplier "
            f"{float(optimizer.noise_multiplier):g}; {self.account}"
        )


def find_privacy(
    model: nn.Module, optimizer: object, engine: object, delta: float
) -> _Privacy | None:
    """Return Opacus's part, or None if the optimizer is not one of its own."""
    if not opacus.is_private(optimizer):
        if hasattr(model, "to_standard_module"):
            raise InvalidValue(
                "expected the optimizer that make_private returned with the model, since it is "
                "what clips and adds noise; give it too, or model.to_standard_module() to audit a "
                "step without them"
            )
        return None
    return _Privacy(optimizer, engine, delta)
