"""The module that writes single inputs into single rows of a gradient."""

from __future__ import annotations

from torch import Tensor, nn

from seepage.core import Task
from seepage.core.errors import NotApplicable


class Imprint(nn.Module):
    """A detour of the input through bins, before a network.

        f(x + c sum_k a(<w, x> / s_k + b_k))

    All rows of `bins` measure the same functional of the input, and all columns of `decoder` are
    the same vector c. So the gradient at bin k of an input is s(x) where the bin is open to it and
    zero elsewhere, with s(x) = <dL/dx', c> the same for all bins; and c is so short that the
    network behind computes what it computed before.

    Args:
        bins: n inputs to K bins.
        activation: What opens a bin.
        decoder: K bins to n inputs, without a bias.
        network: What was being trained.
    """

    def __init__(
        self, bins: nn.Linear, activation: nn.Module, decoder: nn.Linear, network: nn.Module
    ) -> None:
        """Put the parts together."""
        super().__init__()
        self.bins = bins
        self.activation = activation
        self.decoder = decoder
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        """Return what the network makes of the input and its detour."""
        detour = self.decoder(self.activation(self.bins(inputs.flatten(1))))
        logits: Tensor = self.network(inputs + detour.reshape(inputs.shape))
        return logits


def bins_of(task: Task) -> str:
    """The name of the layer of bins in a network with an imprint."""
    found = [name for name, module in task.model.named_modules() if isinstance(module, Imprint)]
    if not found:
        raise NotApplicable(
            f"expected an update of a network with an imprint, got one of {task.name}; broadcast "
            "attack.plant(task, rng=...) under Threat(server='malicious')"
        )
    return f"{found[0]}.bins" if found[0] else "bins"


def planted(task: Task) -> tuple[Tensor, Tensor]:
    """Weight and bias of the bins, as they were broadcast, in double precision."""
    name = bins_of(task)
    return task.parameters[f"{name}.weight"].double(), task.parameters[f"{name}.bias"].double()
