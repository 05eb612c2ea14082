"""Find the classifier head: the linear layer whose outputs are the logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from seepage.core import Task
from seepage.core.errors import NotApplicable
from seepage.core.rng import Rng

PROBES = 16


@dataclass(frozen=True, eq=False)
class Head:
    """The classifier head, and what it does on the adversary's own noise.

    Args:
        weight: Name of its matrix, `(K, d)`.
        bias: Name of its bias `(K,)`, or None if there is none that is trained.
        offset: What is added to the logits and not trained, `(K,)`.
        features: What it reads when the network runs on noise, `(M, d)`.
        logits: What it gives then, `(M, K)`.
    """

    weight: str
    bias: str | None
    offset: Tensor = field(repr=False)
    features: Tensor = field(repr=False)
    logits: Tensor = field(repr=False)

    def without_bias(self, task: Task) -> Head:
        """The same head with its bias as a fixed offset."""
        if self.bias is None:
            return self
        return replace(self, bias=None, offset=task.parameters[self.bias])


def classifier_head(task: Task) -> Head:
    """Return the linear layer whose outputs are what the network returns.

    Found by running noise and comparing what layers give with what the network gives, so it works
    for any module, not only for `nn.Sequential`.

    Example:
        >>> from seepage.zoo import lenet
        >>> classifier_head(lenet())
        Head(weight='head.weight', bias='head.bias')

    Raises:
        NotApplicable: There is no such layer, or its weight is not trained.
    """
    seen, logits = _probed(task)
    heads = [name for name, (_, given) in seen.items() if torch.equal(given, logits)]
    if not heads:
        raise NotApplicable(
            f"expected {task.name} to end in a linear layer, whose gradient holds the labels, got "
            "none whose outputs are the logits; use Threat(knows_labels=True)"
        )
    prefix = f"{heads[-1]}." if heads[-1] else ""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in task.parameters:
        raise NotApplicable(
            f"expected the classifier head of {task.name} to be trained, got {weight!r} frozen, so "
            "that the update does not hold it; use Threat(knows_labels=True)"
        )
    trained = bias in task.parameters
    frozen = None if trained else dict(task.model.named_parameters()).get(bias)
    offset = logits.new_zeros(logits.shape[1]) if frozen is None else frozen.detach()
    return Head(weight, bias if trained else None, offset, seen[heads[-1]][0], logits)


def _probed(task: Task) -> tuple[dict[str, tuple[Tensor, Tensor]], Tensor]:
    """Input and output of every linear layer on noise, and the output of the network."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(_: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            seen[name] = (arguments[0].detach(), output.detach())

        return hook

    linear = {n: m for n, m in task.network.named_modules() if isinstance(m, nn.Linear)}
    handles = [module.register_forward_hook(watch(name)) for name, module in linear.items()]
    noise = task.placed(task.domain.sample(PROBES, rng=Rng(0).fork("probes")))
    try:
        with torch.no_grad():
            return seen, task.outputs(task.parameters, noise)
    finally:
        for handle in handles:
            handle.remove()
