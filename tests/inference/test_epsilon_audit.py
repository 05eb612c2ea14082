"""Lower bounds on epsilon: they hold as often as they say, and come close where they should."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.defenses import gaussian_epsilon
from seepage.inference import EpsilonAudit, PrivateSteps, audit_one_run
from seepage.inference._epsilon_bounds import (
    _one_run_tail,
    bound_from_one_run,
    bound_from_trials,
    bound_gaussian_from_trials,
)


def answer(coins, epsilon, key):
    """Randomised response: the tightest mechanism of this epsilon."""
    honest = key.uniform(coins.shape) < 1 / (1 + math.exp(-epsilon))
    return torch.where(honest, coins, ~coins).float()


def test_the_tail_is_that_of_the_theorem():
    for canaries, guesses, right, epsilon, delta in ((40, 30, 25, 0.5, 1e-3), (9, 9, 9, 2, 1e-2)):
        share = 1 / (1 + math.exp(-epsilon))
        worst = max(
            sum(binom.pmf(right - j, guesses, share) for j in range(1, i + 1)) / i
            for i in range(1, right + 1)
        )
        expected = binom.sf(right - 1, guesses, share) + 2 * canaries * delta * worst
        found = _one_run_tail(canaries, guesses, right, epsilon, delta)
        assert found == pytest.approx(min(1.0, expected))


def test_the_bound_of_one_run_holds_and_is_close_for_randomised_response():
    found = []
    for seed in range(60):
        key = sp.rng(seed)
        coins = key.fork("coins").uniform((500,)) < 0.5
        scores = answer(coins, 1.0, key.fork("answers"))
        found.append(bound_from_one_run(scores, coins, delta=1e-9, error=0.05))
    too_high = sum(bound > 1.0 for bound in found)
    assert binom.sf(too_high - 1, 60, 0.05) > 1e-4
    assert sum(found) / 60 > 0.5


def test_the_bound_of_trials_holds_and_is_close_for_randomised_response():
    ones = torch.ones(4000, dtype=torch.bool)
    found = []
    for seed in range(40):
        inside = answer(ones, 1.0, sp.rng(seed).fork("in"))
        outside = answer(~ones, 1.0, sp.rng(seed).fork("out"))
        found.append(bound_from_trials(inside, outside, delta=1e-9, error=0.05))
    too_high = sum(bound > 1.0 for bound in found)
    assert binom.sf(too_high - 1, 40, 0.05) > 1e-4
    assert sum(found) / 40 > 0.8


def test_the_gaussian_bound_holds_and_is_close_for_a_gaussian():
    exact = gaussian_epsilon(noise_multiplier=1.0, delta=1e-5)
    found = []
    for seed in range(40):
        key = sp.rng(seed)
        inside, outside = key.normal((2000,)) + 1, key.fork("out").normal((2000,))
        found.append(bound_gaussian_from_trials(inside, outside, delta=1e-5, error=0.05))
    too_high = sum(bound > exact for bound in found)
    assert binom.sf(too_high - 1, 40, 0.05) > 1e-4
    assert sum(found) / 40 > 0.7 * exact


def test_nothing_is_proven_of_scores_that_ignore_the_canary():
    key = sp.rng(0)
    assert bound_from_trials(key.normal((400,)), key.normal((400,)), delta=1e-5, error=0.05) == 0
    coins = key.fork("coins").uniform((400,)) < 0.5
    assert bound_from_one_run(key.normal((400,)), coins, delta=1e-5, error=0.05) == 0


PROMISE = {"claimed": 2.0, "delta": 1e-5, "max_norm": 1.0, "rng": sp.rng(0)}


def test_forgotten_noise_is_caught_and_dp_sgd_is_not_accused():
    silent = PrivateSteps(sp.dp_sgd(max_norm=1.0, noise_multiplier=0.0, batch_size=8))
    assert sp.audit_epsilon(silent, trials=100, canaries=200, **PROMISE).violated
    sigma = 2.5  # whose exact epsilon is below 2
    assert gaussian_epsilon(noise_multiplier=sigma, delta=1e-5) < 2
    private = PrivateSteps(sp.dp_sgd(max_norm=1.0, noise_multiplier=sigma, batch_size=8))
    assert not sp.audit_epsilon(private, trials=100, canaries=200, **PROMISE).violated


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"trials": 10, "canaries": 10}, "can prove at most epsilon"),
        ({"trials": 2}, "4 trials and canaries or more"),
        ({"delta": 0.0}, "delta and confidence in"),
        ({"steps": 0}, "expected steps >= 1"),
        ({"rng": 0}, "expected rng"),
    ],
)
def test_numbers_that_make_the_bound_vacuous_get_one_sentence(given, words):
    steps = PrivateSteps(sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=8))
    with pytest.raises(InvalidValue, match=words):
        sp.audit_epsilon(steps, **{**PROMISE, **given})


def test_a_mechanism_of_another_shape_and_a_wrong_defense_get_one_sentence():
    with pytest.raises(InvalidValue, match="to release"):
        sp.audit_epsilon(lambda gradients, *, rng: gradients, **PROMISE)
    with pytest.raises(InvalidValue, match="got ndarray"):
        sp.audit_epsilon(lambda gradients, *, rng: gradients.sum(1).numpy(), **PROMISE)
    with pytest.raises(InvalidValue, match="got NaN"):
        sp.audit_epsilon(lambda gradients, *, rng: math.nan * gradients.sum(1), **PROMISE)
    with pytest.raises(InvalidValue, match="from per-example to aggregate"):
        PrivateSteps(sp.AddGaussian(1.0))
    with pytest.raises(InvalidValue, match="sample_rate"):
        PrivateSteps(sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=8), 0.0)


def test_one_run_elsewhere_is_bounded_as_its_canaries_say():
    coins = sp.rng(0).uniform((400,)) < 0.5
    noise = sp.rng(1).normal((400,))
    claimed = gaussian_epsilon(noise_multiplier=4.0, delta=1e-5)
    kept, forgotten = (
        audit_one_run(scores, coins, claimed=claimed, delta=1e-5)
        for scores in (coins.float() + 4.0 * noise, coins.float())
    )
    assert not kept.violated
    assert forgotten.violated
    assert claimed < forgotten.proven <= forgotten.provable
    assert "runs" not in str(forgotten)
    assert not kept.looks_reversed
    assert not forgotten.looks_reversed


def test_the_bounds_stand_below_each_other():
    found = EpsilonAudit(
        claimed=1.0, delta=1e-5, confidence=0.95, from_trials=0.0, from_one_run=0.0,
        if_gaussian=(0.0, 0.0), trials=20_000, canaries=10,
    )  # fmt: skip
    assert len({line.index("epsilon") for line in str(found).splitlines()[:3]}) == 1


def test_scores_of_the_wrong_sign_are_said_and_not_used():
    coins = sp.rng(0).uniform((400,)) < 0.5
    found = audit_one_run(-coins.float(), coins, claimed=1.0, delta=1e-5)
    assert found.proven == 0
    assert not found.violated
    assert found.looks_reversed
    assert found.other_sign == audit_one_run(coins.float(), coins, claimed=1.0, delta=1e-5).proven
    assert "with the other sign epsilon would be at least" in str(found)


def test_a_training_that_releases_the_other_sign_is_said():
    steps = PrivateSteps(sp.dp_sgd(max_norm=1.0, noise_multiplier=0.0, batch_size=8))
    found = sp.audit_epsilon(
        lambda gradients, *, rng: -steps(gradients, rng=rng),
        claimed=2.0,
        delta=1e-5,
        max_norm=1.0,
        trials=100,
        canaries=100,
        rng=sp.rng(0),
    )
    assert found.looks_reversed


@pytest.mark.parametrize(
    ("scores", "coins", "words"),
    [
        (torch.zeros(8), torch.zeros(7, dtype=torch.bool), "a score and a bool"),
        (torch.zeros(8), torch.zeros(8), "a score and a bool"),
        (torch.zeros(8), torch.zeros(8, dtype=torch.bool), "cannot refute"),
        (torch.full((8,), math.nan), torch.zeros(8, dtype=torch.bool), "got NaN"),
    ],
)
def test_canaries_that_can_tell_nothing_get_one_sentence(scores, coins, words):
    with pytest.raises(InvalidValue, match=words):
        audit_one_run(scores, coins, claimed=8.0, delta=1e-5)
