"""Several rounds against one person: narrow layers that hide a batch once do not hide it twice."""

from __future__ import annotations

import pytest
import torch

import seepage as sp
from seepage.attacks import exact_rounds
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.inference import Detection, membership_by_round

DIGITS = sp.data.load("digits")
PUBLIC = sp.PublicData(DIGITS.inputs[32:], DIGITS.labels[32:])


def observe(count, *, width, people=8, noise=0.0, seed=0):
    """Rounds of one client, each with other weights, as training makes them."""
    client = sp.Client(sp.Gradient(), sp.AddGaussian(noise)) if noise else sp.Client(sp.Gradient())
    tasks = [
        sp.zoo.mlp(hidden=(width,), domain=DIGITS.domain, seed=100 * seed + n) for n in range(count)
    ]
    batch = DIGITS.take(range(people))
    return [
        sp.Threat().observe(client, task, batch, rng=sp.rng(seed).fork(n))
        for n, task in enumerate(tasks)
    ]


def test_rounds_of_a_layer_too_narrow_for_the_batch_find_every_member_together():
    found = membership_by_round(observe(3, width=4), DIGITS.take(range(32)), public=PUBLIC)
    one, _, three = (Detection.of(each, torch.arange(32) < 8) for each in found)
    assert three.auc == 1.0
    assert three.auc > one.auc
    assert three.found_at(three.found.level).value == 1.0
    assert three.false_alarms(three.found.level).low < three.found.level
    assert "stacked over 3 rounds" in three.found.test[0]


def test_rounds_whose_noise_is_independent_tell_more_than_one():
    seen = observe(6, width=32, noise=0.3)
    found = membership_by_round(seen, DIGITS.take(range(32)), public=PUBLIC)
    auc = [Detection.of(each, torch.arange(32) < 8).auc for each in found]
    assert sum(auc[-3:]) / 3 > auc[0]


def test_the_last_of_the_curve_is_what_membership_says():
    seen, people = observe(2, width=8), DIGITS.take(range(12))
    curve = membership_by_round(seen, people, public=PUBLIC)
    assert torch.equal(curve[-1].p_values, sp.membership(seen, people, public=PUBLIC).p_values)
    assert torch.equal(curve[0].p_values, sp.membership(seen[0], people, public=PUBLIC).p_values)


@pytest.mark.parametrize("seed", range(3))
def test_a_batch_that_one_round_hides_comes_back_exactly_from_four(seed):
    seen, batch = observe(4, width=16, seed=seed), DIGITS.take(range(8))
    guess = exact_rounds(seen, rng=sp.rng(seed))
    assert float(sp.score(guess, batch)["psnr"].min()) > 60
    assert guess.labels is not None
    assert sorted(guess.labels.tolist()) == sorted(batch.labels.tolist())


def test_one_round_of_a_layer_narrower_than_the_batch_is_refused_in_one_sentence():
    with pytest.raises(NotApplicable, match="needs"):
        exact_rounds(observe(1, width=4), rng=sp.rng(0))


@pytest.mark.parametrize("ask", [
    lambda seen: exact_rounds(seen, rng=sp.rng(0)),
    lambda seen: membership_by_round(seen, DIGITS.take(range(9)), public=PUBLIC),
])  # fmt: skip
def test_rounds_of_different_models_get_one_sentence(ask):
    with pytest.raises(InvalidValue, match="expected rounds of one model, but observation 2"):
        ask([*observe(1, width=8), *observe(1, width=16)])
    with pytest.raises(InvalidValue, match="at least one observation"):
        ask([])
