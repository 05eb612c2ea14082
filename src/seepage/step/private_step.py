"""A step of a model that Opacus made private: its own update, its defense, its account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from seepage.audit.targets import CapturedUpdate, Target
from seepage.capture import Capture, Setting
from seepage.core import Protection, Rng, Task
from seepage.core.errors import InvalidValue
from seepage.defenses import gaussian_epsilon
from seepage.integrations import opacus


@dataclass(frozen=True)
class _Privacy:
    """Opacus's part in a step.

    Args:
        optimizer: As `make_private` gave it.
        engine: That gave it, for the account; None if it is not at hand.
        delta: The probability with which the promise may fail.
    """

    optimizer: Any
    engine: Any = None
    delta: float = 1e-5

    def standard(self, own: nn.Module) -> nn.Module:
        """The network itself, of a copy that keeps the gradient of every example."""
        unwrap = getattr(own, "to_standard_module", None)
        if unwrap is None:
            raise InvalidValue(
                f"expected the model that make_private returned, got {type(own).__name__}; its "
                "optimizer needs one that keeps the gradient of every example"
            )
        network: nn.Module = unwrap()
        return network

    @property
    def defense(self) -> Protection:
        """What the optimizer does, as a chain that an adversary can know."""
        return opacus.protection(self.optimizer)

    def capture_update(
        self,
        who: Target,
        task: Task,
        model: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        *,
        shape: tuple[int, ...],
        knows_labels: bool,
        rng: Rng,
    ) -> Target:
        """The same target, with the update that Opacus itself computes."""
        reference = next(iter(task.parameters.values()))
        batch = who.require_batch().to(device=reference.device, dtype=reference.dtype)
        given = task.domain.normalise(batch.inputs).reshape(len(batch), *shape)
        made = opacus.shared_gradient(
            model, self.optimizer, loss, given, batch.labels, rng=rng.fork("client")
        )
        # Names are those of the user's network, and the task wraps it: the order is the same.
        update = dict(zip(task.parameters, made.values(), strict=True))
        setting = Setting(batch_size=len(batch), framework="opacus", mode=task.mode)
        capture = Capture(update, "gradient", setting=setting)
        return replace(
            who, captured=CapturedUpdate(capture, batch.labels.cpu() if knows_labels else None)
        )

    @property
    def account(self) -> str:
        """What was promised, in words."""
        noise = float(self.optimizer.noise_multiplier)
        one = gaussian_epsilon(noise_multiplier=noise, delta=self.delta)
        words = f"epsilon {one:.3g} for this step alone if everybody takes part in it"
        if self.engine is not None:
            spent = opacus.spent(self.engine, delta=self.delta)
            words = f"epsilon {spent:.3g} by Opacus's account of all steps so far, and {words}"
        return f"{words}, at delta {self.delta:g}"

    @property
    def note(self) -> str:
        """What is audited."""
        optimizer = self.optimizer
        return (
            "audited is the gradient that Opacus's optimizer steps along, computed by Opacus: "
            f"clipped to {float(optimizer.max_grad_norm):g} per example, noise multiplier "
            f"{float(optimizer.noise_multiplier):g}; {self.account}"
        )


def privacy_of(optimizer: object, engine: object, delta: float) -> _Privacy | None:
    """Opacus's part, if the optimizer is one of its own."""
    if not opacus.is_private(optimizer):
        return None
    return _Privacy(optimizer, engine, delta)
