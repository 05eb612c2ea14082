"""Each identity that feature recovery rests on, against an independent computation."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats
import torch
from torch.nn import functional

import seepage as sp
from seepage.attacks.feature_recovery._exact_features import _solve_ridge
from seepage.attacks.feature_recovery._feature_span import _complete_matrix, _singular
from seepage.attacks.feature_recovery._head_equations import HeadEquations, refine_features
from seepage.attacks.feature_recovery._tensor_features import (
    _diagonalise_jointly,
    _distance_from_normal,
    _gaussian_derivative,
    _hermite_orders,
    _matrix_moment,
    _rotate_classes,
    _tensor_moment,
)
from seepage.core.errors import NotApplicable
from seepage.numerics._row_span import principal_directions
from seepage.probing._activations import HeadActivation, recognise_head_activation

ACTIVATIONS = {
    "relu": torch.relu,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.1),
    "gelu": functional.gelu,
    "softplus": functional.softplus,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "elu": functional.elu,
}
ORDERS = {
    **dict.fromkeys(("relu", "leaky_relu", "gelu", "softplus", "silu"), (2, 4)),
    "tanh": (3, 3),
    "sigmoid": (3, 3),
    "elu": (2, 3),
}


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("order", range(5))
def test_gaussian_derivatives_are_the_integrals_they_claim_to_be(name, order):
    hermite = np.polynomial.hermite_e.HermiteE.basis(order)

    def integrand(x):
        value = ACTIVATIONS[name](torch.tensor(x, dtype=torch.float64)).item()
        return value * hermite(x) * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    integral = scipy.integrate.quad(integrand, -12, 12, points=[0.0], limit=200)[0]
    assert _gaussian_derivative(ACTIVATIONS[name], order) == pytest.approx(integral, abs=5e-3)


def test_those_of_relu_are_the_normal_density_and_its_second_derivative_at_zero():
    density = 1 / math.sqrt(2 * math.pi)
    assert _gaussian_derivative(torch.relu, 2) == pytest.approx(density, abs=2e-3)
    assert _gaussian_derivative(torch.relu, 4) == pytest.approx(-density, abs=5e-3)


@pytest.mark.parametrize("name", ORDERS)
def test_orders_follow_the_parity_of_the_activation(name):
    assert _hermite_orders(ACTIVATIONS[name], name) == ORDERS[name]


@pytest.mark.parametrize("function", [lambda x: x, lambda x: x.square()])
def test_activations_without_a_usable_order_are_refused(function):
    with pytest.raises(NotApplicable, match="of the orders 2 to 4; use exact_features"):
        _hermite_orders(function, "it")


def hermite_tensor(w, order):
    """He_k(w) from the definition (-1)^k d^k phi / phi, by pairing up indices one by one."""
    n = len(w)
    result = np.zeros((n,) * order)
    for index in itertools.product(range(n), repeat=order):
        result[index] = _hermite_entry(w, list(index))
    return result


def _hermite_entry(w, index):
    if not index:
        return 1.0
    first, rest = index[0], index[1:]
    pairs = sum(
        _hermite_entry(w, rest[:i] + rest[i + 1 :]) for i, j in enumerate(rest) if j == first
    )
    return w[first] * _hermite_entry(w, rest) - pairs


@pytest.mark.parametrize("order", [2, 3, 4])
def test_contracted_moments_are_those_of_whole_hermite_tensors(order):
    weight, values, along = draw(5, 3), draw(5, seed=1), draw(3, seed=2)
    a = along.numpy()
    whole = sum(
        g * hermite_tensor(w, order) for w, g in zip(weight.numpy(), values.numpy(), strict=True)
    ) / len(weight)
    if order < 4:
        wanted = whole if order == 2 else whole @ a
        assert np.allclose(_matrix_moment(weight, values, order, along).numpy(), wanted)
    if order > 2:
        wanted = whole if order == 3 else whole @ a
        assert np.allclose(_tensor_moment(weight, values, order, along).numpy(), wanted)


def test_moments_of_relu_converge_to_the_sum_over_people_at_the_rate_of_the_theory():
    people = functional.normalize(draw(2, 6), dim=1)
    shares = torch.tensor([1.0, -0.5], dtype=torch.float64)
    wanted = torch.einsum("i,ia,ib->ab", shares, people, people) / math.sqrt(2 * math.pi)

    def error(neurons):
        weight = draw(neurons, 6, seed=neurons)
        values = torch.relu(weight @ people.T) @ shares
        return float((_matrix_moment(weight, values, 2, people[0]) - wanted).norm())

    few, many = (
        np.mean([error(1000 + i) for i in range(8)]),
        np.mean([error(64_000 + i) for i in range(4)]),
    )
    assert few / many == pytest.approx(8, rel=0.4)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_common_parts_are_found_to_rounding_where_they_exist(size):
    parts = functional.normalize(draw(size, size, seed=size), dim=1)
    slices = torch.einsum("ni,ia,ib->nab", draw(size + 2, size, seed=(size, 1)), parts, parts)
    found = _diagonalise_jointly(slices, rng=sp.rng(0))
    assert torch.allclose((found @ parts.T).abs().amax(0), torch.ones(size).double(), atol=1e-8)


def test_every_activation_is_recognised_by_what_it_does():
    z = draw(4, 50)
    for name, function in ACTIVATIONS.items():
        assert recognise_head_activation(z, function(z)).name == name
    assert recognise_head_activation(z, functional.leaky_relu(z, 0.3)).slope == pytest.approx(0.3)
    assert recognise_head_activation(z, z.cos()) is None
    assert recognise_head_activation(z, z[:, :3]) is None


def small_equations(activation, *, people=3, dims=4, neurons=200, classes=3, seen=None):
    weight, bias = draw(neurons, dims), 0.3 * draw(neurons, seed=1)
    features, shares = draw(people, dims, seed=2), draw(people, classes, seed=3)
    wanted = shares.T @ activation(features @ weight.T + bias)
    seen = torch.ones_like(wanted) if seen is None else seen(wanted)
    return HeadEquations(weight, bias, activation, wanted * seen, seen), features, shares


@pytest.mark.parametrize("name", ["tanh", "softplus"])
def test_least_squares_agrees_with_scipy_from_the_same_start(name):
    problem, features, shares = small_equations(HeadActivation(name))
    start = features + 0.2 * draw(*features.shape, seed=9)
    ours = refine_features(problem, start, steps=60)
    size = features.numel()

    def residual(x):
        guess = torch.from_numpy(x[:size]).reshape(features.shape)
        weights = torch.from_numpy(x[size:]).reshape(shares.shape)
        return problem.residual(problem.hidden(guess), weights).flatten().numpy()

    at_start = problem.shares(problem.hidden(start))
    x0 = torch.cat([start.flatten(), at_start.flatten()]).numpy()
    theirs = scipy.optimize.least_squares(residual, x0, method="lm", xtol=1e-14, ftol=1e-14)
    assert np.allclose(ours.flatten().numpy(), theirs.x[:size], atol=1e-5)
    assert torch.allclose(ours, features, atol=1e-5)


def test_shares_are_the_least_squares_solution_over_what_is_seen():
    problem, features, _ = small_equations(
        HeadActivation("tanh"), seen=lambda g: (g.abs() > 0.5).double()
    )
    passed = torch.tanh(problem.hidden(features))
    found = problem.shares(problem.hidden(features))
    for k in range(3):
        mask = problem.seen[k].bool()
        wanted = np.linalg.lstsq(
            passed[:, mask].T.numpy(), problem.wanted[k, mask].numpy(), rcond=None
        )[0]
        assert np.allclose(found[:, k].numpy(), wanted)


def test_what_pruning_took_away_changes_nothing_about_the_solution():
    problem, features, _ = small_equations(
        HeadActivation("relu"), seen=lambda g: (g.abs() > g.abs().median()).double()
    )
    assert problem.misfit(features) < 1e-12
    found = refine_features(problem, features + 0.05 * draw(*features.shape, seed=9), steps=60)
    assert functional.cosine_similarity(found, features).min() > 1 - 1e-8


@pytest.mark.parametrize("rank", [1, 3])
def test_a_matrix_of_low_rank_is_completed_from_half_its_entries(rank):
    whole = draw(120, rank) @ draw(rank, 60, seed=1)
    half = torch.from_numpy(np.random.default_rng(3).random(whole.shape)) < 0.5
    filled, rest = _complete_matrix(whole * half, rank)
    assert (filled - whole).norm() < 1e-4 * whole.norm()
    assert rest < 1e-4 * whole.norm()
    assert torch.equal(_complete_matrix(whole, rank)[0], whole)


@pytest.mark.parametrize("shape", [(12, 40), (40, 12)])
def test_principal_directions_are_those_of_the_product_with_the_transpose(shape):
    rows = draw(*shape)
    values, vectors = principal_directions(rows)
    expected, turned = np.linalg.eigh((rows.T @ rows).numpy())
    assert values.numpy() == pytest.approx(expected[-12:], rel=1e-9)
    assert np.abs((vectors.numpy() * turned[:, -12:]).sum(0)) == pytest.approx(np.ones(12))


@pytest.mark.parametrize("neurons", [7, 30])
def test_class_means_are_the_ridge_regression_of_both_forms(neurons):
    regressors, wanted, ridge = draw(neurons, 20), draw(neurons, 3, seed=1), torch.tensor(0.1)
    found = _solve_ridge(regressors, wanted, ridge.double())
    normal = regressors.T @ regressors + 0.1 * torch.eye(20).double()
    assert torch.allclose(found, torch.linalg.solve(normal, regressors.T @ wanted))


@pytest.mark.parametrize("scale", [0.9, 1.0, 1.3])
def test_the_distance_from_a_gaussian_is_that_of_kolmogorov_and_smirnov(scale):
    values = scale * draw(5000)
    expected = scipy.stats.kstest(values.numpy(), "norm").statistic * math.sqrt(5000)
    assert _distance_from_normal(values) == pytest.approx(expected, rel=1e-9)


def test_singular_values_by_way_of_the_triangular_factor_are_those_of_the_matrix():
    # Of eleven digits: the smaller ones would be lost in the squares of the larger.
    matrix = draw(60, 8) * torch.logspace(0, -11, 8, dtype=torch.float64)
    values, right = _singular(matrix)
    _, expected, turned = np.linalg.svd(matrix.numpy(), full_matrices=False)
    assert values.tolist() == pytest.approx(expected.tolist(), rel=1e-3)
    assert np.abs((right.numpy() * turned).sum(1)) == pytest.approx(np.ones(8), abs=1e-6)


def test_turned_classes_have_the_moments_of_all_together():
    weight, shares, passed = draw(200, 6), draw(5, 3, seed=1), draw(3, 200, seed=2)
    values = shares @ passed
    rows = _rotate_classes(values)
    assert len(rows) == 3, "the rank"
    along = draw(6, seed=3)

    def together(some):
        moments = [_matrix_moment(weight, row, 2, along) for row in some]
        return sum(moment @ moment for moment in moments)

    assert torch.allclose(together(rows), together(values), rtol=1e-9)
