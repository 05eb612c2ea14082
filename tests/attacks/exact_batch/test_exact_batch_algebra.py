"""Each identity the exact inversion rests on, against an independent computation."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import seepage as sp
from seepage.attacks.exact_batch import determined_probability, success_probability
from seepage.attacks.exact_batch._complementarity import _best_above, _move, _objective
from seepage.attacks.exact_batch._exact_batch import _find_kernels
from seepage.attacks.exact_batch._separation import (
    ReLULayer,
    is_determined,
    refine_separation,
    separate_examples,
)
from seepage.attacks.exact_batch._span_factors import (
    Candidates,
    column_space,
    factorise_gradient,
    numerical_rank,
)
from seepage.core.errors import NotApplicable


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


class Network:
    """One rectified layer and a layer above, with everything private kept beside the gradients."""

    def __init__(self, people, neurons=60, pixels=40, outputs=5, seed=0):
        self.inputs = draw(people, pixels, seed=(seed, 1))
        self.layer = ReLULayer(draw(neurons, pixels, seed=(seed, 2)), draw(neurons, seed=(seed, 3)))
        head = draw(outputs, neurons, seed=(seed, 4))
        errors = draw(people, outputs, seed=(seed, 5))
        z = self.inputs @ self.layer.weight.T + self.layer.bias
        self.gradients = torch.where(z > 0, errors @ head, 0)
        self.weight = self.gradients.T @ self.inputs
        self.bias = self.gradients.sum(0)
        self.factors = factorise_gradient(self.weight, self.bias, batch_size=None)
        above = head.T @ column_space(errors.T @ z.clamp_min(0), at_most=people)
        self.factors = replace(self.factors, above=above)
        self.directions = torch.linalg.lstsq(self.factors.span, self.gradients.T).solution


SHAPES = {"people": st.integers(1, 9), "seed": st.integers(0, 10_000)}


@settings(max_examples=25, deadline=None)
@given(**SHAPES)
def test_the_rank_is_the_batch_size_and_the_factors_give_the_gradient_back(people, seed):
    private = Network(people, seed=seed)
    factors = private.factors
    assert factors.batch_size == people == np.linalg.matrix_rank(private.weight.numpy())
    np.testing.assert_allclose(factors.span @ factors.mixtures, private.weight, atol=1e-9)
    np.testing.assert_allclose(factors.span.T @ factors.span, np.eye(people), atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(**SHAPES)
def test_only_the_directions_are_unknown_inputs_and_scale_follow(people, seed):
    private = Network(people, seed=seed)
    np.testing.assert_allclose(private.directions.sum(1), private.factors.total, atol=1e-8)
    unscaled = private.directions * draw(people, seed=seed)
    unit = (unscaled / unscaled.norm(dim=0)).T
    found = separate_examples(private.factors, private.layer, Candidates(unit, torch.zeros(people)))
    np.testing.assert_allclose(found.inputs, private.inputs, atol=1e-7)
    np.testing.assert_allclose(found.gradients, private.gradients, atol=1e-7)
    assert found.leak < 1e-7


@settings(max_examples=25, deadline=None)
@given(people=st.integers(2, 9), seed=st.integers(0, 10_000))
def test_the_kernel_is_what_scipy_finds(people, seed):
    rows = draw(3, people - 1, people, seed=seed)
    ours = _find_kernels(rows)
    for one, kernel in zip(rows, ours, strict=True):
        theirs = torch.from_numpy(scipy.linalg.null_space(one.numpy()))[:, 0]
        assert abs(float(kernel @ theirs)) == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("person", range(4))
def test_neurons_silent_for_one_person_point_at_that_person(person):
    private = Network(4)
    silent = (private.gradients[person] == 0) & private.factors.live
    rows = private.factors.span[silent]
    # Neurons that the same people activate say the same; pivoting takes three that do not.
    rows = rows[scipy.linalg.qr(rows.T.numpy(), pivoting=True)[2][:3]]
    truth = private.directions[:, person]
    cosine = _find_kernels(rows[None])[0] @ truth / truth.norm()
    assert abs(float(cosine)) == pytest.approx(1, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(**SHAPES)
def test_every_person_solves_the_equations_and_a_random_direction_does_not(people, seed):
    private = Network(people + 1, seed=seed)
    factors = private.factors
    truth = (private.directions / private.directions.norm(dim=0)).T
    for p, holds in ((truth, True), (draw(people + 1, people + 1, seed=seed), False)):
        e = _best_above(factors.span, factors.above, p)
        objective = _objective(factors.span, factors.above, p, e)
        assert bool((objective < 1e-18).all()) == holds


def test_a_step_is_that_of_gauss_and_newton_with_the_jacobian_of_autograd():
    private = Network(4)
    span, above = private.factors.span, private.factors.above
    p, e = draw(1, 4, seed=1), draw(1, above.shape[1], seed=2)
    p = p / p.norm()

    def equations(unknowns):
        d, v = span @ unknowns[:4], above @ unknowns[4:]
        return d * (d - v)

    at = torch.cat([p[0], e[0]])
    jacobian = torch.autograd.functional.jacobian(equations, at).numpy()
    normal = jacobian.T @ jacobian
    scale = np.diag(normal).mean()
    radial = np.concatenate([p[0].numpy(), np.zeros(above.shape[1])])
    held = normal + scale * (np.outer(radial, radial) + 0.3 * np.eye(len(at)))
    expected = -np.linalg.solve(held, jacobian.T @ equations(at).numpy())
    move = _move(span, above, p, e, torch.tensor([0.3], dtype=torch.float64))
    np.testing.assert_allclose(move[0], expected, rtol=1e-8)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_greedy_choice_is_the_best_of_all_independent_choices(seed):
    generator = np.random.default_rng(seed)
    corners = np.array([v for v in itertools.product((-1, 0, 1), repeat=3) if any(v)], float)
    directions = corners[generator.integers(len(corners), size=7)]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    scores = generator.random(7)
    chosen = Candidates(torch.from_numpy(directions), torch.from_numpy(scores)).select_independent()
    rank = np.linalg.matrix_rank(directions)
    sums = [
        scores[list(subset)].sum()
        for subset in itertools.combinations(range(7), rank)
        if np.linalg.matrix_rank(directions[list(subset)]) == rank
    ]
    assert len(chosen) == rank
    assert float(chosen.scores.sum()) == pytest.approx(min(sums))


def test_candidates_that_got_nowhere_are_never_chosen():
    found = Candidates(torch.eye(2), torch.tensor([torch.inf, 0.5])).select_independent()
    assert found.directions.tolist() == [[0.0, 1.0]]


def test_settling_removes_what_noise_put_into_a_direction():
    private = Network(4, neurons=120)
    noisy = private.directions + 0.02 * draw(4, 4, seed=7)
    found = Candidates((noisy / noisy.norm(dim=0)).T, torch.zeros(4))
    before = separate_examples(private.factors, private.layer, found)
    after = refine_separation(private.factors, private.layer, before)
    assert float((before.inputs - private.inputs).abs().max()) > 1e-3
    np.testing.assert_allclose(after.inputs, private.inputs, atol=1e-7)
    assert is_determined(private.factors, after)


def test_noise_is_told_from_rounding_and_its_size_estimated():
    private = Network(3, neurons=200, pixels=300)
    std = 1e-3
    seen = private.weight + std * draw(200, 300, seed=9)
    values = torch.linalg.svdvals(seen)
    assert numerical_rank(torch.linalg.svdvals(private.weight), 1e-13) == (3, False)
    assert numerical_rank(values, 1e-13) == (3, True)
    expected = std * 200**0.5 / float(values[2])
    assert factorise_gradient(seen, private.bias, batch_size=3).noise == pytest.approx(
        expected, rel=0.05
    )


def test_a_gradient_of_pure_noise_hides_the_batch_size():
    with pytest.raises(NotApplicable, match="hides how many examples"):
        factorise_gradient(draw(50, 80), draw(50), batch_size=None)


def test_a_batch_size_that_the_rank_contradicts_is_refused():
    private = Network(4)
    with pytest.raises(NotApplicable, match="more than 3 examples"):
        factorise_gradient(private.weight, private.bias, batch_size=3)
    with pytest.raises(NotApplicable, match="rank 0"):
        factorise_gradient(0 * private.weight, 0 * private.bias, batch_size=4)


def test_a_batch_size_above_the_rank_leaves_that_many_different_examples():
    private = Network(4)
    assert factorise_gradient(private.weight, private.bias, batch_size=5).batch_size == 4


@pytest.mark.parametrize(("neurons", "people"), [(12, 4), (16, 5), (20, 8)])
def test_odds_of_being_determined_are_those_of_coins(neurons, people):
    coins = np.random.default_rng(0).random((20_000, people, neurons)) < 0.5
    share = (coins.sum(2) >= people).all(1).mean()
    assert determined_probability(neurons=neurons, batch_size=people) == pytest.approx(
        share, abs=0.015
    )


def test_odds_of_sampling_are_those_of_draws():
    generator = np.random.default_rng(0)
    people, samples, trials = 5, 40, 4_000
    silent = generator.random((trials, samples, people, people - 1)) < 0.5
    share = silent.all(3).any(1).all(1).mean()
    ours = success_probability(neurons=400, batch_size=people, samples=samples)
    assert ours == pytest.approx(share, abs=0.03)


def test_odds_fall_with_people_and_rise_with_samples():
    odds = [
        success_probability(neurons=256, batch_size=b, samples=2**18) for b in (8, 16, 18, 20, 24)
    ]
    assert odds == sorted(odds, reverse=True)
    assert odds[0] > 0.999 > odds[-1]
    more = [success_probability(neurons=256, batch_size=18, samples=2**n) for n in (16, 18, 20, 22)]
    assert more == sorted(more)


def test_draws_differ_between_keys_and_repeat_with_one():
    from seepage.attacks.exact_batch import Complementarity
    from seepage.attacks.exact_batch._span_factors import empty_candidates

    factors = Network(4).factors
    search = Complementarity(starts=8, steps=3)
    one, again, other = (
        search(factors, empty_candidates(factors.span), rng=sp.rng(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(one.directions, again.directions)
    assert not torch.equal(one.directions, other.directions)
