"""Accelerate: audit or record chosen steps of a loop with an `Accelerator`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seepage.integrations.gathered_step import GatheredStep, StepListener, copy_prepared

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


class AcceleratedSteps:
    """Hands chosen steps of a loop with an `Accelerator` to `listener`.

    Steps of the optimiser are counted from 0; batches that `accelerator.accumulate` collects for
    one step are joined.

    Args:
        accelerator: That of the loop.
        listener: `sp.AuditSteps` or `sp.RecordSteps`.
    """

    def __init__(self, accelerator: Accelerator, listener: StepListener) -> None:
        self._accelerator, self._step, self._number = accelerator, GatheredStep(listener), 0

    def after_backward(self, model: nn.Module, batch: object) -> None:
        """Take a batch; call it after `accelerator.backward(loss)` and before clipping.

        Args:
            model: As `accelerator.prepare` returned it.
            batch: Inputs and labels, as `audit_step` takes them.
        """
        wanted = self._step.add(self._number, batch)
        if not self._accelerator.sync_gradients:
            return
        if wanted:
            gradients = {name: p.grad for name, p in model.named_parameters()}
            with self._accelerator.autocast():
                self._step.finish(self._number, copy_prepared(model), gradients)
        self._number += 1
