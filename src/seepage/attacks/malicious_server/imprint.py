"""The module that writes single inputs into single rows of a gradient."""

from __future__ import annotations

from torch import Tensor, nn


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
