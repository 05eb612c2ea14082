"""Which label each recovered feature has, read off the gradient it was recovered from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.exact_batch.labels import one_each
from seepage.attacks.feature_recovery import Features
from seepage.attacks.gradient_matching.features import features_at
from seepage.core import Observation, Rng, Task

_PROBES = 8


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
    above = _Above(task, features.layer)
    values = features.values.to(next(iter(task.parameters.values())))
    if not features.scaled:
        values = values * above.length() / values.norm(dim=1, keepdim=True)
    # A network that is one layer has a layer without a name.
    weight = gradient[f"{features.layer}.weight" if features.layer else "weight"]
    sent = weight.double() @ torch.linalg.pinv(values.double())
    choice = one_each(above.fits(values, labels, sent.T))
    return replace(features, values=features.values[choice])


@dataclass(frozen=True, eq=False)
class _Above:
    """The network from one layer on."""

    task: Task
    layer: str

    def length(self) -> Tensor:
        """The usual length of what the layer reads, on the adversary's own noise."""
        reference = next(iter(self.task.parameters.values()))
        noise = self.task.domain.sample(_PROBES, rng=Rng(0)).to(reference)
        lengths: Tensor = features_at(self.task, self.layer, noise).detach().norm(dim=1)
        return lengths.median()

    def fits(self, values: Tensor, labels: Tensor, sent: Tensor) -> Tensor:
        """Cosines `(B, B)` between what input i with feature j would send, and what j sent."""
        outputs, z = self._run(values)
        cosines = []
        for label in labels:
            loss = self.task.loss(outputs, label.expand(len(values), *label.shape)).sum()
            (back,) = torch.autograd.grad(loss, z, retain_graph=True)
            cosines.append(torch.cosine_similarity(back.double(), sent, dim=1))
        return torch.stack(cosines)

    def _run(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The logits with these features at the layer, and what the layer returns."""
        returned: list[Tensor] = []
        read = values.detach().clone().requires_grad_()

        def put(_: nn.Module, __: tuple[Tensor, ...]) -> tuple[Tensor]:
            return (read,)

        def keep(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
            returned.append(output)
            # A copy goes on, lest a ReLU in place overwrite what was returned.
            return output.clone()

        # Any inputs will do, for what the layer reads of them is replaced.
        blank = values.new_zeros((len(values), *self.task.domain.shape))
        layer = self.task.network.get_submodule(self.layer)
        handles = layer.register_forward_pre_hook(put), layer.register_forward_hook(keep)
        try:
            return self.task.outputs(self.task.parameters, blank), returned[0]
        finally:
            for handle in handles:
                handle.remove()
