"""PyTorch Lightning: audit or record chosen steps of `Trainer.fit`.

Trainer(callbacks=[step_callback(sp.AuditSteps("audits", at=(0, 500), domain=(0, 1)))])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seepage.core.errors import InvalidValue, MissingExtra, install_hint
from seepage.integrations.gathered_step import GatheredStep, StepListener

if TYPE_CHECKING:
    from lightning.pytorch import Callback


def step_callback(listener: StepListener) -> Callback:
    """A callback for `Trainer(callbacks=[...])` that hands chosen steps to `listener`.

    A step is one of the optimiser; batches that are accumulated for it are joined. The gradient is
    taken after a loss scaler and before clipping. The network is the module itself, so its
    `forward` must return what its loss takes.

    Args:
        listener: `sp.AuditSteps` or `sp.RecordSteps`; steps are numbered as `trainer.global_step`.

    Raises:
        MissingExtra: If Lightning is not installed.
        InvalidValue: When training begins, of a module with several optimisers.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError as error:
            raise MissingExtra(f"this needs Lightning: {install_hint('lightning')}") from error

    class StepCallback(Callback):  # type: ignore[misc]
        """Gathers batches, and hands them over with the gradient."""

        def __init__(self) -> None:
            self.step = GatheredStep(listener)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401
            """Refuse what has no one gradient per step."""
            names = [type(optimizer).__name__ for optimizer in trainer.optimizers]
            if len(names) > 1:
                raise InvalidValue(
                    f"expected a module with one optimiser, got {len(names)} "
                    f"({', '.join(names)}), each of which steps along a loss of its own; call "
                    "sp.audit_step(..., gradients=...) in training_step, after the backward pass "
                    "to audit"
                )

        def on_train_batch_start(
            self,
            trainer: Any,  # noqa: ANN401
            pl_module: Any,  # noqa: ANN401
            batch: Any,  # noqa: ANN401
            batch_idx: int,
        ) -> None:
            """Hold the batch."""
            self.step.add(trainer.global_step, batch)

        def on_before_optimizer_step(
            self,
            trainer: Any,  # noqa: ANN401
            pl_module: Any,  # noqa: ANN401
            optimizer: Any,  # noqa: ANN401
        ) -> None:
            """Hand over what was held."""
            self.step.finish(trainer.global_step, pl_module)

    return StepCallback()
