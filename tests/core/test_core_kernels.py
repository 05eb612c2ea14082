"""Networks with attention and recurrent layers can be attacked as they are."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import seepage as sp
from seepage.core._device import differentiable_twice, plain_convolutions


class Attention(nn.Module):
    """Fused attention, as torch offers it, and a head."""

    def __init__(self):
        super().__init__()
        self.read = nn.Linear(4, 12)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs):
        query, key, value = self.read(inputs).chunk(3, -1)
        return self.head(functional.scaled_dot_product_attention(query, key, value).mean(1))


class Recurrent(nn.Module):
    """A recurrent layer and a head."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.head(self.layer(inputs)[0][:, -1])


@pytest.mark.parametrize("network", [Attention, Recurrent])
def test_the_update_is_differentiated_twice_and_agrees_with_finite_differences(network):
    task = sp.Task(network(), sp.cross_entropy, sp.domains.Signal((6, 4))).to(dtype=torch.float64)
    inputs = torch.rand(2, 6, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 2])
    weights = torch.randn_like(sp.Gradient()(task, inputs.detach(), labels).flat())

    def through(x):
        return sp.Gradient()(task, x, labels).flat() @ weights

    assert torch.autograd.gradcheck(through, (inputs,))


def test_the_kernels_are_put_back_even_after_an_error():
    before = torch.backends.cuda.flash_sdp_enabled()

    def broken():
        with differentiable_twice(recurrent=True):
            assert not torch.backends.cuda.flash_sdp_enabled()
            assert not torch.backends.cudnn.enabled
            raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        broken()
    assert torch.backends.cuda.flash_sdp_enabled() == before
    assert torch.backends.cudnn.enabled


@pytest.mark.parametrize(("machine", "kept"), [("x86_64", True), ("aarch64", False)])
def test_only_arm_does_without_onednn_and_only_inside_the_block(machine, kept, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    before = torch._C._get_mkldnn_enabled()
    with plain_convolutions():
        assert torch._C._get_mkldnn_enabled() == (before and kept)
    assert torch._C._get_mkldnn_enabled() == before
