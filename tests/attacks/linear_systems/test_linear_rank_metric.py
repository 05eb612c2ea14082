"""The rank of a layer's system, counted and computed, and the metric made of it."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import seepage as sp
from seepage.attacks._jacobian import update_jacobian
from seepage.attacks.linear_systems._linear_system import LinearSystem
from seepage.core.errors import NotApplicable
from seepage.domains import Image, Signal
from seepage.exposure._rank_metric import (
    _counted_rank,
    _counts_exactly,
    _usual_rank,
    numerical_rank,
    rank_metric,
)
from seepage.probing._activations import Identity
from seepage.probing._layer_stack import Layer

# Deficiency of each layer, and c(M) as printed.
TABLE_1 = {
    "cnn2-v1": ((0,), 0),
    "cnn2-v2": ((-1470,), -1470),
    "cnn3-v1": ((0, -4533), -2266),
    "cnn3-v2": ((-1470, -1050), -1995),
    "cnn3-v3": ((0, 0), 0),
    "cnn3-v4": ((-2146, 0), -2146),
    "cnn4-v1": ((0, -3965, -386), -2772),
    "cnn4-v2": ((0, -9316, 0), -6211),
}


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def make_layer(channels, filters, sizes, kernel, stride, padding, *, seed=0):
    windows = [(size + 2 * padding - kernel) // stride + 1 for size in sizes]
    axes = len(sizes)
    return Layer(
        name="layer",
        input_shape=(channels, *sizes),
        output_shape=(filters, *windows),
        kernel=(kernel,) * axes,
        stride=(stride,) * axes,
        padding=(padding,) * axes,
        weight=noise(filters, channels, *[kernel] * axes, seed=seed),
        bias=None,
        activation=Identity(),
    )


@st.composite
def systems(draw, *, padded):
    axes, kernel, stride = draw(st.integers(0, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    padding = draw(st.integers(0, kernel - 1)) if padded else 0
    channels, filters = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    sizes = [draw(st.integers(kernel, 8)) for _ in range(axes)]
    seed = draw(st.integers(0, 99))
    layer = make_layer(channels, filters, sizes, kernel, stride, padding, seed=seed)
    return LinearSystem(layer, noise(*layer.output_shape, seed=seed + 100))


def dense_rank(system):
    """By the singular values of the matrix itself, in numpy."""
    matrix = system.apply(torch.eye(system.shape[1]).double()).T.numpy()
    return int(np.linalg.matrix_rank(matrix, tol=1e-9 * np.linalg.norm(matrix, 2)))


@settings(max_examples=60, deadline=None)
@given(systems(padded=False))
def test_the_counted_rank_is_the_rank_of_the_matrix(system):
    assume(_counts_exactly(system.layer))
    assert _counted_rank(system.layer) == dense_rank(system)


@settings(max_examples=60, deadline=None)
@given(systems(padded=True))
def test_the_counted_rank_is_never_below_the_rank_of_the_matrix(system):
    assert _counted_rank(system.layer) >= dense_rank(system)


@settings(max_examples=60, deadline=None)
@given(systems(padded=True))
def test_the_usual_rank_is_the_rank_of_the_matrix_with_padding_too(system):
    assert _usual_rank(system.layer) == dense_rank(system)


# Channels, filters, size, kernel, stride and padding, with the rank by singular values.
AT_THE_EDGE = [
    ((1, 3, (7, 6), 2, 2, 1), 39),
    ((2, 5, (5, 7), 2, 2, 1), 67),
    ((2, 6, (9, 9), 4, 3, 3), 156),
    ((3, 4, (8, 9), 4, 3, 3), 192),
    ((3, 1, (5,), 4, 2, 3), 14),
]


@pytest.mark.parametrize(("sizes", "rank"), AT_THE_EDGE, ids=str)
def test_windows_that_see_little_at_the_edge_are_not_counted_as_whole(sizes, rank):
    layer = make_layer(*sizes)
    assert rank == dense_rank(LinearSystem(layer, noise(*layer.output_shape, seed=1)))
    assert _usual_rank(layer) == rank <= _counted_rank(layer)


def test_a_rank_that_is_only_counted_is_called_an_upper_bound():
    counted, wide = rank_metric(sp.zoo.lenet()), "conv1, conv2, conv3"
    assert (counted.value, ", ".join(counted.at_most)) == (0, wide)
    assert f"the rank of {wide} is an upper bound" in counted.advice
    small = sp.zoo.lenet(domain=Image((3, 8, 8)))
    assert rank_metric(small).at_most == rank_metric(small, numerical=True).at_most == ()
    assert {f.check: f.reason for f in sp.vet(sp.zoo.lenet()).findings}["rank metric"].startswith(
        "its rank metric c(M) is at most 0, by counting"
    )


def test_equations_lost_at_the_edge_are_counted_in_layers_of_any_size():
    # 4 corners lose 3 of 6 equations each; one part of 12 determines the rest.
    assert _counted_rank(make_layer(3, 6, (32, 32), 2, 2, 1)) == 17 * 17 * 6 - 4 * 3 + 6 * 6


@settings(max_examples=25, deadline=None)
@given(systems(padded=True))
def test_the_computed_rank_is_that_of_the_singular_values(system):
    assert numerical_rank(system) == dense_rank(system)


@pytest.mark.parametrize(
    ("size", "channels", "filters", "kernel", "stride", "padding"),
    [(12, 3, 4, 3, 1, 1), (12, 3, 2, 3, 1, 1), (14, 2, 3, 5, 2, 2), (12, 4, 4, 3, 2, 1)],
)
def test_padding_as_networks_have_it_does_not_disturb_the_count(
    size, channels, filters, kernel, stride, padding
):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        conv = nn.Conv2d(channels, filters, kernel, stride=stride, padding=padding)
        width = conv(torch.zeros(1, channels, size, size)).numel()
        model = nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(width, 5))
    task = sp.Task(model, sp.cross_entropy, Image((channels, size, size)))
    assert rank_metric(task) == rank_metric(task, numerical=True)


def test_in_a_layer_that_is_not_tiny_the_count_is_outputs_and_weights_less_filters_squared():
    [layer] = rank_metric(sp.zoo.cnn(variant="cnn2-v2")).layers
    assert layer.equations == 6 * 15 * 15 + 6 * 3 * 4 * 4
    assert layer.rank == layer.equations - 6**2


def test_table_1_comes_out_by_counting():
    found = {name: rank_metric(sp.zoo.cnn(variant=name)) for name in TABLE_1}
    ours = {n: (tuple(r.deficiency for r in m.layers), round(m.value)) for n, m in found.items()}
    assert ours == TABLE_1


@pytest.mark.parametrize("variant", ["cnn2-v2", "cnn3-v2", "cnn3-v4"])
def test_table_1_comes_out_of_the_matrices(variant):
    metric = rank_metric(sp.zoo.cnn(variant=variant), numerical=True)
    assert (tuple(r.deficiency for r in metric.layers), round(metric.value)) == TABLE_1[variant]


@pytest.mark.parametrize("variant", [name for name in TABLE_1 if name != "cnn4-v2"])
def test_variants_on_small_images_have_the_same_rank_counted_and_computed(variant):
    task = sp.zoo.cnn(variant=variant, domain=Image((3, 16, 16)))
    assert rank_metric(task) == rank_metric(task, numerical=True)


@pytest.mark.parametrize("variant", ["cnn2-v2", "cnn3-v4"])
def test_what_the_first_layer_leaves_open_is_open_in_the_whole_update(variant):
    photos = sp.data.load("photos", pixels=16)
    batch = photos.batch(1)
    task = sp.zoo.cnn(variant=variant, domain=photos.domain)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    jacobian = update_jacobian(seen, batch.inputs, batch.labels)
    gram = jacobian.squared(torch.eye(jacobian.unknowns, dtype=torch.float64))
    values = torch.linalg.eigvalsh(gram)
    silent = int((values < 1e-12 * values[-1]).sum())
    assert silent == -rank_metric(task).layers[0].deficiency > 0


def test_signals_have_ranks_too():
    task = sp.zoo.single_conv(filters=1, domain=Signal((1, 140)))
    [layer] = rank_metric(task).layers
    assert (layer.unknowns, layer.equations, layer.rank) == (140, 70 + 5, 70 + 5 - 1)
    assert rank_metric(task) == rank_metric(task, numerical=True)


def test_a_network_without_convolutions_leaves_nothing_open():
    assert rank_metric(sp.zoo.mlp()).layers == ()
    assert rank_metric(sp.zoo.mlp()).value == 0


def test_a_relu_gives_fewer_equations_than_are_counted_and_is_named():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 64, 5)
    task = sp.Task(nn.Sequential(*layers), sp.cross_entropy, Image((3, 10, 10)))
    counted, computed = rank_metric(task), rank_metric(task, numerical=True)
    assert counted.forgetful == ("0",)
    assert counted.layers[0].rank > computed.layers[0].rank


def test_advice_tells_what_no_attack_can_compute_from_what_a_recursion_cannot():
    assert "can be computed" in rank_metric(sp.zoo.cnn(variant="cnn3-v3")).advice
    assert "2146 of the 3072" in rank_metric(sp.zoo.cnn(variant="cnn3-v4")).advice
    assert "matching all layers at once" in rank_metric(sp.zoo.cnn(variant="cnn4-v2")).advice


class Backwards(nn.Module):
    """A convolution behind a fully connected layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Conv1d(1, 2, 3)
        self.head = nn.Linear(28, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x.flatten(1)))
        return self.head(self.second(x[:, None]).flatten(1))


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (sp.zoo.resnet20(), "BatchNorm2d"),
        (sp.zoo.mnist_convnet(), "MaxPool2d"),
        (sp.Task(Backwards(), sp.cross_entropy, Signal((1, 16))), "before its fully connected"),
    ],
    ids=["norm", "pooling", "order"],
)
def test_what_is_outside_the_theory_is_refused_by_name(task, said):
    with pytest.raises(NotApplicable, match=said):
        rank_metric(task)
