"""Leaving everything of the user's as it was found."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from seepage.core.errors import InvalidValue, in_a_line
from seepage.core.task import copy_unwrapped


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
            f"{in_a_line(error)}"
        ) from error
