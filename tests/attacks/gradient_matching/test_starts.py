"""Starts: their laws, their shapes, their independence of the labels."""

import pytest
import torch
from scipy import stats

import seepage as sp
from seepage.core.errors import InvalidValue
from seepage.domains import CIFAR10, Signal
from seepage.search._objective import Layout
from seepage.search._search import NormalStart, UniformStart, WarmStart

DOUBLE = torch.zeros((), dtype=torch.float64)
IMAGES = Layout(2, CIFAR10)
SIGNALS = Layout(3, Signal((1, 10), bounds=(-2.0, 2.0)))
WARM = CIFAR10.sample(2, rng=sp.rng(7))
STARTS = [NormalStart(), UniformStart(), WarmStart(WARM, spread=0.1)]


def inputs(start, layout=IMAGES, seed=0):
    return layout.normalised(start(layout, rng=sp.rng(seed), like=DOUBLE))


@pytest.mark.parametrize("start", STARTS, ids=repr)
def test_a_start_is_a_flat_point_with_logits_that_do_not_change_its_inputs(start):
    seeking = Layout(2, CIFAR10, classes=10)
    point = start(seeking, rng=sp.rng(0), like=DOUBLE)
    assert point.shape == (seeking.size,)
    assert point.dtype == torch.float64
    assert torch.equal(seeking.normalised(point), inputs(start))
    assert start(IMAGES, rng=sp.rng(0), like=torch.zeros(())).dtype == torch.float32
    assert torch.equal(point, start(seeking, rng=sp.rng(0), like=DOUBLE))


@pytest.mark.parametrize("start", STARTS, ids=repr)
def test_label_logits_are_standard_normal(start):
    many = Layout(2, CIFAR10, classes=2_000)
    point = start(many, rng=sp.rng(0), like=DOUBLE)
    assert stats.kstest(point[2 * 3072 :].numpy(), "norm").pvalue > 1e-3


def test_the_normal_start_is_normal_in_normalised_coordinates():
    assert stats.kstest(inputs(NormalStart()).flatten().numpy(), "norm").pvalue > 1e-3


def test_the_uniform_start_is_uniform_in_natural_units():
    natural = CIFAR10.denormalise(inputs(UniformStart())).flatten().numpy()
    assert stats.kstest(natural, "uniform").pvalue > 1e-3
    signals = SIGNALS.domain.denormalise(inputs(UniformStart(), SIGNALS))
    assert -2 <= signals.min() < -1 < 1 < signals.max() <= 2


def test_restarts_differ():
    for start in STARTS:
        assert not torch.equal(inputs(start, seed=0), inputs(start, seed=1))


def test_the_warm_start_is_the_guess_it_was_given():
    natural = CIFAR10.denormalise(inputs(WarmStart(WARM)))
    assert torch.allclose(natural, WARM.double(), atol=1e-12)
    spread = inputs(WarmStart(WARM, spread=0.1)) - inputs(WarmStart(WARM))
    assert spread.std() == pytest.approx(0.1, rel=0.05)
    with pytest.raises(InvalidValue, match=r"expected a warm start of shape \(3, 1, 10\)"):
        inputs(WarmStart(WARM), SIGNALS)


def test_two_warm_starts_are_told_apart_by_name():
    assert repr(WarmStart(WARM)) != repr(WarmStart(WARM + 1e-6))
    assert repr(WarmStart(WARM)) == repr(WarmStart(WARM.clone()))


def test_impossible_starts_are_refused():
    with pytest.raises(InvalidValue, match="spread >= 0"):
        WarmStart(WARM, spread=-1.0)
