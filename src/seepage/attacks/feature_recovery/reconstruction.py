"""From features to inputs, where the head reads the input itself."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from seepage.attacks.certify import residual
from seepage.attacks.exact_batch.labels import read_labels
from seepage.attacks.feature_recovery.equations import equations
from seepage.attacks.feature_recovery.features import Features
from seepage.attacks.feature_recovery.head import TwoLayerHead, two_layer_head
from seepage.core import Certificate, Observation, Reconstruction, Rng, Task, Trace
from seepage.core.errors import NotApplicable
from seepage.core.rng import require_key


def as_reconstruction(
    recover: Callable[..., Features], observation: Observation, *, rng: Rng
) -> Reconstruction:
    """Recover, and read features as inputs; labels are those that explain everybody's share.

    Raises:
        NotApplicable: They are features of a deeper network, which are no inputs.
    """
    require_key(rng)
    began = time.perf_counter()
    task = observation.task
    head = two_layer_head(observation)
    if not head.reads_input:
        raise NotApplicable(
            f"{head.layer!r} of {task.name} reads features and not the input; use recover(...) "
            "for the features, or systematic(features=...) for the images"
        )
    features = recover(observation, rng=rng)
    gradients = _gradients(head, features.values.double())
    inputs = _inputs(task, features)
    labels = read_labels(task, head.layer, inputs, gradients, observation.labels)
    return reconstructed(observation, features, labels, began)


def reconstructed(
    observation: Observation, features: Features, labels: Tensor, began: float
) -> Reconstruction:
    """Features that are the normalised inputs, as a guess with its certificate.

    Args:
        observation: What they were recovered from.
        features: One for each person.
        labels: In their order.
        began: When, by `time.perf_counter`.
    """
    inputs = _inputs(observation.task, features)
    certificate = Certificate(residual(observation, inputs, labels))
    seconds = time.perf_counter() - began
    left = (features.residual,)
    trace = Trace(left, left, seconds=seconds, device=str(inputs.device))
    return Reconstruction(inputs, labels, trace, certificate)


def _inputs(task: Task, features: Features) -> Tensor:
    normalised = features.values.reshape(-1, *task.domain.shape)
    return task.domain.project(task.domain.denormalise(normalised))


def _gradients(head: TwoLayerHead, features: Tensor) -> Tensor:
    """What everybody sends down to the hidden layer, `(B, m)`."""
    hidden = head.hidden(features)
    shares = equations(head).shares(hidden)
    sent: Tensor = (shares @ head.above) * head.activation.derivative(hidden)
    return sent
