"""Laws of images and signals."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.domains import CIFAR10, CIFAR100, IMAGENET, MNIST, Image, Signal

moderate = st.floats(-3, 3)


@st.composite
def boxes(draw):
    channels = draw(st.integers(1, 4))
    by_channel = {"min_size": channels, "max_size": channels}
    low = draw(moderate)
    options = {
        "mean": tuple(draw(st.lists(moderate, **by_channel))),
        "std": tuple(draw(st.lists(st.floats(0.05, 3), **by_channel))),
        "bounds": (low, low + draw(st.floats(0.1, 5))),
    }
    if draw(st.booleans()):
        return Image((channels, draw(st.integers(1, 5)), draw(st.integers(1, 5))), **options)
    return Signal((channels, draw(st.integers(1, 9))), **options)


def noise(domain, seed=0, dtype=torch.float64):
    return 10 * sp.rng(seed).normal((2, *domain.shape), like=torch.zeros((), dtype=dtype))


@given(boxes())
@settings(max_examples=60, deadline=None)
def test_denormalising_undoes_normalising_both_ways_round(domain):
    inputs = noise(domain)
    there_and_back = domain.denormalise(domain.normalise(inputs))
    back_and_there = domain.normalise(domain.denormalise(inputs))
    assert torch.allclose(there_and_back, inputs, atol=1e-9)
    assert torch.allclose(back_and_there, inputs, atol=1e-9)


@given(boxes())
@settings(max_examples=60, deadline=None)
def test_normalising_works_channel_by_channel(domain):
    inputs = noise(domain)
    for c, (mean, std) in enumerate(zip(domain.mean, domain.std, strict=True)):
        assert torch.allclose(domain.normalise(inputs)[:, c], (inputs[:, c] - mean) / std)


@given(boxes(), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_projecting_gives_the_nearest_valid_input_and_leaves_it_there(domain, seed):
    inputs = noise(domain, seed)
    projected = domain.project(inputs)
    domain.check(projected)
    assert torch.equal(domain.project(projected), projected)
    low, high = domain.bounds
    nearest = [min(max(value, low), high) for value in inputs.flatten().tolist()]
    assert projected.flatten().tolist() == nearest


@given(boxes(), st.integers(0, 100), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_samples_are_valid_inputs_that_the_key_decides(domain, seed, size):
    drawn = domain.sample(size, rng=sp.rng(seed))
    assert drawn.shape == (size, *domain.shape)
    domain.check(drawn)
    assert torch.equal(drawn, domain.sample(size, rng=sp.rng(seed)))


@given(boxes(), st.integers(0, 100), st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=60, deadline=None)
def test_projected_inputs_are_valid_in_either_precision(domain, seed, dtype):
    domain.check(domain.project(noise(domain, seed, dtype)))


def test_samples_fill_the_range_evenly():
    drawn = Signal((1, 20_000), bounds=(-2.0, 2.0)).sample(1, rng=sp.rng(0))
    assert abs(float(drawn.mean())) < 0.05
    assert abs(float(drawn.std()) - 4 / math.sqrt(12)) < 0.02


@pytest.mark.parametrize("domain", [Image((3, 4, 4)), Signal((2, 7))], ids=repr)
def test_a_domain_without_statistics_does_not_normalise(domain):
    inputs = noise(domain)
    assert torch.equal(domain.normalise(inputs), inputs)


@pytest.mark.parametrize("domain", [CIFAR10, CIFAR100, MNIST], ids=repr)
def test_a_known_domain_is_centred_on_its_own_data(domain, data_root):
    name = {CIFAR10: "cifar10", CIFAR100: "cifar100", MNIST: "mnist"}[domain]
    if not list(data_root.glob(f"{name}_*.npz")):
        pytest.skip(f"no {name} in the data folder")
    inputs = domain.normalise(sp.data.load(name, split="train").inputs[:2000])
    axes = (0, 2, 3)
    assert inputs.mean(axes).abs().max() < 0.1
    assert (inputs.std(axes) - 1).abs().max() < 0.1


def test_domains_are_values():
    assert Image((3, 4, 4)) == Image((3, 4, 4), mean=(0.0,) * 3, std=(1.0,) * 3)
    assert Image((3, 4, 4)) != Image((3, 4, 5))
    assert len({CIFAR10, MNIST, IMAGENET, Image((1, 28, 28))}) == 4


def test_precision_is_kept():
    inputs = noise(CIFAR10)
    assert CIFAR10.normalise(inputs).dtype == CIFAR10.denormalise(inputs).dtype == torch.float64


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Image((3, 32)), r"expected a shape \(C, H, W\), got \(3, 32\)"),
        (lambda: Image((3, 0, 4)), r"expected a shape \(C, H, W\), got \(3, 0, 4\)"),
        (lambda: Signal((1, 2, 3)), r"expected a shape \(C, L\), got \(1, 2, 3\)"),
        (lambda: Image((3, 4, 4), mean=(0.5,)), "expected 3 channel means"),
        (lambda: Image((1, 4, 4), std=(0.0,)), "positive deviations"),
        (lambda: Signal((1, 4), std=(-1.0,)), "positive deviations"),
        (lambda: Signal((1, 4), bounds=(1.0, 1.0)), "low < high, got"),
        (lambda: Signal((1, 4), bounds=(0.0, math.nan)), "low < high, got"),
    ],
)
def test_impossible_domains_are_refused(build, said):
    with pytest.raises(InvalidValue, match=said):
        build()


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (torch.zeros(2, 3, 4, 5), r"expected inputs \(B, 3, 4, 4\), got \(2, 3, 4, 5\)"),
        (torch.zeros(3, 4, 4), r"expected inputs \(B, 3, 4, 4\), got \(3, 4, 4\)"),
        (torch.full((1, 3, 4, 4), 255.0), r"outside; .* divide by 255\?"),
        (torch.full((1, 3, 4, 4), -0.1), r"in \[0, 1\], got 48 of 48 values outside"),
        (torch.stack([torch.zeros(3, 4, 4), torch.full((3, 4, 4), math.nan)]), "in input 1"),
        (torch.full((1, 3, 4, 4), math.inf), "NaN or infinity in input 0"),
    ],
)
def test_invalid_inputs_are_refused_with_what_to_do(inputs, said):
    with pytest.raises(InvalidValue, match=said):
        Image((3, 4, 4)).check(inputs)


def test_signals_are_not_told_to_divide_by_255():
    with pytest.raises(InvalidValue, match="rescale the signals"):
        Signal((1, 4)).check(torch.full((1, 1, 4), 2.0))


def test_a_first_use_in_inference_mode_does_not_spoil_later_ones():
    domain = Image((1, 2, 2), mean=(0.123,), std=(0.456,))
    with torch.inference_mode():
        domain.normalise(torch.zeros(1, 1, 2, 2))
    inputs = torch.zeros(1, 1, 2, 2, requires_grad=True)
    domain.normalise(inputs).square().sum().backward()
    assert inputs.grad is not None
