"""Bounds from differential privacy, each against a closed form or another way to compute it."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

import seepage as sp
from seepage.bounds._bound import SEEN_WITH
from seepage.bounds.dp import (
    RenyiError,
    expected_error,
    gaussian_blow_up,
    gaussian_renyi_robustness,
    prior_success,
    renyi_rmse,
    renyi_robustness,
    required_noise,
    subsampled_blow_up,
)
from seepage.core.errors import InvalidValue
from seepage.defenses._clip import gaussian_epsilon


def by_integration(kappa, mu):
    """P(E) for the likeliest event of Q-probability kappa, both densities integrated."""
    threshold = optimize.brentq(
        lambda t: integrate.quad(stats.norm.pdf, t, np.inf)[0] - kappa, -12, 12, xtol=1e-12
    )
    return integrate.quad(lambda x: stats.norm.pdf(x - mu), threshold, np.inf)[0]


# Hayes et al., 2023: the blow-up of two Gaussians, here with their densities integrated.
@pytest.mark.parametrize(
    ("kappa", "sigma", "steps"),
    [(0.5, 1.0, 1), (0.1, 1.0, 1), (0.1, 2.0, 9), (1e-3, 0.5, 1), (1e-4, 10.0, 100)],
)
def test_the_gaussian_blow_up_is_the_integral_over_the_likeliest_event(kappa, sigma, steps):
    found = gaussian_blow_up(kappa, noise_multiplier=sigma, steps=steps)
    assert found == pytest.approx(by_integration(kappa, math.sqrt(steps) / sigma), rel=1e-6)


# Balle et al., 2022: at epsilon = 0 nobody does better than the prior, 1 in N.
@pytest.mark.parametrize("candidates", [2, 8, 100])
def test_without_information_an_attack_picks_one_of_n(candidates):
    kappa = 1 / candidates
    assert gaussian_blow_up(kappa, noise_multiplier=1e9) == pytest.approx(kappa, rel=1e-6)
    # Order infinity of Rényi DP is pure DP, whose bound is kappa e^eps.
    assert renyi_robustness(kappa, order=1e9, divergence=0.0) == pytest.approx(kappa, rel=1e-6)


# The blow-up is the trade-off curve of delta(eps): min over eps of e^eps kappa + delta(eps).
@pytest.mark.parametrize("kappa", [0.3, 0.01])
def test_the_blow_up_is_what_the_exact_delta_of_the_gaussian_allows(kappa):
    def delta(eps, mu):
        return stats.norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * stats.norm.cdf(
            -mu / 2 - eps / mu
        )

    mu = math.sqrt(3) / 1.5
    least = optimize.minimize_scalar(
        lambda eps: math.exp(eps) * kappa + delta(eps, mu), bounds=(-10, 10), method="bounded"
    ).fun
    found = gaussian_blow_up(kappa, noise_multiplier=1.5, steps=3)
    assert found == pytest.approx(least, rel=1e-5)


def test_the_best_order_is_what_a_search_over_orders_finds():
    kappa, sigma, steps = 1e-3, 1.5, 4
    rho = steps / (2 * sigma**2)
    orders = 1 + np.logspace(-3, 3, 20_000)
    least = min(renyi_robustness(kappa, order=a, divergence=a * rho) for a in orders)
    found = gaussian_renyi_robustness(kappa, noise_multiplier=sigma, steps=steps)
    assert found == pytest.approx(least, rel=1e-5)


def test_the_blow_up_is_never_worse_than_the_bound_by_divergences():
    for kappa in (0.5, 0.1, 1e-3, 1e-8):
        for sigma in (0.3, 1.0, 5.0):
            assert gaussian_blow_up(kappa, noise_multiplier=sigma) <= gaussian_renyi_robustness(
                kappa, noise_multiplier=sigma
            )


def test_sampling_agrees_with_the_closed_form_where_everybody_takes_part():
    found = subsampled_blow_up(
        1e-6, noise_multiplier=1.0, sample_rate=1.0, steps=9, rng=sp.rng(0), samples=50_000
    )
    exact = gaussian_blow_up(1e-6, noise_multiplier=1.0, steps=9)
    assert found.value == pytest.approx(exact, abs=4 * found.error)
    assert found.error < 0.02


def test_sampling_agrees_with_the_closed_form_of_one_random_step():
    # One number is seen and its likelihood ratio is monotone, so the event is a half-line.
    kappa, sigma, rate = 0.05, 0.7, 0.3
    found = subsampled_blow_up(
        kappa, noise_multiplier=sigma, sample_rate=rate, rng=sp.rng(0), samples=200_000
    )
    exact = (1 - rate) * kappa + rate * gaussian_blow_up(kappa, noise_multiplier=sigma)
    assert found.value == pytest.approx(exact, abs=4 * found.error)


def test_sampling_agrees_with_what_opacus_says_of_many_random_steps():
    opacus = pytest.importorskip("opacus", reason="the DP extra is not installed")
    kappa, sigma, rate, steps = 0.1, 1.0, 0.2, 10
    accountant = opacus.accountants.PRVAccountant()
    accountant.history = [(sigma, rate, steps)]
    curve = [(accountant.get_epsilon(delta), delta) for delta in (0.03, 0.06, 0.1, 0.15)]
    # Both ways to be neighbours are in the accountant's epsilon, so it is no lower.
    allowed = min(math.exp(eps) * kappa + delta for eps, delta in curve)
    found = subsampled_blow_up(
        kappa, noise_multiplier=sigma, sample_rate=rate, steps=steps, rng=sp.rng(0)
    )
    assert found.value <= allowed + 4 * found.error
    assert found.value == pytest.approx(allowed, rel=0.05)


def test_fewer_take_part_less_comes_back():
    values = [
        subsampled_blow_up(0.1, noise_multiplier=1.0, sample_rate=q, steps=10, rng=sp.rng(0)).value
        for q in (0.05, 0.3, 1.0)
    ]
    assert values == sorted(values)


def test_candidates_far_apart_leave_one_in_n_and_near_ones_count_together():
    apart = torch.eye(6)
    assert prior_success(apart, radius=0.2) == pytest.approx(1 / 6)
    pairs = torch.cat([apart, apart + 1e-3])
    assert prior_success(pairs, radius=0.01) == pytest.approx(1 / 6)


def test_the_best_attack_on_a_prior_errs_by_more_than_the_bound():
    # Points whose clipped gradient is a corner of the cube; the best guess is the posterior mean.
    sigma, people = 1.5, torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    bound = expected_error(people, noise_multiplier=sigma)
    truth = sp.rng(0).uniform((20_000,)).round().double()
    # Clipping norm 1: without the person nothing, with one of them minus one or one.
    seen = (2 * truth - 1) + sigma * sp.rng(1).normal((20_000,)).double()
    mean = torch.sigmoid(2 * seen / sigma**2)
    median = (seen > 0).double()
    assert bound > 0
    for guess in (mean, median):
        assert float((guess - truth).abs().mean()) > bound


# Guo et al., 2022: the unbiased bound by Hammersley, Chapman and Robbins; its inequality is tight
# for the two points it compares, which a search over the step confirms.
@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0, 8.0, 100.0])
def test_the_renyi_error_is_the_chapman_robbins_bound_of_the_worst_exchange(sigma):
    def pdf(x, mean):
        return stats.norm.pdf(x, mean, sigma)

    chi_squared = (
        integrate.quad(
            lambda x: pdf(x, 2.0) ** 2 / pdf(x, 0.0), 4 - 12 * sigma, 4 + 12 * sigma, epsabs=1e-13
        )[0]
        - 1
    )
    expected = math.sqrt(0.5**2 / chi_squared)
    assert renyi_rmse(noise_multiplier=sigma) == pytest.approx(expected, rel=1e-4)


def test_no_noise_no_promise_and_tiny_noise_no_overflow():
    assert renyi_rmse(noise_multiplier=0.0) == 0.0
    assert renyi_rmse(noise_multiplier=1e-3) == 0.0
    assert 0 < renyi_rmse(noise_multiplier=0.1) < 1e-80


def test_the_renyi_error_reads_dp_sgd_off_a_client(photos, mlp):
    client = sp.Client(
        sp.Gradient(), sp.dp_sgd(max_norm=3.0, noise_multiplier=2.0, batch_size=len(photos))
    )
    found = RenyiError()(client, mlp, photos, rng=sp.rng(0))
    assert found.value.tolist() == pytest.approx([renyi_rmse(noise_multiplier=2.0)] * len(photos))
    assert not found.vacuous


@pytest.mark.parametrize(
    "defense",
    [sp.chain(), sp.AddGaussian(0.1), sp.chain(sp.ClipEach(1.0), sp.Mean(), sp.AddGaussian(0.1))],
    ids=repr,
)
def test_what_is_not_dp_sgd_gets_a_remark(photos, mlp, defense):
    found = RenyiError()(sp.Client(sp.Gradient(), defense), mlp, photos, rng=sp.rng(0))
    assert found.vacuous
    assert "DP-SGD alone" in found.remark
    assert not found.value.any()


# Liu et al., 2024, Proposition A.1: the noise it asks for keeps the promise, by the exact account.
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (5.0, 1e-3), (20.0, 0.1)])
def test_the_required_noise_keeps_the_promise_and_solves_the_papers_equation(epsilon, delta):
    sensitivity = 0.7
    std = required_noise(sensitivity=sensitivity, epsilon=epsilon, delta=delta)
    share = std**2 / sensitivity**2
    printed = math.exp(-1 / (2 * share) * (share * epsilon - 0.5) ** 2)
    assert printed == pytest.approx(delta, rel=1e-9)
    assert gaussian_epsilon(noise_multiplier=std / sensitivity, delta=delta) <= epsilon


@pytest.fixture
def photos():
    return sp.data.bundled("photos", size=2)


@pytest.fixture
def mlp():
    return sp.zoo.mlp(hidden=(16,))


def dense(client, task, batch, person):
    """The Jacobian by central differences in the inputs, column by column."""
    exact = task.to(dtype=torch.float64)
    inputs = batch.inputs.double()

    def update(x):
        rows = inputs.clone()
        rows[person] = x
        return client.expected(exact, rows, batch.labels).flat()

    columns = []
    for index in range(inputs[0].numel()):
        step = torch.zeros(inputs[0].numel(), dtype=torch.float64)
        step[index] = 1e-5
        step = step.reshape(inputs[0].shape)
        columns.append((update(inputs[person] + step) - update(inputs[person] - step)) / 2e-5)
    return torch.stack(columns, 1)


def small(size):
    """Real photographs of 8 pixels a side, and a network for them."""
    return sp.data.bundled("photos", size=size, pixels=8), sp.zoo.lenet(
        domain=sp.domains.Image((3, 8, 8))
    )


def test_fisher_information_leakage_is_the_relaxed_bound():
    # Guo et al., 2022: MSE >= d / tr(I), here with the Jacobian by central differences.
    batch, task = small(1)
    client = sp.Client(sp.Gradient(), sp.chain(sp.Clip(0.5), sp.AddGaussian(0.01)))
    found = sp.bounds.CramerRaoRelaxed()(client, task, batch, rng=sp.rng(0))
    jacobian = dense(client, task, batch, 0)
    exact = math.sqrt(jacobian.shape[1] / (float(jacobian.square().sum()) / 0.01**2))
    assert float(found.value) == pytest.approx(exact, rel=1e-4)


def test_a_bound_for_noise_that_nobody_adds_says_so():
    batch, task = small(1)
    bound = sp.bounds.CramerRaoRelaxed(std=0.01)
    silent = bound(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    noisy = bound(sp.Client(sp.Gradient(), sp.AddGaussian(0.1)), task, batch, rng=sp.rng(0))
    assert SEEN_WITH in silent.assumptions
    assert SEEN_WITH not in noisy.assumptions


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: gaussian_blow_up(0.0, noise_multiplier=1.0), "kappa"),
        (lambda: gaussian_blow_up(0.1, noise_multiplier=-1.0), "noise_multiplier"),
        (lambda: renyi_robustness(0.1, order=1.0, divergence=1.0), "order"),
        (lambda: required_noise(sensitivity=1.0, epsilon=0.0, delta=0.1), "epsilon"),
        (
            lambda: subsampled_blow_up(0.1, noise_multiplier=1, sample_rate=0.0, rng=sp.rng(0)),
            "sample_rate",
        ),
    ],
)
def test_bad_numbers_get_a_sentence(call, said):
    with pytest.raises(InvalidValue, match=said):
        call()
