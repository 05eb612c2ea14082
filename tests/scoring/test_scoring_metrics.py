from __future__ import annotations

import math

import pytest
import torch

from seepage.core import Batch, Metric, Paired, Reconstruction, rng
from seepage.core._construct import _serialise
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.scoring import (
    L1,
    METRICS,
    MSE,
    PSNR,
    RMSE,
    SSIM,
    ExactMatch,
    LabelAccuracy,
    applicable,
    catalogue,
    pair,
    score,
)

TEXTS = ("token_accuracy", "token_recall", "token_precision", "rouge_l")
ELSEWHERE = ("lpips", "feature_accuracy", *TEXTS)
EVERYWHERE = [m for m in METRICS.values() if m.name not in ELSEWHERE]


def paired_images(size: int, shape: tuple[int, ...], *, seed: int, peak: float = 1.0) -> Paired:
    """Smooth-ish images and guesses from nearly right to unrelated."""
    truth = rng(seed).uniform((size, *shape)).cumsum(-1) / shape[-1]
    amount = torch.linspace(0.02, 1.0, size).reshape(-1, *(1 for _ in shape))
    guess = truth + amount * (rng(seed).fork("guess").uniform((size, *shape)) - 0.4)
    labels = torch.arange(size)
    order = tuple(range(size))
    return Paired(truth * peak, guess * peak, labels, labels, order, peak)


@pytest.mark.parametrize("peak", [1.0, 255.0])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 32, 32), (3, 64, 64), (1, 64, 48), (3, 11, 40)])
def test_psnr_and_ssim_agree_with_scikit_image(shape, peak):
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    paired = paired_images(10, shape, seed=1, peak=peak)
    psnr, ssim = PSNR()(paired), SSIM()(paired)
    for i in range(10):
        truth, guess = paired.truth[i].numpy(), paired.guess[i].numpy()
        assert abs(psnr[i] - peak_signal_noise_ratio(truth, guess, data_range=peak)) < 1e-4
        reference = structural_similarity(
            truth,
            guess,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=peak,
            channel_axis=0,
        )
        assert abs(ssim[i] - reference) < 1e-4


@pytest.mark.parametrize("error", [0.5, -0.01])
def test_a_constant_error_has_its_closed_form(error):
    truth = rng(0).uniform((2, 1, 16, 16))
    paired = Paired(truth, truth + error, torch.arange(2), None, (0, 1))
    assert torch.allclose(MSE()(paired), torch.full((2,), error**2).double())
    assert torch.allclose(RMSE()(paired), torch.full((2,), abs(error)).double())
    assert torch.allclose(L1()(paired), torch.full((2,), abs(error)).double())
    assert torch.allclose(PSNR()(paired), torch.full((2,), -20 * math.log10(abs(error))).double())


@pytest.mark.parametrize("metric", EVERYWHERE, ids=lambda m: m.name)
def test_the_truth_scores_perfectly(metric):
    perfect = {"psnr": torch.inf, "ssim": 1.0, "label_accuracy": 1.0, "exact": 1.0}
    truth = rng(0).uniform((3, 3, 16, 16)).float()
    paired = Paired(truth, truth.clone(), torch.arange(3), torch.arange(3), (0, 1, 2))
    assert metric(paired).tolist() == pytest.approx([perfect.get(metric.name, 0.0)] * 3)


@pytest.mark.parametrize("metric", EVERYWHERE, ids=lambda m: m.name)
def test_scores_follow_people_and_are_not_reduced(metric):
    paired = paired_images(5, (3, 16, 16), seed=2)
    order = [3, 0, 4, 1, 2]
    moved = Paired(
        paired.truth[order], paired.guess[order], paired.labels[order], paired.labels, (0,) * 5
    )
    scores = metric(paired)
    assert isinstance(metric, Metric)
    assert scores.shape == (5,)
    assert scores.dtype == torch.float64
    if metric.name != "label_accuracy":
        assert torch.allclose(metric(moved), scores[order])


@pytest.mark.parametrize("name", ["mse", "rmse", "psnr", "ssim", "l1"])
def test_a_closer_guess_leaks_more(name):
    scores = METRICS[name](paired_images(8, (3, 32, 32), seed=3))
    steps = scores.diff()
    assert bool((steps < 0).all() if METRICS[name].higher_leaks_more else (steps > 0).all())


def test_one_exact_person_does_not_make_the_batch_infinite():
    batch = Batch(rng(0).uniform((3, 1, 4, 4)).float(), torch.arange(3))
    guess = batch.inputs.clone()
    guess[[0, 2]] += 0.1
    psnr = PSNR()(pair(Reconstruction(guess), batch))
    assert psnr.isinf().tolist() == [False, True, False]
    assert psnr[[0, 2]].tolist() == pytest.approx([20.0, 20.0], abs=1e-4)


def test_guesses_outside_the_range_are_not_clamped():
    paired = Paired(torch.ones(1, 4), torch.full((1, 4), 3.0), torch.tensor([0]), None, (0,))
    assert MSE()(paired).item() == 4.0


def test_exact_means_the_same_8_bit_image():
    bits = torch.randint(0, 256, (4, 1, 8, 8), generator=rng(0).generator())
    truth = bits.double() / 255
    errors = torch.tensor([0.0, 0.49, -0.49, 0.51]).reshape(4, 1, 1, 1).double() / 255
    paired = Paired(truth, truth + errors, torch.arange(4), None, (0, 1, 2, 3))
    rounded = (paired.guess * 255).round().long() == bits
    expected = rounded.flatten(1).all(1).double()
    assert expected.tolist() == [1.0, 1.0, 1.0, 0.0]
    assert torch.equal(ExactMatch()(paired), expected)


def test_one_wrong_pixel_is_not_an_exact_match():
    truth = torch.zeros(1, 3, 8, 8)
    guess = truth.clone()
    guess[0, 1, 2, 3] = 0.1
    paired = Paired(truth, guess, torch.tensor([0]), None, (0,))
    assert ExactMatch()(paired).tolist() == [0.0]
    assert ExactMatch(tolerance=0.2)(paired).tolist() == [1.0]


@pytest.mark.parametrize("tolerance", [0.0, -0.1, 1.0, float("nan")])
def test_a_meaningless_tolerance_is_refused(tolerance):
    with pytest.raises(InvalidValue, match=r"expected tolerance in \(0, 1\)"):
        ExactMatch(tolerance=tolerance)


def test_label_accuracy_is_nan_when_the_attack_named_no_labels():
    inputs = torch.zeros(2, 4)
    paired = Paired(inputs, inputs, torch.arange(2), None, (0, 1))
    assert LabelAccuracy()(paired).isnan().all()


def test_of_mixed_labels_the_heaviest_class_counts():
    inputs = torch.zeros(2, 4)
    mixed = torch.tensor([[0.3, 0.7], [0.6, 0.4]])
    paired = Paired(inputs, inputs, mixed, torch.tensor([1, 1]), (0, 1))
    assert LabelAccuracy()(paired).tolist() == [1.0, 0.0]


def test_a_person_without_a_guess_keeps_the_label_private():
    batch = Batch(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    guess = Reconstruction(torch.tensor([[1.0]]), torch.tensor([[0.9, 0.1]]))
    assert LabelAccuracy()(pair(guess, batch)).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("shape", [(1, 140), (3, 10, 32), (3, 32, 10), (12,)])
def test_ssim_says_why_it_does_not_fit(shape):
    inputs = torch.zeros(1, *shape)
    with pytest.raises(NotApplicable, match="at least 11 x 11 pixels"):
        SSIM()(Paired(inputs, inputs, torch.tensor([0]), None, (0,)))


def test_signals_and_small_images_get_the_metrics_that_fit():
    def names(*shape: int) -> set[str]:
        inputs = torch.zeros(1, *shape)
        fitting = applicable(Paired(inputs, inputs, torch.tensor([0]), None, (0,)))
        return {m.name for m in fitting}

    everywhere = {"mse", "rmse", "psnr", "l1", "label_accuracy", "exact"}
    assert names(1, 140) == names(3, 10, 10) == everywhere
    assert names(1, 28, 28) == everywhere | {"ssim"}


def test_every_metric_is_in_the_catalogue_under_its_own_name():
    assert list(METRICS) == [
        "mse",
        "rmse",
        "psnr",
        "ssim",
        "lpips",
        "l1",
        "label_accuracy",
        "exact",
        "feature_accuracy",
        *TEXTS,
    ]
    assert all(metric.name == name for name, metric in METRICS.items())
    assert all(line.strip() for line in catalogue().values())


def test_a_metric_is_a_value_with_a_serial_form():
    assert ExactMatch() == ExactMatch(tolerance=0.5 / 255)
    assert _serialise(ExactMatch(tolerance=0.1)) == {
        "name": "ExactMatch",
        "arguments": {"tolerance": 0.1},
    }
    assert _serialise(PSNR()) == {"name": "PSNR", "arguments": {}}


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-2.5, 0.5), (3.0, 7.0)])
def test_scores_are_the_same_for_the_same_images_in_another_range(low, high):
    truth = rng(0).uniform((2, 3, 16, 16))
    guess = (truth + 0.2 * rng(1).normal((2, 3, 16, 16))).clamp(0, 1)
    width, metrics = high - low, [PSNR(), SSIM(), ExactMatch()]
    plain = score(Reconstruction(guess), Batch(truth, torch.arange(2)), metrics=metrics)
    moved = score(
        Reconstruction(low + width * guess),
        Batch(low + width * truth, torch.arange(2)),
        metrics=metrics,
        peak=width,
        low=low,
    )
    for name in plain:
        torch.testing.assert_close(moved[name], plain[name], rtol=1e-3, atol=1e-4)
