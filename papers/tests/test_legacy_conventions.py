from __future__ import annotations

import math

import pytest
import torch

from seepage.core import Batch, Paired, Reconstruction, rng
from seepage.domains import CIFAR10, Image
from seepage.scoring import L1, PSNR, pair
from seepage_papers.legacy import (
    best_match_gradattack,
    l1_sum_002,
    psnr_normalised_003,
    psnr_peak255_004,
    rmse_gradattack,
)


@pytest.fixture
def paired() -> Paired:
    truth = rng(0).uniform((4, 3, 32, 32)).double()
    guess = truth + 0.1 * rng(1).normal((4, 3, 32, 32)).double()
    return Paired(truth, guess, torch.arange(4), None, (0, 1, 2, 3))


@pytest.mark.parametrize("deviation", [0.25, 1.0, 2.0])
def test_normalising_by_one_deviation_shifts_psnr_by_its_decibels(paired, deviation):
    domain = Image((3, 32, 32), mean=(0.4, 0.5, 0.6), std=(deviation,) * 3)
    expected = PSNR()(paired) + 20 * math.log10(deviation)
    assert torch.allclose(psnr_normalised_003(paired, domain), expected)


def test_psnr_of_normalised_cifar10_is_twelve_decibels_lower(paired):
    shift = PSNR()(paired) - psnr_normalised_003(paired, CIFAR10)
    assert torch.allclose(shift, torch.full((4,), 12.0).double(), atol=0.1)


def test_peak_255_adds_48_decibels(paired):
    expected = PSNR()(paired) + 20 * math.log10(255)
    assert 20 * math.log10(255) == pytest.approx(48.13, abs=0.005)
    assert torch.allclose(psnr_peak255_004(paired), expected)


def test_the_sum_is_the_mean_times_the_number_of_entries(paired):
    assert torch.allclose(l1_sum_002(paired), L1()(paired) * 3 * 32 * 32)


def test_gradattacks_rmse_does_not_see_the_size_of_the_error(paired):
    errors = paired.guess - paired.truth
    tiny = Paired(paired.truth, paired.truth + errors / 1000, paired.labels, None, (0, 1, 2, 3))
    assert torch.allclose(rmse_gradattack(tiny), rmse_gradattack(paired), atol=1e-9)
    constant = Paired(paired.truth, paired.truth + 0.001, paired.labels, None, (0, 1, 2, 3))
    assert torch.allclose(rmse_gradattack(constant), torch.ones(4).double())


def test_gradattacks_rmse_of_k_equal_errors_among_n_is_the_root_of_their_share():
    guess = torch.zeros(1, 100)
    guess[0, :9] = torch.tensor([0.3, -0.3, 0.3] * 3)
    labels = torch.tensor([0])
    value = rmse_gradattack(Paired(torch.zeros(1, 100), guess, labels, None, (0,)))
    assert value.item() == pytest.approx(0.3)


def test_best_match_lets_one_recovered_image_pass_for_the_whole_batch():
    batch = Batch(rng(0).uniform((4, 1, 4, 4)).float(), torch.arange(4))
    repeated = Reconstruction(batch.inputs[2:3].repeat(4, 1, 1, 1))
    optimistic = best_match_gradattack(repeated, batch, PSNR(), higher_leaks_more=True)
    assert optimistic.isinf().all()
    assert int(PSNR()(pair(repeated, batch)).isinf().sum()) == 1


def test_best_match_is_the_extreme_of_the_full_matrix():
    truth, guesses = rng(0).uniform((3, 5)).double(), rng(1).uniform((6, 5)).double()
    batch = Batch(truth, torch.arange(3))
    best = best_match_gradattack(Reconstruction(guesses), batch, L1(), higher_leaks_more=False)
    matrix = torch.cdist(guesses, truth, p=1) / 5
    assert torch.allclose(best, matrix.amin(1))
