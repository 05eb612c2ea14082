"""No bound exceeds the error of the best attack there is, on networks whose updates jump too."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.bounds import (
    BOUNDS,
    CandidateError,
    CramerRao,
    MutualInformation,
    ReconstructionRobustness,
    VanTrees,
)
from seepage.bounds._bound import EVERY_ATTACK
from seepage.bounds._candidates import _attack_candidates
from seepage.bounds._mutual_information import _bound_capacity, _remaining_error

LINE = sp.domains.Signal((1, 1))
MIDDLE = sp.Batch(torch.full((1, 1, 1), 0.5), torch.tensor([0]))
UNITS = 8


class Bumps(nn.Module):
    """Hidden units that switch at equal distances along a line."""

    def __init__(self, activation):
        super().__init__()
        self.steepness = nn.Parameter(torch.ones(UNITS))
        self.places = nn.Parameter(-(torch.arange(UNITS) + 0.31) / UNITS)
        self.activation = activation

    def forward(self, inputs):
        hidden = self.activation(self.steepness * inputs.flatten(1) + self.places)
        return hidden.sum(1, keepdim=True)


def sum_outputs(outputs, labels):
    return outputs[:, 0]


def pool_crossing(hidden):
    """The larger of two lines that cross at each unit's place."""
    pairs = torch.stack([hidden, -hidden], -1).reshape(-1, 1, 2 * UNITS, 1)
    return torch.nn.functional.max_pool2d(pairs, (2, 1)).flatten(1)


def make_task(activation):
    return sp.Task(Bumps(activation), sum_outputs, LINE, name="bumps")


def make_client(std, *links):
    return sp.Client(sp.Gradient(), sp.chain(*links, sp.AddGaussian(std)))


def find_bayes_error(client, task, std, density, draws=4000):
    """The error of the posterior mean, by numerical integration over a grid of inputs."""
    grid = torch.linspace(0, 1, 201)[:-1] + 1 / 400
    signal = torch.stack(
        [client.expected(task, x.reshape(1, 1, 1), MIDDLE.labels).flat().detach() for x in grid]
    ).double()
    prior = torch.as_tensor(density(grid.double()))
    chosen = torch.from_numpy(
        np.random.default_rng(0).choice(len(grid), draws, p=(prior / prior.sum()).numpy())
    )
    seen = signal[chosen] + std * sp.rng(1).normal((draws, signal.shape[1]), like=signal)
    logits = -torch.cdist(seen, signal).square() / (2 * std**2) + prior.log()
    guess = logits.softmax(1) @ grid.double()
    return float((guess - grid[chosen].double()).square().mean().sqrt())


def cosine(grid):
    return torch.sin(math.pi * grid).square()


def uniform(grid):
    return torch.ones_like(grid)


JUMPING = {
    "relu": (torch.relu, ()),
    "leaky_relu": (torch.nn.functional.leaky_relu, ()),
    "relu6": (torch.nn.functional.relu6, ()),
    "selu": (torch.selu, ()),
    "max_pool": (pool_crossing, ()),
    "prune": (torch.tanh, (sp.Prune(0.8),)),
    "top_k": (torch.tanh, (sp.TopK(3),)),
}
SMOOTH = {
    "sigmoid": (lambda h: torch.sigmoid(8 * h), ()),
    "elu": (torch.nn.functional.elu, ()),
    "clip": (lambda h: torch.tanh(8 * h), (sp.Clip(1.0),)),
}


@pytest.mark.parametrize("std", [0.1, 0.5])
@pytest.mark.parametrize("name", [*JUMPING, *SMOOTH])
def test_van_trees_never_exceeds_the_error_of_the_best_attack(name, std):
    activation, links = (JUMPING | SMOOTH)[name]
    task, client = make_task(activation), make_client(std, *links)
    reached = find_bayes_error(client, task, std, cosine)
    allowed = VanTrees(radius=0.5, points=60)(client, task, MIDDLE, rng=sp.rng(0))
    assert float(allowed.value) < 1.05 * reached
    assert allowed.vacuous == (name in JUMPING)


def test_few_draws_do_not_let_van_trees_exceed_the_error_of_the_best_attack():
    # The inverse of a mean over four draws would in every second case.
    def bend(hidden):
        return torch.sigmoid(3 * hidden)

    task, client = make_task(bend), make_client(0.05)
    reached = find_bayes_error(client, task, 0.05, cosine)
    allowed = [
        float(VanTrees(radius=0.5)(client, task, MIDDLE, rng=sp.rng(seed)).value)
        for seed in range(24)
    ]
    assert sum(value > 1.01 * reached for value in allowed) <= 1
    assert max(allowed) > 0.5 * reached


@pytest.mark.parametrize(
    ("name", "word"), [("relu", "ReLU"), ("max_pool", "MaxPool"), ("prune", "pruning")]
)
def test_van_trees_says_what_makes_the_update_jump(name, word):
    activation, links = JUMPING[name]
    silent = VanTrees()(make_client(0.1, *links), make_task(activation), MIDDLE, rng=sp.rng(0))
    assert word in silent.remark
    assert "MutualInformation" in silent.remark


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "gelu", "softplus"])
def test_ordinary_smooth_networks_are_not_refused(activation):
    task = sp.zoo.mlp(hidden=(4,), activation=activation, domain=sp.domains.Image((1, 4, 4)))
    batch = sp.Batch(sp.rng(0).uniform((2, 1, 4, 4)), torch.tensor([1, 2]))
    for client in (
        make_client(0.1, sp.Clip(0.1)),
        sp.Client(sp.FedAvg(lr=0.1, steps=2), sp.AddGaussian(0.1)),
        sp.Client(sp.Gradient(), sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=2)),
    ):
        assert VanTrees(points=1)(client, task, batch, rng=sp.rng(0)).remark == ""


def test_a_mask_that_does_not_depend_on_the_inputs_is_no_jump():
    def mask(hidden):
        return torch.where(torch.arange(UNITS) > 3, torch.tanh(hidden), 0.0)

    assert VanTrees()(make_client(0.1), make_task(mask), MIDDLE, rng=sp.rng(0)).remark == ""


def test_cramer_rao_refuses_inputs_at_a_kink_and_takes_those_beside_it():
    task = make_task(torch.relu)
    at_kink = sp.Batch(-task.parameters["places"].detach()[2].reshape(1, 1, 1), MIDDLE.labels)
    assert "exactly zero" in CramerRao()(make_client(0.1), task, at_kink, rng=sp.rng(0)).remark
    assert not CramerRao()(make_client(0.1), task, MIDDLE, rng=sp.rng(0)).vacuous


@pytest.mark.parametrize("std", [0.5, 5.0])
@pytest.mark.parametrize("name", [*JUMPING, *SMOOTH])
def test_mutual_information_never_exceeds_the_error_of_the_best_attack(name, std):
    activation, links = (JUMPING | SMOOTH)[name]
    task, client = make_task(activation), make_client(std, *links)
    reached = find_bayes_error(client, task, std, uniform)
    allowed = MutualInformation(radius=0.5, draws=32)(client, task, MIDDLE, rng=sp.rng(0))
    assert 0 < float(allowed.value) < 1.02 * reached
    assert EVERY_ATTACK in allowed.assumptions


@pytest.mark.parametrize("link", [sp.Sign(), sp.Quantize(4)], ids=repr)
def test_mutual_information_speaks_where_rounding_comes_before_the_noise(link):
    client, task = make_client(1.0, link), make_task(torch.tanh)
    found = MutualInformation(radius=0.5)(client, task, MIDDLE, rng=sp.rng(0))
    assert not found.vacuous
    assert 0 < float(found.value) < 12**-0.5 + 1e-9


def test_the_capacity_of_a_linear_signal_is_a_closed_form():
    # Independent normals of these variances in noise of one: half the sum of log(1 + variance).
    scales = torch.tensor([3.0, 1.0, 0.3, 0.0], dtype=torch.float64)
    exact = 0.5 * float(scales.square().log1p().sum())

    def draw_signal(purpose, number):
        return scales * sp.rng(0).fork(purpose, number).normal((4,), like=scales)

    found, doubt = _bound_capacity(draw_signal, draws=800)
    assert exact < found < 1.1 * exact
    few, _ = _bound_capacity(draw_signal, draws=8)
    assert few > exact
    assert doubt < 0.1 * exact


def test_the_remaining_error_is_below_what_a_quantiser_reaches_and_near_it():
    # Telling one of 2^b equal intervals costs b bits and leaves the variance of an interval.
    for bits in range(6):
        reached = (2.0**-bits) ** 2 / 12
        allowed = _remaining_error(bits * math.log(2), widths=torch.ones(1))
        assert reached / 1.5 < allowed <= reached * (1 + 1e-12)


def test_the_remaining_error_holds_however_unlike_the_entries_are():
    widths = torch.tensor([1.0, 0.5, 0.1])
    # Three bits spent on the widest entry.
    reached = float((widths.square() / torch.tensor([64.0, 1.0, 1.0])).mean()) / 12
    assert _remaining_error(3 * math.log(2), widths=widths) < reached


def test_two_candidates_are_told_apart_as_the_closed_form_says():
    # Signals a distance D apart: the mean of p (1 - p) over the posterior p of one of the two.
    inputs = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    for distance in (0.5, 1.0, 3.0):
        signals = torch.tensor([[0.0], [distance]], dtype=torch.float64)
        error, named = _attack_candidates(inputs, signals, draws=4000, rng=sp.rng(0))
        y = np.linspace(-10, 14, 200_001)
        first, second = (
            np.exp(-((y - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (0, distance)
        )
        exact = np.trapezoid(first * second / (first + second) / 2, y)
        assert 0.85 * exact < error**2 < 1.02 * exact
        right = np.trapezoid(np.maximum(first, second) / 2, y)
        assert named == pytest.approx(right, rel=0.02)


@pytest.fixture(scope="module")
def digits():
    return sp.data.load("digits", pixels=8)


def digits_task(digits, activation="relu"):
    return sp.zoo.mlp(hidden=(8,), activation=activation, domain=digits.domain)


def test_behind_overwhelming_noise_the_ceiling_is_a_guess_without_the_update(digits):
    batch = digits.batch(1)
    same = digits.inputs[digits.labels == batch.labels].double()
    blind = float((same - same.mean(0)).square().mean().sqrt())
    bound = CandidateError(data="digits")
    found = bound(make_client(1e6), digits_task(digits), batch, rng=sp.rng(0))
    assert float(found.value) == pytest.approx(blind, rel=1e-3)
    assert "right one of 10 candidates in 10 %" in found.assumptions[-1]
    anybody = replace(bound, same_label=False)
    found = anybody(make_client(1e6), digits_task(digits), batch, rng=sp.rng(0))
    assert "of 100 candidates in 1 %" in found.assumptions[-1]


def test_where_noise_hides_nothing_candidates_say_nothing(digits):
    silent = CandidateError(data="digits")(
        make_client(1e-6), digits_task(digits), digits.batch(1), rng=sp.rng(0)
    )
    assert "leaves all 10 candidates apart" in silent.remark


def test_candidates_of_another_shape_or_label_are_refused_in_words(digits):
    wide = sp.Batch(torch.rand(1, 1, 1), torch.tensor([0]))
    silent = CandidateError(data="digits")(
        make_client(1.0), make_task(torch.tanh), wide, rng=sp.rng(0)
    )
    assert "expected candidates of shape (1, 1)" in silent.remark
    strange = sp.Batch(digits.inputs[:1], torch.tensor([9]))
    alone = replace(strange, labels=torch.tensor([11]))
    task = sp.zoo.mlp(hidden=(8,), classes=12, domain=digits.domain)
    silent = CandidateError(data="digits")(make_client(1.0), task, alone, rng=sp.rng(0))
    assert "no other input with the label" in silent.remark


@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0])
def test_the_best_attack_on_dp_sgd_does_not_beat_reconstruction_robustness(digits, sigma):
    """The attack knows the candidates, the network and the noise, and simulates every update."""
    private = sp.dp_sgd(max_norm=1.0, noise_multiplier=sigma, batch_size=1)
    client, task, batch = sp.Client(sp.Gradient(), private), digits_task(digits), digits.batch(1)
    options = {"data": "digits", "same_label": False}
    promised = ReconstructionRobustness(**options)(client, task, batch, rng=sp.rng(0))
    reached = CandidateError(**options)(client, task, batch, rng=sp.rng(0))
    assert 0 < float(promised.value) < float(reached.value)


def test_two_candidates_under_epsilon_and_delta_are_a_closed_form(digits):
    """Half of the distance is left in 1 - e^eps / 2 - delta of the cases."""
    batch = digits.batch(1)
    bound = ReconstructionRobustness(
        data="digits", same_label=False, candidates=2, epsilon=0.3, delta=0.01
    )
    found = bound(make_client(1.0), digits_task(digits), batch, rng=sp.rng(0))
    pair = bound.draw(digits_task(digits), batch, 0, rng=sp.rng(0).fork(0))
    distance = float((pair[0] - pair[1]).square().mean().sqrt())
    exact = math.sqrt((1 - math.exp(0.3) / 2 - 0.01) * distance**2 / 4)
    assert float(found.value) == pytest.approx(exact, rel=1e-5)
    assert any("not checked" in phrase for phrase in found.assumptions)
    broken = replace(bound, epsilon=1000.0)
    assert float(broken(make_client(1.0), digits_task(digits), batch, rng=sp.rng(0)).value) == 0


def test_specs_reach_every_bound_by_name():
    assert {"CandidateError", "MutualInformation", "ReconstructionRobustness"} <= set(BOUNDS)
