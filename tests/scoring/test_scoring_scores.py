from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from seepage.core import Batch, Paired, Reconstruction, rng
from seepage.core.errors import InvalidValue, UnknownName
from seepage.scoring import (
    L1,
    MSE,
    PSNR,
    ExactMatch,
    LabelAccuracy,
    applicable,
    baseline_scores,
    draw_guess,
    mean_guess,
    score,
)


def noisy(amounts: list[float]) -> tuple[Reconstruction, Batch]:
    batch = Batch(rng(0).uniform((len(amounts), 1, 4, 4)).float(), torch.arange(len(amounts)))
    errors = torch.tensor(amounts).reshape(-1, 1, 1, 1)
    return Reconstruction(batch.inputs + errors), batch


def test_by_default_every_metric_that_fits_is_evaluated():
    scores = score(*noisy([0.1, 0.2]))
    assert list(scores.keys()) == list(scores) == [m.name for m in applicable(scores.paired)]
    assert len(scores) == 6
    assert "psnr" in scores
    assert "ssim" not in scores


@pytest.mark.parametrize("metric", ["psnr", "mse", "l1", "rmse"])
def test_the_worst_off_person_is_the_one_guessed_best_whatever_the_direction(metric):
    scores = score(*noisy([0.2, 0.01, 0.1]))
    assert scores.worst(metric) == 1
    assert scores.ranking(metric) == [1, 2, 0]


def test_nan_counts_as_no_leak():
    @dataclass(frozen=True)
    class Sometimes:
        name: str = "sometimes"
        higher_leaks_more: bool = False

        def __call__(self, paired: Paired) -> torch.Tensor:
            return torch.tensor([torch.nan, 0.5, 0.2])

    scores = score(*noisy([0.1] * 3), metrics=[Sometimes()])
    assert scores.ranking("sometimes") == [2, 1, 0]


def test_rows_keep_the_order_of_the_batch():
    scores = score(*noisy([0.2, 0.01, 0.1]), metrics=[L1(), ExactMatch()])
    rows = scores.rows()
    assert [row["l1"] for row in rows] == pytest.approx([0.2, 0.01, 0.1], abs=1e-6)
    assert [set(row) for row in rows] == [{"l1", "exact"}] * 3


def test_the_table_is_aligned_with_the_worst_off_first():
    scores = score(*noisy([0.2, 0.0, 0.1]), metrics=[PSNR(), LabelAccuracy()])
    lines = repr(scores).splitlines()
    assert [line.split() for line in lines] == [
        ["person", "psnr", "label_accuracy"],
        ["1", "inf", "-"],
        ["2", "20", "-"],
        ["0", "13.98", "-"],
    ]
    assert len({len(line) for line in lines}) == 1


def test_without_psnr_the_first_metric_orders_the_table():
    lines = repr(score(*noisy([0.2, 0.01]), metrics=[MSE(), ExactMatch()])).splitlines()
    assert [line.split()[0] for line in lines] == ["person", "1", "0"]


def test_a_metric_that_was_not_evaluated_is_named_with_its_nearest():
    scores = score(*noisy([0.1]), metrics=[PSNR()])
    with pytest.raises(UnknownName, match="did you mean 'psnr'"):
        scores["pnsr"]
    with pytest.raises(UnknownName, match="unknown metric 'mse'"):
        scores.worst("mse")


def test_metrics_that_share_a_name_or_reduce_over_people_are_refused():
    @dataclass(frozen=True)
    class Reduced:
        name: str = "reduced"
        higher_leaks_more: bool = True

        def __call__(self, paired: Paired) -> torch.Tensor:
            return torch.tensor(0.0)

    guess, batch = noisy([0.1, 0.2])
    with pytest.raises(InvalidValue, match="distinct names"):
        score(guess, batch, metrics=[ExactMatch(), ExactMatch(tolerance=0.1)])
    with pytest.raises(InvalidValue, match="distinct names"):
        score(guess, batch, metrics=[])
    with pytest.raises(InvalidValue, match="one number per person"):
        score(guess, batch, metrics=[Reduced()])


def test_the_peak_reaches_the_metrics():
    guess, batch = noisy([0.1])
    tenfold = score(
        Reconstruction(guess.inputs * 10), Batch(batch.inputs * 10, batch.labels), peak=10.0
    )
    assert torch.allclose(tenfold["psnr"], score(guess, batch)["psnr"], atol=1e-4)


@pytest.mark.parametrize(("scale", "low"), [(2.0, -1.0), (255.0, 0.0)])
def test_inputs_of_another_range_are_refused_until_it_is_given(scale, low):
    truth = low + scale * torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    batch, guess = Batch(truth, torch.tensor([0, 1])), Reconstruction(truth + 0.01 * scale)
    with pytest.raises(InvalidValue, match="give their range as low= and peak="):
        score(guess, batch)
    assert score(guess, batch, low=low, peak=scale)["psnr"].tolist() == pytest.approx([40, 40])


def test_the_mean_guess_errs_by_the_variance_of_the_pool():
    pool = rng(1).uniform((200, 6))
    guess = mean_guess(pool.mean(0), 200)
    scores = score(guess, Batch(pool, torch.arange(200)), metrics=[MSE()])
    assert scores["mse"].mean().item() == pytest.approx(pool.var(0, correction=0).mean().item())


def test_a_draw_is_of_distinct_people_and_repeatable():
    pool = torch.arange(30.0).reshape(30, 1)
    first, again, other = (draw_guess(pool, 10, rng=rng(seed)).inputs for seed in (0, 0, 1))
    assert len(first.unique()) == 10
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_pool_smaller_than_the_batch_is_refused():
    with pytest.raises(InvalidValue, match="pool of at least 3 inputs"):
        draw_guess(torch.zeros(2, 1), 3, rng=rng(0))
    with pytest.raises(InvalidValue, match="at least one person"):
        mean_guess(torch.zeros(1), 0)


def test_a_baseline_knows_the_labels_that_the_adversary_knows():
    batch = Batch(torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([7, 8, 9]))
    pool, labels = torch.tensor([[0.1], [0.3], [0.9]]), torch.tensor([7, 7, 8])
    scores = baseline_scores(batch, pool=pool, labels=labels, metrics=[MSE()], rng=rng(0))
    errors = [0.2**2, 0.1**2, (0.5 - 1.3 / 3) ** 2]
    assert scores["label"]["mse"].tolist() == pytest.approx(errors, rel=1e-5)


def test_an_attack_that_found_something_beats_both_baselines():
    guess, batch = noisy([0.05] * 4)
    pool = rng(7).uniform((50, 1, 4, 4)).float()
    baselines = baseline_scores(batch, pool=pool, metrics=[PSNR()], rng=rng(0))
    assert set(baselines) == {"mean", "draw"}
    attacked = score(guess, batch, metrics=[PSNR()])["psnr"]
    for scores in baselines.values():
        assert list(scores) == ["psnr"]
        assert (scores["psnr"] < attacked - 5).all()
    assert baselines["mean"]["psnr"].mean() > baselines["draw"]["psnr"].mean()
