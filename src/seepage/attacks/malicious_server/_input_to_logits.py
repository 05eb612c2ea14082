"""Connect the input to the logits, with weights for each example of a batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks._certificate import certify_solved
from seepage.attacks.malicious_server._planting import wrap_network
from seepage.core import ActiveAttack, BaseAttack, Observation, Reconstruction, Rng, Task
from seepage.core.errors import NotApplicable, require_at_least

_WEIGHT, _BIAS = "input_weight", "input_bias"


class InputToLogits(nn.Module):
    """A network, and linear layers from its input to its logits: one for each place of a batch.

    Examples beyond the number of places begin again at the first.
    """

    def __init__(self, network: nn.Module, examples: int, classes: int, entries: int) -> None:
        super().__init__()
        self.network = network
        self.input_weight = nn.Parameter(torch.zeros(examples, classes, entries))
        self.input_bias = nn.Parameter(torch.zeros(examples, classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """The network's logits, plus those of each example's own layer."""
        place = torch.arange(len(inputs), device=inputs.device) % len(self.input_bias)
        own = torch.einsum("bkn,bn->bk", self.input_weight[place], inputs.flatten(1))
        logits: Tensor = self.network(inputs) + own + self.input_bias[place]
        return logits


@dataclass(frozen=True, kw_only=True)
class ReadInputAtLogits(BaseAttack):
    """Plants `InputToLogits` around the network, and divides; see `input_to_logits`.

    With d the loss's gradient at the logits of the example at place i,

        dL/dA_i = d x^T,   dL/db_i = d,   x = (dL/dA_i)^T d / ||d||^2

    The scale of the update cancels. Each example's label is the one class whose logit the update
    raises.
    """

    examples: int = 1

    def __post_init__(self) -> None:
        require_at_least(1, examples=self.examples)

    def plant(self, task: Task, *, rng: Rng) -> Task:
        """Add layers of zeros; nothing is random, and the logits stay what they are."""
        classes, entries = task.classes, math.prod(task.domain.shape)
        return wrap_network(
            task,
            lambda network: InputToLogits(network, self.examples, classes, entries),
            note="with its input at the logits",
        )

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Solve for the example at every place; nothing is random."""
        task, size = observation.task, observation.batch_size
        if not isinstance(task.model, InputToLogits):
            raise NotApplicable(
                f"{task.name} does not have its input at the logits; plant it first"
            )
        if size is not None and size > self.examples:
            raise NotApplicable(
                f"expected {self.examples} examples at most, which have weights of their own, got "
                f"{size}; plant with examples={size}"
            )
        gradient = observation.update.descent().tensors
        weight, bias = gradient[_WEIGHT].double(), gradient[_BIAS].double()
        used = bias.any(1)
        if not bool(used.any()):
            raise NotApplicable("the gradient at the logits is zero, so no input can be read")
        weight, bias = weight[used], bias[used]
        length = bias.norm(dim=1)
        # Scaled first, since the squares of tiny gradients underflow.
        read = torch.einsum("bkn,bk->bn", weight / length[:, None, None], bias / length[:, None])
        inputs = task.to_inputs(read.to(gradient[_WEIGHT]))
        labels = bias.argmin(1)

        def bound(errors: Mapping[str, float]) -> float:
            off = errors[_WEIGHT] + errors[_BIAS] * read.norm(dim=1)
            return float((off / length).max())

        certificate = certify_solved(
            observation, inputs, labels, read=(_WEIGHT, _BIAS), alone=True, bound=bound
        )
        return Reconstruction(inputs, labels, certificate=certificate)


def input_to_logits(*, examples: int = 1) -> ActiveAttack:
    """Connect the input to the logits by layers of zeros, which give it away in closed form.

    The network computes what it computed before. With weights for each example of a batch, all of
    them come back at once, however many there are.

    Args:
        examples: How many examples of a batch get weights of their own, by their place in it.

    Example:
        >>> import seepage as sp
        >>> photos = sp.data.load("photos")
        >>> crowd, attack = photos.batch(16), input_to_logits(examples=16)
        >>> planted = attack.plant(sp.zoo.lenet(domain=photos.domain), rng=sp.rng(0))
        >>> cheating, client = sp.Threat(server="malicious"), sp.Client(sp.Gradient())
        >>> seen = cheating.observe(client, planted, crowd, rng=sp.rng(0))
        >>> int((sp.score(attack(seen, rng=sp.rng(1)), crowd)["psnr"] > 60).sum())
        16

    Deviations:
        The paper appends the input to the features that the last layer reads. Added to the logits
        it has the same gradient, and the network needs no last layer.

    References:
        Geiping et al., 2020, Sec. 4.3 and Proposition 1 (geiping2020inverting)
    """
    return ReadInputAtLogits(examples=examples)
