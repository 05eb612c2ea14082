"""Read the gradient at the logits off the last layer instead of simulating it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import vjp

from seepage.clients._gradient import Gradient
from seepage.core import AttackWrapper, Observation, Prepared, Rng, Task
from seepage.core._chain import chain
from seepage.core.errors import NotApplicable
from seepage.probing._heads import PROBES, classifier_head


@dataclass(frozen=True)
class ReadLogits(AttackWrapper):
    """Search with the gradient at the logits given, where the update of one example shows it.

    The gradient of the last layer's bias is the gradient d of the loss at the logits z. The search
    then simulates

        g(x) = (dz(x)/dtheta)^T d,   d = dL/db,   instead of   (dz(x)/dtheta)^T (p(x) - e_y)

    At the truth both give the observed update. On a confident network p - e_y is tiny, its
    direction changes with every step of a search, and float32 rounds the part of the true class to
    zero. So a search that simulates p - e_y fails on images that can still be found given d.

    Batches and local steps are attacked as they are. So are networks whose last layer has no bias,
    or one that is used elsewhere too, and updates behind a defense that the threat reveals
    (`knows_defense`). Behind a hidden defense the defended bias is taken for the gradient at the
    logits.

    Args:
        attack: What searches.

    Example:
        >>> import seepage as sp
        >>> photo, task = sp.data.bundled("photos", size=1), sp.zoo.lenet()
        >>> seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, photo, rng=sp.rng(0))
        >>> search = sp.attacks.inverting_gradients(steps=2, restarts=1)
        >>> guess = ReadLogits(search)(seen, rng=sp.rng(1))
        >>> bool(guess.labels == photo.labels)
        True

    References:
        Geiping et al., 2020, Sec. 5.1 (geiping2020inverting) on the small gradients of trained
        networks; Zhao et al., 2020 (zhao2020idlg) on the last layer
    """

    # Of one example the gradient at the logits tells the label.
    needs_labels = False

    def prepare(self, seen: Observation, rng: Rng) -> Prepared:
        """Read the gradient at the logits off the update where it is shown."""
        given = _read_logits(seen)
        if given is None:
            return Prepared(seen)
        return Prepared(
            given, lambda guess: replace(guess, labels=_label(given, seen)), kind="logits are read"
        )


def inner_product(logits: Tensor, direction: Tensor) -> Tensor:
    """The loss <d, z>, `(B,)`, whose gradient at the logits is d."""
    return (logits * direction).sum(-1)


def _read_logits(observation: Observation) -> Observation | None:
    """The observation with d in place of its labels; None where the update does not show d."""
    task, client = observation.task, observation.simulate.client
    if observation.batch_size != 1 or observation.mixing is not None or client is None:
        return None
    undefended = isinstance(client.local, Gradient) and client.chain == chain()
    if observation.update.kind != "gradient" or not undefended:
        return None
    try:
        bias = classifier_head(task).bias
    except NotApplicable:
        return None
    if bias is None or not _only_added(task, bias):
        return None
    largest = observation.update.tensors[bias].abs().max()
    if not largest > 0:
        return None
    # Near one, so that no power of a tiny norm underflows.
    update = observation.update.map(lambda tensor: tensor / largest)
    task = replace(task, loss=inner_product)
    return replace(
        observation,
        task=task,
        update=update,
        simulate=observation.simulate.with_task(task),
        labels=update.tensors[bias].unsqueeze(0),
    )


def _only_added(task: Task, bias: str) -> bool:
    """Whether the bias is only added to the logits: (dz/db)^T d = sum_i d_i on noise.

    The bias of a layer that runs more than once, or shares it, gets gradient from elsewhere too.
    """
    key = Rng(0).fork("probes")
    noise = task.move_inputs(task.domain.sample(PROBES, rng=key))

    def logits(at: Tensor) -> Tensor:
        return task.outputs({**task.parameters, bias: at}, noise)

    given, pulled, *_ = vjp(logits, task.parameters[bias])
    direction = key.fork("direction").normal(tuple(given.shape), like=given)
    (found,) = pulled(direction)
    rounding = 100 * torch.finfo(found.dtype).eps
    return torch.allclose(found, direction.sum(0), rtol=rounding, atol=rounding)


def _label(given: Observation, observation: Observation) -> Tensor | None:
    """The known label, or the class with a negative gradient if rounding left one."""
    if observation.labels is not None:
        return observation.labels
    if observation.task.target_shape is not None:
        return None
    assert given.labels is not None
    return given.labels.argmin(1) if given.labels.min() < 0 else None
