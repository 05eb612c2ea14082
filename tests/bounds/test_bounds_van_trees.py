"""A bound for biased attacks: closed forms, and the best guess there is."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.bounds import CramerRao, VanTrees
from seepage.bounds._bound import find_intervals
from seepage.bounds._cramer_rao import _draw_cosines
from seepage.core.errors import InvalidValue

LINE = sp.domains.Signal((1, 4))
MIDDLE = sp.Batch(torch.full((2, 1, 4), 0.5), torch.tensor([0, 0]))


class Weighted(nn.Module):
    """One number per entry and person; its gradient in the weights is the input itself."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def forward(self, inputs):
        return inputs.flatten(1).mul(self.weight).sum(1, keepdim=True)


def summed(outputs, labels):
    return outputs[:, 0]


def sharer(std):
    return sp.Client(sp.Gradient(reduction="sum"), sp.AddGaussian(std))


@pytest.fixture(scope="module")
def linear():
    return sp.Task(Weighted(), summed, LINE, name="weighted")


def test_the_prior_has_the_information_it_is_said_to_have():
    half = 0.3
    t = np.linspace(-half, half, 400_001)[1:-1]
    density = np.cos(np.pi * t / (2 * half)) ** 2 / half
    assert np.trapezoid(density, t) == pytest.approx(1, abs=1e-4)
    slope = np.gradient(density, t)
    assert np.trapezoid(slope**2 / density, t) == pytest.approx((np.pi / half) ** 2, rel=1e-3)


def test_draws_follow_the_prior():
    drawn = _draw_cosines(torch.full((40_000,), 0.3, dtype=torch.float64), rng=sp.rng(0)) / 0.3
    expected = 1 / 3 - 2 / math.pi**2
    assert float(drawn.abs().max()) < 1
    assert float(drawn.mean()) == pytest.approx(0, abs=0.01)
    assert float(drawn.square().mean()) == pytest.approx(expected, rel=0.02)


def test_intervals_stay_within_the_domain():
    inputs = torch.tensor([0.0, 0.1, 0.5, 1.0])
    centre, half = find_intervals(inputs, (0.0, 1.0), 0.25)
    assert bool((centre - half >= 0).all())
    assert bool((centre + half <= 1).all())
    assert bool(((inputs - centre).abs() <= half + 1e-6).all())


@pytest.mark.parametrize("std", [0.01, 0.1, 1.0])
def test_for_one_person_and_a_linear_update_it_is_a_closed_form(linear, std):
    one = sp.Batch(MIDDLE.inputs[:1], MIDDLE.labels[:1])
    found = VanTrees(radius=0.5)(sharer(std), linear, one, rng=sp.rng(0)).value
    assert float(found) == pytest.approx((std**-2 + 4 * math.pi**2) ** -0.5, rel=1e-6)


def test_people_whose_sum_alone_is_seen_are_bounded_where_no_unbiased_attack_exists(linear):
    std, prior = 0.05, (math.pi / 0.25) ** 2
    assert "no unbiased attack" in CramerRao()(sharer(std), linear, MIDDLE, rng=sp.rng(0)).remark
    matrix = np.full((2, 2), std**-2) + prior * np.eye(2)
    found = VanTrees()(sharer(std), linear, MIDDLE, rng=sp.rng(0)).value
    assert np.allclose(found, np.sqrt(np.diag(np.linalg.inv(matrix))), rtol=1e-6)


@pytest.mark.parametrize("std", [0.05, 0.2, 1.0])
def test_the_mean_of_the_posterior_does_not_beat_it(linear, std):
    """The best guess there is under the prior, by numerical integration, for one entry."""
    half, rng = 0.25, np.random.default_rng(0)
    grid = np.linspace(-half, half, 801)
    prior = np.cos(np.pi * grid / (2 * half)) ** 2
    truth = _draw_cosines(torch.full((4_000,), half, dtype=torch.float64), rng=sp.rng(0)).numpy()
    seen = truth + std * rng.normal(size=truth.shape)
    likelihood = np.exp(-((seen[:, None] - grid) ** 2) / (2 * std**2)) * prior
    guess = (likelihood @ grid) / likelihood.sum(1)
    reached = math.sqrt(((guess - truth) ** 2).mean())
    one = sp.Batch(MIDDLE.inputs[:1], MIDDLE.labels[:1])
    allowed = float(VanTrees()(sharer(std), linear, one, rng=sp.rng(0)).value)
    assert allowed < reached * 1.02
    assert reached < 1.2 * allowed


def test_it_never_exceeds_the_bound_on_unbiased_attacks_of_a_linear_update(linear):
    one = sp.Batch(MIDDLE.inputs[:1], MIDDLE.labels[:1])
    for std in (0.01, 1.0):
        pair = [b()(sharer(std), linear, one, rng=sp.rng(0)).value for b in (VanTrees, CramerRao)]
        assert float(pair[0]) < float(pair[1])


def test_without_noise_it_says_so(linear):
    silent = VanTrees()(sp.Client(sp.Gradient()), linear, MIDDLE, rng=sp.rng(0))
    assert "sigma = 0" in silent.remark


def test_a_radius_of_nothing_is_refused():
    with pytest.raises(InvalidValue, match=r"radius in \(0, 1\], got 0"):
        VanTrees(radius=0.0)
    with pytest.raises(InvalidValue, match="points >= 1"):
        VanTrees(points=0)
