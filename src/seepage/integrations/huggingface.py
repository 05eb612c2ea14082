"""Hugging Face: audit or record chosen steps of `transformers.Trainer`.

Trainer(..., callbacks=[step_callback(sp.AuditSteps("audits", at=(0, 500)))])
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from seepage.core.errors import import_extra
from seepage.integrations.gathered_step import (
    SMOOTHING,
    GatheredStep,
    StepListener,
    copy_prepared,
)

if TYPE_CHECKING:
    from transformers import TrainerCallback


def step_callback(listener: StepListener) -> TrainerCallback:
    """A callback for `Trainer(callbacks=[...])` that hands chosen steps to `listener`.

    A step is one of the optimiser; batches that are accumulated for it are joined. The batch is
    what reaches the network, labels included. The gradient is taken before the trainer clips it.

    With label smoothing or a `compute_loss_func`, labels do not reach the network, and are taken
    from the trainer. `AuditSteps(loss=None)` smooths as the trainer does, but for accumulated
    batches, which the trainer adds up there; give it the loss if there is a `compute_loss_func`. A
    step of an own `compute_loss` that keeps labels under another name is taken for one without
    labels, which its gradient then contradicts; call `sp.audit_step` yourself there.

    Args:
        listener: `sp.AuditSteps` or `sp.RecordSteps`; steps are numbered as `state.global_step`.

    Raises:
        MissingExtra: If transformers is not installed.
    """
    transformers = import_extra("transformers", "huggingface", reason="this needs transformers")

    class StepCallback(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        """Listens to the network in chosen steps, and hands over what it heard."""

        def __init__(self) -> None:
            self.step = GatheredStep(listener)
            self.number, self.smoothing = -1, 0.0
            self.gradients: dict[str, Tensor | None] = {}
            self.hooks: list[Any] = []

        def on_step_begin(
            self,
            args: Any,  # noqa: ANN401
            state: Any,  # noqa: ANN401
            control: object,
            model: nn.Module,
            **_: object,
        ) -> None:
            """Begin to listen."""
            self.number, self.smoothing = int(state.global_step), args.label_smoothing_factor
            self._stop()
            if not listener.wants(self.number):
                return
            self.hooks = [model.register_forward_pre_hook(self._read, with_kwargs=True)]
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    hook: Any = parameter.register_post_accumulate_grad_hook
                    self.hooks.append(hook(_keep_in(self.gradients, name)))

        def on_pre_optimizer_step(
            self, args: object, state: object, control: object, model: nn.Module, **_: object
        ) -> None:
            """Hand over what was heard; the trainer has clipped `.grad` by now."""
            heard, was_heard = self.gradients, bool(self.hooks)
            self._stop()
            if was_heard:
                self.step.finish(self.number, copy_prepared(model), heard)

        def on_train_end(self, args: object, state: object, control: object, **_: object) -> None:
            """Listen no longer."""
            self._stop()

        def _read(
            self, module: nn.Module, args: tuple[object, ...], named: Mapping[str, object]
        ) -> None:
            if not torch.is_grad_enabled():
                return
            batch = dict(named)
            if batch and "labels" not in batch and (labels := _find_labels()) is not None:
                batch |= {"labels": labels}
                batch |= {SMOOTHING: self.smoothing} if self.smoothing else {}
            self.step.add(self.number, batch or args)

        def _stop(self) -> None:
            for hook in self.hooks:
                hook.remove()
            self.hooks, self.gradients = [], {}

    return StepCallback()


def _find_labels() -> Tensor | None:
    """Labels that `Trainer.compute_loss` keeps to itself while the network runs."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != "compute_loss":
        frame = frame.f_back
    found = frame.f_locals.get("labels")
    return found if isinstance(found, Tensor) else None


def _keep_in(kept: dict[str, Tensor | None], name: str) -> Any:  # noqa: ANN401 - torch's hook
    def keep(parameter: Tensor) -> None:
        assert parameter.grad is not None
        kept[name] = parameter.grad.detach().clone()

    return keep
