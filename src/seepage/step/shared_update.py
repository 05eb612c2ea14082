"""What a training step shares: the gradient, or how far the optimizer moved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from seepage.clients import FedAvg, Gradient
from seepage.clients.gradient import Reduction
from seepage.core import LocalComputation
from seepage.core.errors import InvalidValue, summarise_error
from seepage.core.task import copy_unwrapped

_GRADIENT = "audited is the gradient of the step, which is what federated SGD shares"


def local_computation(
    optimizer: Optimizer | None, reduction: Reduction
) -> tuple[LocalComputation, str]:
    """What is computed, and words on why.

    Plain SGD moves the parameters by -lr times the gradient: that difference is audited. Anything
    else is audited as the gradient behind it, which nothing that is computed from it can exceed.

    Args:
        optimizer: Of the training loop, which is only looked at.
        reduction: Of the loss.
    """
    if optimizer is None:
        return Gradient(reduction=reduction), _GRADIENT
    rate = _plain_rate(optimizer)
    if rate is not None and reduction == "mean":
        return FedAvg(lr=rate, steps=1), (
            f"audited is how far one step of SGD moves the parameters, with lr={rate:g}"
        )
    return Gradient(reduction=reduction), (
        f"audited is the gradient behind the step of {type(optimizer).__name__}: what is computed "
        "from it gives away no more, to whoever sees it once"
    )


def _plain_rate(optimizer: Optimizer) -> float | None:
    """The learning rate, if the optimizer does nothing but multiply by it."""
    if type(optimizer) is not SGD:
        return None
    groups = optimizer.param_groups
    bare = all(
        not group["momentum"] and not group["weight_decay"] and not group["maximize"]
        for group in groups
    )
    rates = {float(group["lr"]) for group in groups}
    return rates.pop() if bare and len(rates) == 1 and min(rates) > 0 else None


def randomness(model: nn.Module) -> str | None:
    """Words on layers that draw at random while training, which the audit leaves out."""
    drawing = [
        type(module).__name__
        for module in model.modules()
        if module.training and "drop" in type(module).__name__.lower() and _active(module)
    ]
    if not drawing:
        return None
    kinds = ", ".join(sorted(set(drawing)))
    return (
        f"{kinds} is left out, as if the adversary knew what it dropped: a step with it gives away "
        "this much at most"
    )


def low_precision(model: nn.Module) -> str | None:
    """Words on a step that is computed below float32, as its rounding hides digits."""
    dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
    narrow = sorted(str(d).removeprefix("torch.") for d in dtypes if d.itemsize < 4)
    if not narrow:
        return None
    return (
        f"the step is computed in {' and '.join(narrow)}, as in training; the adversary reads its "
        "numbers in float32"
    )


def _active(module: nn.Module) -> bool:
    rate = getattr(module, "p", getattr(module, "drop_prob", 0.0))
    return isinstance(rate, int | float) and rate > 0


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Compute inside the block without a trace: random states, and the modes of autograd.

    Whatever surrounds the call, gradients are recorded inside and autocast is off.

    Args:
        model: Whose devices are looked after.
    """
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    kind = "cuda" if devices else "cpu"
    plain, arrays = random.getstate(), np.random.get_state()
    try:
        with (
            torch.random.fork_rng(devices=devices),
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(kind, enabled=False),
        ):
            yield
    finally:
        random.setstate(plain)
        np.random.set_state(arrays)


def copied(model: object) -> nn.Module:
    """A copy of a network in its own precision, without what is wrapped around it."""
    if not isinstance(model, nn.Module):
        raise InvalidValue(f"expected a torch.nn.Module, got {type(model).__name__}")
    try:
        return copy_unwrapped(model)
    except Exception as error:
        raise InvalidValue(
            f"expected a network that can be copied, but copying {type(model).__name__} raised "
            f"{summarise_error(error)}"
        ) from error
