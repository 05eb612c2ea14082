"""Opacus: a training step of a private model, as its own optimiser makes it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seepage.core import Defense, Rng
from seepage.core.errors import InvalidValue, NotApplicable, import_extra
from seepage.defenses._clip import dp_sgd

if TYPE_CHECKING:
    from opacus import GradSampleModule, PrivacyEngine
    from opacus.optimizers import DPOptimizer

Loss = Callable[[Any, Tensor], Tensor]


def is_private(value: object) -> bool:
    """Whether an optimiser, model or loss comes from Opacus; does not import Opacus."""
    return any(kind.__module__.startswith("opacus.") for kind in type(value).__mro__)


def protection(optimizer: DPOptimizer) -> Defense:
    """The defense that the optimiser applies to the gradients of a batch, as a chain.

    References:
        Abadi et al., 2016, Algorithm 1 (abadi2016deep)
    """
    _require_plain(optimizer)
    # With a summed loss the sum is shared, so nothing is divided by a batch size.
    batch = optimizer.expected_batch_size if optimizer.loss_reduction == "mean" else 1
    return dp_sgd(
        max_norm=float(optimizer.max_grad_norm),
        noise_multiplier=float(optimizer.noise_multiplier),
        batch_size=int(batch),
    )


def shared_gradient(
    model: GradSampleModule,
    optimizer: DPOptimizer,
    loss: Loss,
    inputs: Tensor,
    labels: Tensor,
    *,
    rng: Rng,
) -> dict[str, Tensor]:
    """The gradient that this optimiser would step along: clipped, summed and noised by Opacus.

    The model, its gradients, the optimiser and the privacy account are not changed.

    Args:
        model: As `make_private` returned it.
        optimizer: As `make_private` returned it.
        loss: Loss of the model's output and the labels, reduced as the optimiser was told.
        inputs: Inputs as the model takes them.
        labels: Labels of the batch.
        rng: Draws the noise.
    """
    from opacus import GradSampleModule
    from opacus.grad_sample import AbstractGradSampleModule
    from opacus.optimizers import DPOptimizer

    _require_plain(optimizer)
    if not isinstance(model, AbstractGradSampleModule):
        raise InvalidValue(
            f"expected the model that make_private returned, got {type(model).__name__}; its "
            "optimiser needs one that keeps the gradient of every example"
        )
    # Unwrapping removes the hooks, so unwrap a copy. Ghost clipping gives the same numbers.
    standard = copy.deepcopy(model).to_standard_module()
    network = GradSampleModule(standard, loss_reduction=optimizer.loss_reduction)
    step = DPOptimizer(
        torch.optim.SGD(network.parameters(), lr=1.0),
        noise_multiplier=optimizer.noise_multiplier,
        max_grad_norm=optimizer.max_grad_norm,
        expected_batch_size=optimizer.expected_batch_size,
        loss_reduction=optimizer.loss_reduction,
        generator=rng.generator(),
    )
    network.train(model.training)
    with warnings.catch_warnings():
        # Opacus also hooks the first layer, whose input needs no gradient.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        trained = [p for p in network.parameters() if p.requires_grad]
        # Nothing else gets a gradient: the loss may read parameters that are not of the copy.
        torch.autograd.backward(loss(network(inputs), labels), inputs=trained)
    step.pre_step()
    return {
        name.removeprefix("_module."): parameter.grad.detach().clone()
        for name, parameter in network.named_parameters()
        if parameter.grad is not None
    }


def spent(engine: PrivacyEngine, *, delta: float) -> float:
    """Epsilon of all steps so far; zero before the first."""
    return float(engine.get_epsilon(delta)) if len(engine.accountant) else 0.0


def _require_plain(optimizer: object) -> None:
    optimizers = import_extra("opacus.optimizers", "dp", reason="this needs Opacus")
    flat = (optimizers.DPOptimizer, optimizers.DPOptimizerFastGradientClipping)
    if type(optimizer) not in flat:
        raise NotApplicable(
            "expected an optimiser of Opacus with flat or ghost clipping, got "
            f"{type(optimizer).__name__}; the others clip by rules that no defense of Seepage "
            "describes"
        )
