from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.core import Batch, Reconstruction, rng
from seepage.core.errors import InvalidValue
from seepage.scoring import pair, score


def people(size: int, *, seed: int = 0, shape: tuple[int, ...] = (1, 4, 4)) -> Batch:
    return Batch(rng(seed).uniform((size, *shape)).float(), torch.arange(size))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(1, 5), seed=st.integers(0, 10_000))
def test_the_assignment_is_the_cheapest_of_all_permutations(size, seed):
    truth = rng(seed).uniform((size, 3))
    guesses = rng(seed).fork("guess").uniform((size, 3))
    paired = pair(Reconstruction(guesses), Batch(truth, torch.arange(size)))
    cheapest = min(
        sum(((guesses[g] - truth[i]) ** 2).mean().item() for i, g in enumerate(order))
        for order in permutations(range(size))
    )
    assert (paired.guess - paired.truth).square().mean(1).sum().item() == pytest.approx(cheapest)
    assert torch.equal(paired.guess, guesses[list(paired.assignment)])


def test_shuffled_truth_is_put_back_in_order_with_its_labels():
    batch = people(6)
    order = rng(3).permutation(6)
    paired = pair(Reconstruction(batch.inputs[order], batch.labels[order]), batch)
    assert torch.equal(paired.guess, batch.inputs)
    assert torch.equal(paired.guessed_labels, batch.labels)
    assert [int(order[i]) for i in paired.assignment] == list(range(6))


def test_identical_guesses_are_never_given_to_one_person_twice():
    batch = people(5)
    paired = pair(Reconstruction(batch.inputs[:1].repeat(5, 1, 1, 1)), batch)
    assert sorted(paired.assignment) == [0, 1, 2, 3, 4]


def test_one_good_guess_repeated_leaks_one_person_only():
    batch = people(4)
    scores = score(Reconstruction(batch.inputs[2:3].repeat(4, 1, 1, 1)), batch)
    assert scores["psnr"].isinf().tolist() == [False, False, True, False]


@pytest.mark.parametrize("off", [0.0, 0.1])
def test_people_with_equal_inputs_are_told_apart_by_their_labels(off):
    row = torch.rand(1, 6, generator=torch.Generator().manual_seed(0))
    guess = Reconstruction(row.repeat(3, 1) + off, torch.tensor([5, 3, 4]))
    paired = pair(guess, Batch(row.repeat(3, 1), torch.tensor([3, 4, 5])))
    assert paired.assignment == (1, 2, 0)


def test_people_without_a_guess_get_mid_grey_and_no_credit():
    batch = people(3)
    paired = pair(Reconstruction(batch.inputs[[2]], torch.tensor([2])), batch)
    assert paired.assignment == (-1, -1, 0)
    assert torch.equal(paired.guess[:2], torch.full((2, 1, 4, 4), 0.5))
    assert torch.equal(paired.guess[2], batch.inputs[2])
    assert paired.guessed_labels.tolist() == [-1, -1, 2]


def test_no_guess_at_all_is_mid_grey_for_everybody():
    paired = pair(Reconstruction(torch.empty(0, 1, 4, 4)), people(2))
    assert paired.assignment == (-1, -1)
    assert paired.guess.unique().tolist() == [0.5]


def test_mid_grey_is_the_middle_of_the_stated_range():
    beats = Batch(torch.zeros(2, 1, 5), torch.arange(2))
    paired = pair(Reconstruction(torch.ones(1, 1, 5)), beats, peak=4.0, low=-2.0)
    assert paired.guess[paired.assignment.index(-1)].unique().tolist() == [0.0]
    assert paired.peak == 4.0


def test_extra_guesses_are_dropped():
    batch = people(2)
    noise = rng(9).uniform((3, 1, 4, 4)).float()
    paired = pair(Reconstruction(torch.cat([noise, batch.inputs])), batch)
    assert paired.assignment == (3, 4)
    assert torch.equal(paired.guess, batch.inputs)


def test_a_diverged_attack_is_scored_as_mid_grey_where_it_diverged():
    batch = people(2)
    guesses = batch.inputs.clone()
    guesses[0, 0, 0, 0] = torch.nan
    guesses[1, 0, 0, 0] = -torch.inf
    paired = pair(Reconstruction(guesses), batch)
    assert paired.assignment == (0, 1)
    assert paired.guess[:, 0, 0, 0].tolist() == [0.5, 0.5]
    assert torch.equal(paired.guess[:, 0, 1:], batch.inputs[:, 0, 1:])


def test_guesses_too_large_to_square_do_not_crash_the_pairing():
    batch = people(3)
    guesses = torch.full((3, 1, 4, 4), 1e200, dtype=torch.float64)
    guesses[1] = batch.inputs[0]
    assert pair(Reconstruction(guesses), batch).assignment[0] == 1


def test_nothing_of_the_caller_is_changed():
    batch = people(3)
    guesses = batch.inputs.flip(0) + 0.01
    guesses[0, 0, 0, 0] = torch.nan
    labels = torch.tensor([2, 1, 0])
    kept = [t.clone() for t in (batch.inputs, batch.labels, guesses, labels)]
    score(Reconstruction(guesses, labels), batch)
    for before, after in zip(kept, (batch.inputs, batch.labels, guesses, labels), strict=True):
        assert torch.equal(before.nan_to_num(7.0), after.nan_to_num(7.0))


@pytest.mark.parametrize("truth", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("guess", [torch.float16, torch.float32, torch.float64])
def test_precisions_may_differ(truth, guess):
    batch = people(2).to(dtype=truth)
    paired = pair(Reconstruction(batch.inputs.to(guess).requires_grad_()), batch)
    assert paired.guess.dtype == paired.truth.dtype == torch.promote_types(truth, guess)
    assert not paired.guess.requires_grad
    assert torch.allclose(paired.guess.double(), batch.inputs.double(), atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("truth", ["cpu", "cuda"])
@pytest.mark.parametrize("guess", ["cpu", "cuda"])
def test_devices_may_differ_and_scores_do_not(truth, guess):
    batch = Batch(rng(0).uniform((3, 3, 32, 32)).float(), torch.arange(3))
    guesses = batch.inputs.flip(0) + 0.02
    here = score(Reconstruction(guesses, batch.labels), batch)
    there = score(Reconstruction(guesses.to(guess), batch.labels.to(guess)), batch.to(device=truth))
    assert there.paired.assignment == here.paired.assignment
    for name in here:
        tolerance = 1e-3 if name == "lpips" else 1e-9
        assert torch.allclose(there[name], here[name], atol=tolerance)


def test_another_shape_is_refused_in_one_sentence():
    with pytest.raises(InvalidValue, match=r"expected guesses \(B, 1, 4, 4\).*got \(2, 3, 4, 4\)"):
        pair(Reconstruction(torch.zeros(2, 3, 4, 4)), people(2))


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_a_range_without_width_is_refused(peak):
    with pytest.raises(InvalidValue, match="peak > 0"):
        pair(Reconstruction(torch.zeros(2, 1, 4, 4)), people(2), peak=peak)


def test_a_batch_that_is_not_finite_is_refused():
    batch = Batch(torch.full((1, 2), torch.nan), torch.tensor([0]))
    with pytest.raises(InvalidValue, match="finite private inputs"):
        pair(Reconstruction(torch.zeros(1, 2)), batch)
