"""The network above a layer: what inputs with given features there send back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.gradient_matching.features import features_at
from seepage.core import Rng, Task

_PROBES = 8


@dataclass(frozen=True, eq=False)
class Above:
    """The network from one layer on.

    Args:
        task: The whole network.
        layer: Name of a layer that runs once, as `named_modules` spells it.
    """

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
        outputs, _, z = self._run(values)
        cosines = []
        for label in labels:
            loss = self.task.loss(outputs, label.expand(len(values), *label.shape)).sum()
            (back,) = torch.autograd.grad(loss, z, retain_graph=True)
            cosines.append(torch.cosine_similarity(back.double(), sent, dim=1))
        return torch.stack(cosines)

    def slopes(self, values: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the sum of the losses by the features, `(B, d)`."""
        outputs, read, _ = self._run(values)
        (back,) = torch.autograd.grad(self.task.loss(outputs, labels).sum(), read)
        return back

    def share(self, values: Tensor, labels: Tensor) -> Tensor:
        """The gradient of the sum of the losses by the layer's weight."""
        outputs, read, returned = self._run(values)
        (back,) = torch.autograd.grad(self.task.loss(outputs, labels).sum(), returned)
        return back.T @ read.detach()

    def _run(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits with these features at the layer; what it reads, and what it returns."""
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
            return self.task.outputs(self.task.parameters, blank), read, returned[0]
        finally:
            for handle in handles:
                handle.remove()
