"""A network is read as a stack by what it computes, and refused by name where it is none."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import seepage as sp
from seepage.core.errors import NotApplicable
from seepage.domains import Image, Signal
from seepage.probing._activations import Identity, LeakyReLU, ReLU, Sigmoid, Tanh
from seepage.probing._layer_stack import read_stack
from seepage.zoo._convnets import CNN_VARIANTS

SMALL = Image((3, 8, 8), mean=(0.5, 0.5, 0.5))


def task_of(*modules, domain=SMALL):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sp.Task(nn.Sequential(*modules), sp.cross_entropy, domain, name="mine")


@pytest.mark.parametrize("variant", CNN_VARIANTS)
def test_every_variant_is_read_with_the_geometry_of_table_1(variant):
    *convolutions, head = read_stack(sp.zoo.cnn(variant=variant)).layers
    geometry = [(c.kernel[0], c.channels, c.stride[0], c.padding[0]) for c in convolutions]
    assert tuple(geometry) == CNN_VARIANTS[variant]
    assert all(c.activation == Tanh() and c.bias is None for c in convolutions)
    assert head.activation == Identity()
    assert head.bias is not None
    assert head.inputs == convolutions[-1].outputs


class Functional(nn.Module):
    """Layers declared out of order, activations that are no modules, working in place."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2 * 7, 3, bias=False)
        self.second = nn.Conv1d(4, 2, 3, padding="same")
        self.first = nn.Conv1d(1, 4, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.leaky_relu_(self.first(x), 0.3)
        x = torch.sigmoid(self.second(x))
        return self.head(x.reshape(len(x), -1))


def test_any_module_will_do_and_the_stack_computes_what_it_computes():
    domain = Signal((1, 14), bounds=(-2.0, 2.0))
    task = sp.Task(Functional(), sp.cross_entropy, domain)
    stack = read_stack(task)
    assert [layer.name for layer in stack.layers] == ["first", "second", "head"]
    first, second, _ = stack.layers
    assert isinstance(first.activation, LeakyReLU)
    assert first.activation.slope == pytest.approx(0.3)
    assert second.activation == Sigmoid()
    assert second.padding == (1,)
    inputs = domain.sample(3, rng=sp.rng(7))
    expected = task.outputs(task.parameters, inputs)
    torch.testing.assert_close(stack(inputs.double()).float(), expected)


def test_fully_connected_relu_networks_are_read_too():
    stack = read_stack(sp.zoo.mlp(hidden=(16, 8)))
    assert [layer.output_shape for layer in stack.layers] == [(16,), (8,), (10,)]
    assert stack.layers[0].activation == ReLU()
    assert not any(layer.convolutional for layer in stack.layers)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(192, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((x + torch.tanh(self.conv(x))).flatten(1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(192, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(self.conv(x)).flatten(1))


class Recurrent(nn.Module):
    """An innermost module that gives more than one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(24, 4, batch_first=True)
        self.head = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(x.transpose(1, 2).flatten(2))
        return self.head(states.flatten(1))


class Keyword(nn.Module):
    """A layer whose input cannot be seen among its positional arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(192, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(input=x.flatten(1))


class Switching(nn.Module):
    """Tanh on the inputs of the probe, something else on others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(192, 4)
        self.head = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        z = self.first(x.flatten(1))
        return self.head(torch.tanh(z) if self.calls == 1 else torch.relu(z))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_pooling_normalisation_and_strange_activations_are_refused_by_name():
    conv, flat = nn.Conv2d(3, 4, 3), nn.Flatten()
    cases = {
        "MaxPool2d '2'": (conv, nn.Tanh(), nn.MaxPool2d(2), flat, nn.Linear(36, 3)),
        "AvgPool2d '1'": (conv, nn.AvgPool2d(2), flat, nn.Linear(36, 3)),
        "BatchNorm2d '1'": (conv, nn.BatchNorm2d(4), nn.Tanh(), flat, nn.Linear(144, 3)),
        "GELU '1'": (conv, nn.GELU(), flat, nn.Linear(144, 3)),
        "LogSoftmax '2'": (flat, nn.Linear(192, 3), nn.LogSoftmax(1)),
        "ConvTranspose2d '0'": (nn.ConvTranspose2d(3, 1, 3), flat, nn.Linear(100, 3)),
        "one group": (nn.Conv2d(3, 3, 3, groups=3), flat, nn.Linear(108, 3)),
        "dilation 1": (nn.Conv2d(3, 3, 3, dilation=2), flat, nn.Linear(48, 3)),
        "zero padding": (
            nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"),
            flat,
            nn.Linear(192, 3),
        ),
        "pads one side": (nn.Conv2d(3, 3, 2, padding="same"), flat, nn.Linear(192, 3)),
        "several positions": (nn.Linear(8, 8), flat, nn.Linear(192, 3)),
    }
    for said, modules in cases.items():
        with pytest.raises(NotApplicable, match=said) as refused:
            read_stack(task_of(*modules))
        assert "inverting_gradients" in str(refused.value)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Residual, "outside any module, such as a residual addition"),
        (Recurrent, "before 'head' of mine, got LSTM 'lstm'"),
        (Keyword, "before 'head' of mine"),
        (Twice, "'conv' of mine runs more than once"),
        (Switching, "something else on some inputs"),
    ],
)
def test_what_is_no_chain_is_refused(model, said):
    with pytest.raises(NotApplicable, match=said):
        read_stack(sp.Task(model(), sp.cross_entropy, SMALL, name="mine"))


def test_a_frozen_layer_is_refused():
    frozen = nn.Conv2d(3, 4, 3).requires_grad_(False)
    with pytest.raises(NotApplicable, match="'0' of mine is frozen"):
        read_stack(task_of(frozen, nn.Tanh(), nn.Flatten(), nn.Linear(144, 3)))


@pytest.mark.parametrize("alpha", [Identity(), Tanh(), Sigmoid(), LeakyReLU(0.2), ReLU()], ids=repr)
def test_inverse_and_derivative_are_those_of_the_activation(alpha):
    z = torch.linspace(-2, 2, 50, dtype=torch.float64).requires_grad_()
    x = alpha(z)
    (slope,) = torch.autograd.grad(x.sum(), z)
    torch.testing.assert_close(alpha.derivative(z.detach()), slope)
    known = alpha.known(x.detach())
    assert bool(known.all()) == (alpha != ReLU())
    torch.testing.assert_close(alpha.inverse(x.detach())[known], z.detach()[known])


@pytest.mark.parametrize("alpha", [Tanh(), Sigmoid()], ids=repr)
def test_what_an_activation_never_gives_has_a_finite_inverse(alpha):
    assert bool(alpha.inverse(torch.tensor([-3.0, 0.0, 1.0, 7.0])).isfinite().all())
