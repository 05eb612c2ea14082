"""One optimiser step of another framework's loop: batches and gradient, brought together."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from seepage.core.errors import summarise_error

_LOG = logging.getLogger("seepage.steps")
# What a batch of Hugging Face's trainer has besides, where the trainer smooths labels itself.
SMOOTHING = "label_smoothing_factor"


class StepListener(Protocol):
    """Wants some steps of a training; `sp.AuditSteps` and `sp.RecordSteps` do."""

    def wants(self, number: int) -> bool:
        """Whether to hand over the step of this number, counted from 0."""

    def __call__(
        self,
        number: int,
        model: nn.Module,
        batch: object,
        gradients: Mapping[str, Tensor | None] | None = None,
    ) -> object:
        """Take a step, before the optimiser moves the parameters. Must not raise.

        Args:
            number: Which step it is.
            model: The network, as it was when the gradient was computed.
            batch: As the data loader gave it; that of all accumulated backward passes.
            gradients: By name of the parameter, before clipping; `.grad` if not given.
        """


class GatheredStep:
    """Holds the batches of one optimiser step until its gradient is whole.

    Example:
        >>> class Print:
        ...     def wants(self, number):
        ...         return number == 1
        ...     def __call__(self, number, model, batch, gradients=None):
        ...         print(number, batch)
        >>> step = GatheredStep(Print())
        >>> step.add(1, torch.zeros(1)), step.add(1, torch.ones(1))
        (True, True)
        >>> step.finish(1, nn.Linear(1, 1))
        1 tensor([0., 1.])
    """

    def __init__(self, listener: StepListener) -> None:
        self.listener = listener
        self._number, self._batches = -1, list[object]()

    def add(self, number: int, batch: object) -> bool:
        """Hold a batch if its step is wanted; those of an earlier step are let go.

        Returns:
            Whether it is wanted.
        """
        if number != self._number:
            self._number, self._batches = number, []
        wanted = self.listener.wants(number)
        if wanted:
            self._batches.append(batch)
        return wanted

    def finish(
        self,
        number: int,
        model: nn.Module,
        gradients: Mapping[str, Tensor | None] | None = None,
    ) -> None:
        """Hand the step over, if any batch of it is held."""
        batches, self._batches = self._batches, []
        if not batches or number != self._number:
            return
        try:
            batch = _join_batches(batches)
        except (RuntimeError, ValueError, KeyError) as error:
            _LOG.warning(
                "step %d was left out, since its %d accumulated batches cannot be joined: %s",
                number,
                len(batches),
                summarise_error(error),
            )
            return
        self.listener(number, model, batch, gradients)


def _join_batches(batches: list[Any]) -> object:
    """Join batches of equal form along their first axis; what is no tensor is kept of the first.

    Example:
        >>> _join_batches([(torch.zeros(1), torch.ones(1))] * 2)
        (tensor([0., 0.]), tensor([1., 1.]))
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    match first:
        case Tensor() if first.ndim:
            return torch.cat(batches)
        case Mapping():
            return {name: _join_batches([batch[name] for batch in batches]) for name in first}
        case tuple() | list():
            return tuple(_join_batches(list(parts)) for parts in zip(*batches, strict=True))
        case _:
            return first


def copy_prepared(model: nn.Module) -> nn.Module:
    """Copy a network without what `accelerator.prepare` wraps around it, such as its autocast."""
    from accelerate.utils import extract_model_from_parallel

    plain = extract_model_from_parallel(model, keep_torch_compile=False)
    own: nn.Module = extract_model_from_parallel(copy.deepcopy(plain), keep_fp32_wrapper=False)
    return own
