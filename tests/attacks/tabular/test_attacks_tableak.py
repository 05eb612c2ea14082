"""TabLeak: its parts against independent code, and what it recovers from a real table."""

from itertools import permutations

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch

import seepage as sp
from seepage.attacks._tableak import _measure_confidence, _pool_members, align_members
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.domains import Categorical, Continuous, Tabular
from seepage.scoring import FeatureAccuracy, baseline_scores, pair
from seepage.search._generator import _softmax_categories

VOTERS = sp.data.load("voters")
QUICK = sp.attacks.tableak(steps=200, members=4)
SMALL = Tabular(
    (
        Categorical(name="vote", categories=("no", "yes", "perhaps")),
        Continuous(name="age", low=0, high=1, mean=0, std=1),
    )
)


def observed(people, *, start=0, hidden=(100, 100), local=None, **knowledge):
    task = sp.zoo.mlp(hidden=hidden, classes=2, domain=VOTERS.domain)
    client = sp.Client(local or sp.Gradient())
    batch = VOTERS.batch(people, start=start)
    threat = sp.Threat(**{"knows_labels": True, **knowledge})
    return threat.observe(client, task, batch, rng=sp.rng(0)), batch


def gain(guess, batch, start=0):
    """Points of accuracy above the better of two guesses from other people's answers."""
    others = torch.ones(len(VOTERS), dtype=torch.bool)
    others[start : start + len(batch)] = False
    trivial = baseline_scores(
        batch, pool=VOTERS.inputs[others], rng=sp.rng(2), domain=VOTERS.domain
    )
    best = max(float(scores["feature_accuracy"].mean()) for scores in trivial.values())
    ours = float(sp.score(guess, batch, domain=VOTERS.domain)["feature_accuracy"].mean())
    return 100 * (ours - best), ours


def test_the_relaxation_is_a_softmax_of_each_column_of_categories():
    raw = sp.rng(0).normal((2, 5, 39))
    relaxed = _softmax_categories(raw, VOTERS.domain).double().numpy()
    plain = raw.double().numpy()
    for column, place in zip(VOTERS.domain.columns, VOTERS.domain.places, strict=True):
        numbers = isinstance(column, Continuous)
        expected = plain[..., place] if numbers else scipy.special.softmax(plain[..., place], -1)
        np.testing.assert_allclose(relaxed[..., place], expected, atol=1e-6)


def test_rows_are_matched_within_labels_as_trying_every_order_does():
    members = sp.rng(1).normal((3, 5, 4))
    labels = torch.tensor([0, 0, 0, 1, 1])
    ordered = align_members(members, labels, reference=1)
    plain = members.double().numpy()
    orders = [o for o in permutations(range(5)) if (labels[list(o)] == labels).all()]
    for member, found in zip(plain, ordered.double().numpy(), strict=True):
        best = min(orders, key=lambda o, m=member: ((m[list(o)] - plain[1]) ** 2).sum())
        np.testing.assert_array_equal(found, member[list(best)])


@pytest.mark.parametrize("members", [5, 6])
def test_pooling_is_the_median(members):
    drawn = sp.rng(2).normal((members, 3, 4))
    np.testing.assert_allclose(_pool_members(drawn).numpy(), np.median(drawn.numpy(), 0), rtol=1e-6)


def test_confidence_is_the_entropy_of_what_members_say():
    members = _softmax_categories(sp.rng(3).normal((7, 2, 4)) * torch.tensor([3, 3, 3, 0.2]), SMALL)
    sure = _measure_confidence(members, SMALL).double().numpy()
    plain = members.double().numpy()
    entropy = scipy.stats.entropy(plain[..., :3].mean(0), axis=-1) / np.log(3)
    np.testing.assert_allclose(sure[:, 0], 1 - entropy, atol=1e-6)
    spread = [scipy.stats.norm(scale=s).entropy() for s in plain[..., 3].std(0)]
    ratio = np.exp(np.array(spread) - scipy.stats.norm().entropy())
    np.testing.assert_allclose(sure[:, 1], 1 - ratio, atol=1e-6)


@pytest.mark.parametrize("people", [1, 8])
def test_rows_come_back_far_better_than_a_guess_without_update(people):
    seen, batch = observed(people)
    guess = QUICK(seen, rng=sp.rng(1))
    points, accuracy = gain(guess, batch)
    assert points >= 20
    assert accuracy >= 0.65
    assert guess.trace.restarts == 4


def test_two_local_steps_do_not_hide_a_row():
    seen, batch = observed(1, start=100, hidden=(32,), local=sp.FedAvg(lr=0.01, steps=2))
    attack = sp.attacks.tableak(steps=120, members=2)
    points, _ = gain(attack(seen, rng=sp.rng(1)), batch, start=100)
    assert points >= 20


@pytest.mark.slow
def test_categories_that_members_agree_on_are_right_more_often():
    seen, batch = observed(16, start=200)
    guess = QUICK(seen, rng=sp.rng(1))
    paired = pair(guess, batch, domain=VOTERS.domain)
    right = FeatureAccuracy().by_column(paired)
    sure = guess.confidence[list(paired.assignment)]
    assert sure.shape == right.shape == (16, 9)
    kinds = torch.tensor([isinstance(c, Categorical) for c in VOTERS.domain.columns])
    right, sure = right[:, kinds].flatten(), sure[:, kinds].flatten()
    trusted = sure >= sure.median()
    assert 0.2 < float(right.mean()) < 0.95
    assert float(right[trusted].mean()) > float(right[~trusted].mean()) + 0.1


def test_it_says_what_it_needs():
    seen, _ = observed(1, knows_labels=False)
    with pytest.raises(MissingKnowledge, match="labels"):
        QUICK(seen, rng=sp.rng(1))
    photo = sp.data.bundled("photos", size=1)
    task = sp.zoo.mlp(hidden=(8,))
    image = sp.Threat(knows_labels=True).observe(
        sp.Client(sp.Gradient()), task, photo, rng=sp.rng(0)
    )
    with pytest.raises(NotApplicable, match="rows of a table"):
        QUICK(image, rng=sp.rng(1))
