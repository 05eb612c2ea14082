"""Membership from updates: valid p-values, power where algebra promises it, and plain refusals."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from scipy.stats import beta, binom, norm
from torch import nn

import seepage as sp
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable
from seepage.inference import Detection
from seepage.inference._update_statistics import read_layers, span_layers, span_scores
from seepage.numerics._significance import Rate, conformal_p_values, monotone_likelihood_ratios

SMALL = sp.domains.Image((1, 8, 8))
PLAIN = sp.Client(sp.Gradient())


def people(number, seed=0, shift=0.0):
    """Smooth images of a made-up population, all different."""
    key = sp.rng(seed).fork("people")
    coarse = key.uniform((number, 1, 4, 4)) + 0.3 * key.fork("level").uniform((number, 1, 1, 1))
    images = nn.functional.interpolate(coarse, size=8, mode="bilinear") / 1.3
    images = (images + 0.05 * key.fork("noise").normal(images.shape) + shift).clamp(0, 1)
    labels = (4 * key.fork("labels").uniform((number,))).long()
    return sp.Batch(images, labels)


def part(batch, start, stop):
    return sp.Batch(batch.inputs[start:stop], batch.labels[start:stop])


def publish(batch):
    return sp.PublicData(batch.inputs, batch.labels)


def network(hidden=48):
    return sp.zoo.mlp(hidden=(hidden,), classes=4, domain=SMALL)


def observe(batch, client=PLAIN, task=None, seed=0, threat=None):
    threat = threat or sp.Threat()
    return threat.observe(client, task or network(), batch, rng=sp.rng(seed).fork("client"))


def detect(client, *, size, task=None, seed=0, strangers=200, public=400):
    """Members first; returns the result and who was a member."""
    everybody = people(size + strangers + public, seed)
    seen = observe(part(everybody, 0, size), client, task, seed)
    candidates = part(everybody, 0, size + strangers)
    found = sp.membership(seen, candidates, public=publish(part(everybody, size + strangers, None)))
    return found, torch.arange(size + strangers) < size


@pytest.mark.parametrize("size", [1, 8, 30])
def test_all_members_are_found_while_the_batch_is_smaller_than_the_layer(size):
    found, is_member = detect(PLAIN, size=size, task=network(128))
    told = Detection.of(found, is_member)
    assert told.auc == 1.0
    assert "span" in found.test[0]
    assert bool((found.p_values[is_member] <= 1 / (found.strangers + 1)).all())
    assert found.power.value == 1.0


@pytest.mark.parametrize(
    "client",
    [
        sp.Client(sp.FedAvg(lr=0.1, steps=5)),
        sp.Client(sp.FedAvg(lr=0.1, epochs=2, local_batch_size=4)),
        sp.Client(sp.Gradient(), sp.SecureAggregation(3)),
        sp.Client(sp.Gradient(), sp.Clip(0.1)),
    ],
    ids=repr,
)
def test_local_steps_sums_and_clipping_leave_the_span_of_the_first_layer(client):
    found, is_member = detect(client, size=12)
    assert Detection.of(found, is_member).auc == 1.0


def test_the_residual_is_that_of_a_least_squares_fit():
    everybody, task = people(20), network()
    update = PLAIN(task, part(everybody, 0, 6), rng=sp.rng(0))
    (layer, _) = span_layers(task)
    readings = read_layers(task, (layer,), everybody.inputs)
    scores = span_scores(update, (layer,), readings)["span of hidden1, floor 1e-13"]
    rows = readings.rows["hidden1"][:, 0]
    matrix = layer.gradient(update)
    # An independent route: the singular vectors that stand out, and a projection on them.
    _, values, right = torch.linalg.svd(matrix)
    basis = right[: int((values > 1e-6 * values[0]).sum())]
    residual = (rows - rows @ basis.T @ basis).square().sum(1)
    assert torch.allclose(10 ** -scores[6:], residual[6:], rtol=1e-3)
    assert bool((scores[:6] > 9).all())


# Validity: on strangers, P(p <= a) <= a. Over 12 updates with public data of their own each.
CASES = {
    "span": (PLAIN, 12),
    "too many inputs for the span": (PLAIN, 80),
    "noise": (sp.Client(sp.Gradient(), sp.AddGaussian(0.05)), 8),
    "pruning": (sp.Client(sp.Gradient(), sp.Prune(0.9)), 8),
    "dp_sgd": (
        sp.Client(sp.Gradient(), sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=8)),
        8,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_strangers_are_flagged_no_more_often_than_the_level(case):
    client, size = CASES[case]
    flagged, total, strangers = 0, 0, 0
    for seed in range(6):
        found, is_member = detect(client, size=size, seed=seed, strangers=100, public=300)
        flagged += int((found.p_values[~is_member] <= 0.1).sum())
        total, strangers = total + 100, found.strangers
    # Strangers of one update share the calibration, so the share flagged is beta-binomial.
    spread = math.sqrt(0.09 / total + 0.09 / (6 * (strangers + 2)))
    assert flagged / total <= 0.1 + 4 * spread
    assert flagged / total >= 0.1 - 4 * spread


def test_ranks_among_exchangeable_scores_are_uniform():
    scores = sp.rng(0).normal((4000, 20))
    p = torch.stack([conformal_p_values(row[:1], row[1:]) for row in scores]).flatten()
    for level in (0.05, 0.25, 0.5):
        expected = int(level * 20) / 20
        share = float((p <= level + 1e-9).double().mean())
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / 4000)


def test_ties_make_p_values_larger():
    assert conformal_p_values(torch.zeros(1), torch.zeros(9)).item() == 1.0


def test_likelihood_ratios_are_calibrated_and_rise():
    key = sp.rng(3)
    inside, outside = key.normal((4000,)) + 1, key.fork("out").normal((4000,))
    at = torch.linspace(-1.5, 2.5, 9)
    ratios = monotone_likelihood_ratios(at, inside, outside)
    assert bool((ratios.diff() >= 0).all())
    exact = (at.double() - 0.5).exp()  # N(1, 1) against N(0, 1)
    assert bool(((ratios / exact).log().abs() < 0.5).all())


def test_the_exact_test_is_uniform_on_strangers_and_has_the_power_of_the_theorem():
    task, everybody, std = network(), people(9), 0.02
    client = sp.Client(sp.Gradient(), sp.AddGaussian(std))
    others, one = part(everybody, 0, 7), part(everybody, 7, 8)
    inside, outside = [], []
    for seed in range(80):
        with_one = observe(part(everybody, 0, 8), client, task, seed)
        without = observe(others, client, task, seed + 1000)
        inside.append(sp.membership(with_one, one, others=others))
        outside.append(sp.membership(without, one, others=others))
    shift = client.expected(task, everybody.inputs[:8], everybody.labels[:8]).flat()
    shift = shift - client.expected(task, others.inputs, others.labels).flat()
    mu = float(shift.norm()) / std
    found = sum(float(result.p_values) <= 0.1 for result in inside)
    power = norm.cdf(norm.ppf(0.1) + mu)
    assert binom.cdf(found, 80, power) > 1e-4 < binom.sf(found - 1, 80, power)
    false = sum(float(result.p_values) <= 0.1 for result in outside)
    assert binom.sf(false - 1, 80, 0.1) > 1e-4 < binom.cdf(false, 80, 0.1)
    # E[likelihood ratio] = 1 without the candidate.
    ratios = torch.cat([result.likelihood_ratios for result in outside])
    assert float(ratios.log().mean()) == pytest.approx(-(mu**2) / 2, abs=4 * mu / math.sqrt(80))


@pytest.mark.parametrize(
    "defense",
    [
        sp.chain(sp.Quantize(4), sp.AddGaussian(1e-3)),
        sp.chain(sp.AddGaussian(1e-2), sp.AddGaussian(1e-3)),
    ],
    ids=["rounded before", "two noises"],
)
def test_the_exact_test_accounts_for_what_happens_before_the_last_noise(defense):
    client, small = sp.Client(sp.Gradient(), defense), network(hidden=8)
    false = 0
    for seed in range(40):
        everybody = people(5, seed=seed)
        others, one = part(everybody, 0, 4), part(everybody, 4, 5)
        seen = observe(others, client, small, seed)
        false += float(sp.membership(seen, one, others=others).p_values) <= 0.1
    assert binom.sf(false - 1, 40, 0.1) > 1e-4


def test_the_exact_test_is_refused_where_more_than_the_last_noise_is_random():
    for hidden in (sp.Dropout(0.5), sp.chain(sp.AddGaussian(0.1), sp.Clip(1.0))):
        client = sp.Client(sp.Gradient(), sp.chain(hidden, sp.AddGaussian(1e-3)))
        with pytest.raises(NotApplicable, match="only randomness is its last noise"):
            sp.membership(observe(people(4), client), people(1, 5), others=people(4))


def test_rounds_with_other_people_add_up_and_stay_valid():
    client = sp.Client(sp.Gradient(), sp.AddGaussian(0.1))
    everybody = people(4 + 60 + 300)
    is_member = torch.arange(64) < 4
    seen = []
    for number in range(4):
        regulars, guests = part(everybody, 0, 4), people(8, seed=10 + number)
        batch = sp.Batch(
            torch.cat([regulars.inputs, guests.inputs]), torch.cat([regulars.labels, guests.labels])
        )
        seen.append(observe(batch, client, seed=number))
    candidates, public = part(everybody, 0, 64), publish(part(everybody, 64, None))
    each = [sp.membership(one, candidates, public=public) for one in seen]
    joined = sp.membership(seen, candidates, public=public)
    alone = [Detection.of(one, is_member).auc for one in each]
    assert Detection.of(joined, is_member).auc > sum(alone) / 4
    flagged = float((joined.p_values[~is_member] <= 0.1).double().mean())
    assert flagged <= 0.1 + 4 * math.sqrt(0.09 / 60 + 0.09 / 152)


def test_a_near_duplicate_scores_between_a_member_and_a_stranger():
    everybody = people(408)
    members, public = part(everybody, 0, 8), publish(part(everybody, 108, None))
    near = (members.inputs + 0.003 * sp.rng(5).normal(members.inputs.shape)).clamp(0, 1)
    candidates = sp.Batch(
        torch.cat([members.inputs, near, everybody.inputs[8:16]]),
        torch.cat([members.labels, members.labels, everybody.labels[8:16]]),
    )
    scores = sp.membership(observe(members), candidates, public=public).scores
    assert scores[:8].min() > scores[8:16].max()
    assert scores[8:16].min() > scores[16:].max()


def test_inputs_alone_are_tested_by_spans_only():
    everybody = people(308)
    seen = observe(part(everybody, 0, 8))
    public = publish(part(everybody, 108, None))
    found = sp.membership(seen, everybody.inputs[:108], public=public)
    assert bool((found.p_values[:8] < 0.01).all())
    assert "span" in found.test[0]


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter, and a frozen head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.base, self.head = nn.Linear(64, 32), nn.Linear(32, 4)
        self.down, self.up = nn.Linear(64, 16, bias=False), nn.Linear(16, 32, bias=False)
        for layer in (self.base, self.head):
            layer.requires_grad_(False)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.head(torch.tanh(self.base(flat) + self.up(self.down(flat))))


def test_an_adapter_spans_its_inputs_up_to_its_rank():
    task = sp.Task(Adapted(), sp.cross_entropy, SMALL)
    found, is_member = detect(PLAIN, size=10, task=task, strangers=100, public=300)
    assert Detection.of(found, is_member).auc == 1.0
    assert "down" in found.test[0]


def test_the_words_of_a_text_are_found_in_the_gradient_of_the_embedding():
    play = sp.data.load("hamlet")
    task = sp.zoo.gpt(domain=play.domain, classes=2, width=32, layers=1, heads=2)
    seen = sp.Threat().observe(PLAIN, task, play.take(range(2)), rng=sp.rng(0))
    rest = play.take(range(102, 302))
    found = sp.membership(seen, play.take(range(102)), public=publish(rest))
    told = Detection.of(found, torch.arange(102) < 2)
    assert told.auc > 0.99


@pytest.mark.parametrize(
    ("candidates", "words"),
    [
        (sp.Batch(torch.zeros(1, 1, 9, 9), torch.tensor([0])), "expected"),
        (sp.Batch(torch.zeros(1, 1, 8, 8), torch.tensor([7])), "expected labels in 0..3"),
        (torch.full((1, 1, 8, 8), math.nan), "expected"),
    ],
)
def test_candidates_of_another_shape_or_domain_get_one_sentence(candidates, words):
    with pytest.raises(InvalidValue, match=words):
        sp.membership(observe(people(4)), candidates, public=publish(people(50, 1)))


def test_what_cannot_be_tested_is_refused_in_one_sentence():
    seen, public = observe(people(4)), publish(people(60, 1))
    other = observe(people(4), task=network(hidden=16))
    with pytest.raises(InvalidValue, match="rounds of one model"):
        sp.membership([seen, other], people(4), public=public)
    with pytest.raises(InvalidValue, match="at least one observation"):
        sp.membership([], people(4), public=public)
    with pytest.raises(InvalidValue, match="public inputs to calibrate on"):
        sp.membership(seen, people(4))
    with pytest.raises(InvalidValue, match="at least 40 public inputs"):
        sp.membership(seen, people(4), public=publish(people(10, 1)))
    with pytest.raises(NotApplicable, match="ends with Gaussian noise"):
        sp.membership(seen, people(4), others=people(3, 2))
    hidden = observe(
        people(30), task=network(), client=sp.Client(sp.Gradient(), sp.AddGaussian(0.1)),
        threat=sp.Threat(knows_batch_size=False),
    )  # fmt: skip
    with pytest.raises(MissingKnowledge, match="batch size"):
        sp.membership(hidden, people(4), public=public)


def test_public_inputs_that_are_candidates_are_left_out():
    everybody = people(100)
    found = sp.membership(
        observe(part(everybody, 0, 4)), part(everybody, 0, 10), public=publish(everybody)
    )
    assert found.notes == ("10 public inputs are candidates and were left out",)
    assert found.strangers == 45


def test_weak_tests_say_that_they_clear_nobody():
    client = sp.Client(sp.Gradient(), sp.AddGaussian(10.0))
    found, _ = detect(client, size=4, strangers=20, public=100)
    assert any("clears nobody" in line for line in found.explain())


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (3, 20), (20, 20)])
def test_intervals_are_those_of_the_beta_distribution(successes, trials):
    rate = Rate(successes, trials)
    low = beta.ppf(0.025, successes, trials - successes + 1) if successes else 0.0
    high = beta.ppf(0.975, successes + 1, trials - successes) if successes < trials else 1.0
    assert rate.low == pytest.approx(low)
    assert rate.high == pytest.approx(high)


def test_the_curve_and_its_area_agree():
    found, is_member = detect(
        sp.Client(sp.Gradient(), sp.AddGaussian(0.3)), size=8, strangers=100, public=200
    )
    told = Detection.of(found, is_member)
    curve = told.curve()
    area = sum((x2 - x1) * (y1 + y2) / 2 for (x1, y1), (x2, y2) in pairwise(curve))
    assert told.auc == pytest.approx(area)
    assert told.tpr_at(0.001) is None
    assert "needs 1000 strangers" in str(told)
