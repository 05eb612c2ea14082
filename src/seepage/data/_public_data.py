"""Inputs that anybody may have, from which an adversary learns; made up where there are none."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seepage.core import Batch, Domain, Rng, Task
from seepage.core._digest import digest
from seepage.core.errors import InvalidValue, NotApplicable, summarise_error


@dataclass(frozen=True, eq=False, repr=False)
class PublicData:
    """Public inputs of the kind that clients have, none of them private.

    Args:
        inputs: `(N, ...)`, in natural units.
        labels: `(N,)`; None draws them from what the network predicts.
        made_up: Whether nobody's inputs were at hand.
    """

    inputs: Tensor
    labels: Tensor | None = None
    made_up: bool = False

    def __post_init__(self) -> None:
        if not len(self.inputs):
            raise InvalidValue("expected at least one public input, got none")
        if self.labels is not None and len(self.labels) != len(self.inputs):
            raise InvalidValue(
                f"expected as many labels as public inputs, got {len(self.labels)} and "
                f"{len(self.inputs)}"
            )

    @cached_property
    def digest(self) -> str:
        """A hash of all of it."""
        labels = () if self.labels is None else (self.labels,)
        return digest(self.inputs, *labels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicData) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"PublicData({len(self.inputs)}, {self.digest})"

    def draw(self, size: int, task: Task, *, rng: Rng) -> Batch:
        """Draw a batch of different people, as far as there are enough."""
        order = rng.permutation(len(self.inputs))
        chosen = order.repeat(-(-size // len(order)))[:size]
        inputs = task.move_inputs(self.inputs[chosen])
        task.domain.check(inputs)
        if self.labels is None:
            return Batch(inputs, _predict_labels(task, inputs, rng.fork("labels")))
        return Batch(inputs, self.labels[chosen].to(inputs.device))


def _predict_labels(task: Task, inputs: Tensor, rng: Rng) -> Tensor:
    """Draw labels with the probabilities that the network gives them, one for each place if many.

    Targets that are numbers are what the network gives for the input before, with noise: near
    its answers, but none that fits its input.
    """
    with torch.no_grad():
        outputs = task.outputs(task.parameters, inputs)
    if task.target_shape is not None:
        noise = rng.normal((len(inputs), *task.target_shape), like=outputs)
        same_shape = outputs.shape[1:] == noise.shape[1:]
        return outputs.roll(1, 0) + noise if same_shape else noise
    likely = outputs.double().movedim(1, -1).softmax(-1).cpu()
    drawn = rng.uniform((*likely.shape[:-1], 1)).double()
    return (likely.cumsum(-1) < drawn).sum(-1).clamp(max=likely.shape[-1] - 1).to(inputs.device)


def make_up(domain: Domain, size: int, *, rng: Rng) -> PublicData:
    """Make up inputs of a domain.

    Raises:
        NotApplicable: The domain cannot be sampled.

    Example:
        >>> from seepage.domains import CIFAR10
        >>> make_up(CIFAR10, 2, rng=Rng(0)).inputs.shape
        torch.Size([2, 3, 32, 32])
    """
    try:
        inputs = domain.make_up(size, rng=rng)
    except Exception as error:
        raise NotApplicable(
            f"there is no public data, and {domain!r} cannot be sampled: {summarise_error(error)}"
        ) from error
    return PublicData(inputs, made_up=True)
