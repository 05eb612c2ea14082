"""Which label each recovered feature has, read off the gradient it was recovered from."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.exact_batch.labels import one_each
from seepage.attacks.feature_recovery import Features
from seepage.attacks.systematic.above import Above
from seepage.core import Observation


def in_order_of(labels: Tensor, features: Features, observation: Observation) -> Features:
    """The same features, the i-th of which belongs to an input with the i-th label.

    The gradient dL/dW = D Z of the layer gives, with the features Z, the columns D: what each
    input sent back through the layer. The network above the layer says what an input with that
    feature and a given label would send; only directions are compared, and every label is given
    away once. Inputs of one class keep an order of their own.

    Args:
        labels: Of the batch, `(B,)`.
        features: As many as labels.
        observation: What they were recovered from.
    """
    task, gradient = observation.task, observation.update.descent().tensors
    above = Above(task, features.layer)
    values = features.values.to(next(iter(task.parameters.values())))
    if not features.scaled:
        values = values * above.length() / values.norm(dim=1, keepdim=True)
    sent = gradient[weight_of(features)].double() @ torch.linalg.pinv(values.double())
    choice = one_each(above.fits(values, labels, sent.T))
    return replace(features, values=features.values[choice])


def tells_labels(features: Features, observation: Observation) -> bool:
    """Whether the update holds the gradient of their layer; that of a frozen one it does not."""
    return weight_of(features) in observation.update.tensors


def weight_of(features: Features) -> str:
    """The name of their layer's weight."""
    # A network that is one layer has a layer without a name.
    return f"{features.layer}.weight" if features.layer else "weight"
