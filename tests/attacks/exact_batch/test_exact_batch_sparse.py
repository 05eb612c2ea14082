"""Sparsity alone takes large batches apart; each step against an independent computation."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.exact_batch import (
    Complementarity,
    ExactBatch,
    KernelSampling,
    SparseDirections,
    sparse_probability,
)
from seepage.attacks.exact_batch._exact_batch import select_searches
from seepage.attacks.exact_batch._span_factors import (
    Candidates,
    Factors,
    empty_candidates,
    factorise_gradient,
    find_silent,
)
from seepage.attacks.exact_batch._sparse_directions import (
    _add_multiple,
    _separate_pairs,
    descend_from_starts,
    fit_trimmed,
    normalise_rows,
    whiten_rows,
)
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.scoring import pair


def draw(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def sparse(people, neurons, *, seed=0):
    """Columns with every second entry zero, orthonormalised, and the directions of the columns."""
    generator = np.random.default_rng(seed)
    columns = generator.standard_normal((neurons, people))
    columns *= generator.random((neurons, people)) < 0.5
    span, mixing = np.linalg.qr(columns)
    directions = mixing.T / np.linalg.norm(mixing.T, axis=1, keepdims=True)
    return torch.from_numpy(span), torch.from_numpy(directions)


def factors_of(span):
    people = span.shape[1]
    return Factors(span, torch.eye(people, dtype=span.dtype), span.sum(0), 1e-14)


def observe(task, batch, *, local=None, defense=None):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return sp.Threat().observe(client, task, batch, rng=sp.rng(0))


def scene(data_root, name, people, hidden, **client):
    data = sp.data.load(name)
    task = sp.zoo.mlp(hidden=hidden, domain=data.domain, seed=0).to(dtype=torch.float64)
    batch = data.batch(people, start=200).to(dtype=torch.float64)
    return observe(task, batch, **client), batch


def largest_error(guess, batch):
    paired = pair(guess, batch)
    return float((paired.guess - paired.truth).abs().max())


SPARSE = ExactBatch(searches=(SparseDirections(),))


@pytest.mark.slow
def test_forty_people_come_back_where_least_squares_and_sampling_find_nobody(data_root):
    seen, batch = scene(data_root, "cifar10", 40, (640, 128))
    guess = sp.attacks.exact_batch()(seen, rng=sp.rng(1))
    assert largest_error(guess, batch) < 1e-10
    assert sp.score(guess, batch)["label_accuracy"].min() == 1
    assert guess.certificate.unique
    few = ExactBatch(searches=(Complementarity(rounds=2),))
    assert largest_error(few(seen, rng=sp.rng(1)), batch) > 0.1
    with pytest.raises(NotApplicable, match=r"40 examples .* probability .* smaller batch"):
        ExactBatch(searches=(KernelSampling(),))(seen, rng=sp.rng(1))


@pytest.mark.parametrize("name", ["mnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_people_with_few_labels_hide_one_another_and_come_back_all_the_same(data_root, name):
    seen, batch = scene(data_root, name, 24, (384,))
    guess = SPARSE(seen, rng=sp.rng(1))
    assert largest_error(guess, batch) < 1e-10
    assert guess.certificate.unique


@pytest.mark.slow
def test_after_local_steps_zeros_stay_zeros_for_twenty_people(data_root):
    seen, batch = scene(data_root, "cifar10", 20, (512, 64), local=sp.FedAvg(lr=0.01, steps=3))
    attack = ExactBatch(searches=(SparseDirections(rounds=6),))
    assert largest_error(attack(seen, rng=sp.rng(1)), batch) < 1e-8


class Residual(nn.Module):
    """Two layers read the rectified one, so that least squares does not apply."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.Linear(768, 384)
        self.inner = nn.Linear(384, 384)
        self.head = nn.Linear(384, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.relu(self.reader(x.flatten(1)))
        return self.head(z + torch.tanh(self.inner(z)))


def test_the_layer_above_is_not_needed_for_twenty_four_people():
    batch = sp.data.bundled("photos", size=24, pixels=16).to(dtype=torch.float64)
    torch.manual_seed(0)
    domain = sp.domains.Image((3, 16, 16), mean=(0.5,) * 3, std=(0.25,) * 3)
    task = sp.Task(Residual(), sp.cross_entropy, domain)
    seen = observe(task.to(dtype=torch.float64), batch)
    guess = sp.attacks.exact_batch()(seen, rng=sp.rng(1))
    assert largest_error(guess, batch) < 1e-7
    assert guess.certificate.unique


@pytest.mark.slow
def test_noise_is_owned_up_to(data_root):
    for std, exact in ((1e-10, True), (1e-3, None)):
        seen, batch = scene(data_root, "mnist", 20, (400, 64), defense=sp.AddGaussian(std))
        attack = ExactBatch(searches=(Complementarity(rounds=4), SparseDirections(rounds=8)))
        guess = attack(seen, rng=sp.rng(1))
        assert guess.certificate.unique is exact
        assert (largest_error(guess, batch) < 1e-3) == bool(exact)


def test_rows_are_white_and_the_map_leads_back():
    rows = draw(200, 7) @ draw(7, 7, seed=1)
    white, there = whiten_rows(rows, 7)
    np.testing.assert_allclose(np.cov(white.numpy().T, bias=True, ddof=0), np.eye(7), atol=0.2)
    np.testing.assert_allclose(white.T @ white / 200, np.eye(7), atol=1e-10)
    np.testing.assert_allclose(rows @ there, white, atol=1e-12)


def test_a_step_goes_down_the_gradient_of_the_smoothed_count():
    white, start = draw(60, 5), normalise_rows(draw(3, 5, seed=1))
    at = start.clone().requires_grad_()
    count = (1 - torch.exp(-(at @ white.T).square() / 2)).mean(1).sum()
    (slope,) = torch.autograd.grad(count, at)
    expected = start - 0.75 * (slope - (slope * start).sum(1, keepdim=True) * start)
    np.testing.assert_allclose(
        descend_from_starts(white, start, steps=1), normalise_rows(expected), rtol=1e-10
    )


def test_descent_stays_on_the_sphere_and_makes_entries_small():
    span, directions = sparse(8, 400)
    white, there = whiten_rows(span, 8)
    ends = descend_from_starts(white, draw(64, 8), steps=100)
    np.testing.assert_allclose(ends.norm(dim=1), np.ones(64), rtol=1e-12)
    cosines = (normalise_rows(ends @ there.T) @ directions.T).abs()
    assert int((cosines > 0.95).any(0).sum()) == 8


def test_trimmed_squares_make_a_direction_exact_and_each_step_is_that_of_a_loop():
    span, directions = sparse(6, 120)
    near = normalise_rows(directions + 0.1 * draw(6, 6, seed=2))
    step = fit_trimmed(span, near, silent=0.35, steps=1)
    for start, ours in zip(near.numpy(), step.numpy(), strict=True):
        quietest = np.argsort(np.abs(span.numpy() @ start))[: int(0.35 * 120)]
        theirs = np.linalg.svd(span.numpy()[quietest])[2][-1]
        assert abs(theirs @ ours) == pytest.approx(1, abs=1e-9)
    exact = fit_trimmed(span, near, silent=0.35, steps=8)
    np.testing.assert_allclose((exact * directions).sum(1).abs(), np.ones(6), atol=1e-12)


def test_who_is_taken_out_leaves_one_dimension_less_and_is_put_back():
    span, directions = sparse(6, 200)
    one, other = directions[0], directions[1]
    silent = find_silent(span, one[None], 1e-9)[0]
    assert np.linalg.matrix_rank(span[silent].numpy(), tol=1e-9) == 5
    lacking = normalise_rows((other - 0.7 * one)[None])
    back = _add_multiple(span[~silent], lacking, one)[0]
    assert abs(float(back @ other)) == pytest.approx(1, abs=1e-12)


def test_a_sparse_difference_and_one_of_the_two_give_the_other():
    span, directions = sparse(5, 300)
    factors = factors_of(span)
    difference = normalise_rows((directions[0] - directions[1])[None])
    # Zeros of the difference are those they share; more make it count as sparse.
    kept = ~(find_silent(span, directions[:2], 1e-9).sum(0) == 1) | (torch.arange(300) % 3 == 0)
    span = span[kept]
    assert float(find_silent(span, difference, 1e-9).double().mean()) > 0.3
    people = Candidates(directions[:1], torch.tensor([0.5]).double())
    ends = Candidates(difference, torch.tensor([0.6]).double())
    found = _separate_pairs(factors, span, ends, people)
    assert float((found.directions @ directions[1]).abs().max()) == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("key", [0, 1, 2])
def test_every_key_finds_all_six_directions(key):
    for seed in range(3):
        span, directions = sparse(6, 200, seed=seed)
        # A quarter of these starts finds all six as well.
        search = SparseDirections(starts=256, steps=30)
        found = search(factors_of(span), empty_candidates(span), rng=sp.rng(key)).directions
        cosines = (found @ directions.T).abs().amax(0)
        np.testing.assert_allclose(cosines, np.ones(6), rtol=0, atol=1e-8)


def test_the_order_of_engines_follows_the_batch_size():
    for people, first in ((8, Complementarity), (40, SparseDirections)):
        factors = replace(factors_of(sparse(people, 800)[0]), above=draw(800, 9))
        assert isinstance(select_searches(ExactBatch().searches, factors)[0], first)


def test_odds_rise_with_neurons_per_person_and_hopeless_ones_are_refused():
    odds = [sparse_probability(neurons=m, batch_size=64) for m in (256, 512, 768, 1024, 2048)]
    assert odds == sorted(odds)
    assert odds[0] < 0.01 < 0.99 < odds[-1]
    alike = [sparse_probability(neurons=1024, batch_size=64, sent=r) for r in (9, 20, 40, 64)]
    assert alike == sorted(alike)
    weight, bias = draw(256, 64) @ draw(64, 300, seed=1), draw(256, seed=2)
    with pytest.raises(NotApplicable, match="64 examples through 256 neurons"):
        select_searches((SparseDirections(),), factorise_gradient(weight, bias, batch_size=64))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "l4"}, "expected engine in .*'sparse'.* got 'l4'"),
        ({"sparse_starts": 0}, "expected starts >= 1, got 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InvalidValue, match=said):
        sp.attacks.exact_batch(**options)


def test_a_share_of_silent_neurons_is_a_share():
    with pytest.raises(InvalidValue, match=r"expected 0 < silent < 1, got 1\.5"):
        SparseDirections(silent=1.5)
