"""Priors: against plain loops, under vmap, and at exact zeros."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

import seepage as sp
from seepage.core import Statistics
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable
from seepage.domains import Image, Signal
from seepage.search._objective import Candidate
from seepage.search._priors import (
    BatchNormStatistics,
    Decaying,
    GroupConsistency,
    Orthogonality,
    SquaredNorm,
    TotalVariation,
    weigh_variation,
)

DOUBLE = torch.zeros((), dtype=torch.float64)
IMAGES = Image((2, 4, 5), mean=(0.4, 0.6), std=(0.2, 0.5))
SIGNALS = Signal((2, 6), bounds=(-2.0, 2.0))
UPDATE = sp.Update({"w": torch.zeros(1)})


def candidate(normalised, domain=IMAGES, consensus=None, step=0):
    labels = torch.zeros(normalised.shape[0], dtype=torch.long)
    consensus = torch.zeros_like(normalised) if consensus is None else consensus
    return Candidate(normalised, labels, UPDATE, domain, torch.tensor(step), consensus)


def draw(seed, size=3, domain=IMAGES):
    return sp.rng(seed).normal((size, *domain.shape), like=DOUBLE)


def variation(x):
    """Of nested lists (N, C, H, W), by loops."""
    down = [
        abs(row_b - row_a)
        for image in x
        for channel in image
        for above, below in pairwise(channel)
        for row_a, row_b in zip(above, below, strict=True)
    ]
    along = [
        abs(b - a) for image in x for channel in image for row in channel for a, b in pairwise(row)
    ]
    return sum(down) / len(down) + sum(along) / len(along)


def test_total_variation_equals_a_loop():
    x = draw(0)
    plain = TotalVariation(weight=1.0)(candidate(x), None)
    assert float(plain) == pytest.approx(variation(x.tolist()), rel=1e-12)
    absolute = TotalVariation(weight=1.0, absolute=True)(candidate(x), None)
    away = (x - IMAGES.normalise(torch.full((1, *IMAGES.shape), 0.5).double())).abs()
    assert float(absolute) == pytest.approx(variation(away.tolist()), rel=1e-12)


def test_a_constant_image_has_no_variation_and_signs_no_absolute_variation():
    constant = torch.full((2, *IMAGES.shape), 0.3).double()
    assert float(TotalVariation(weight=1.0)(candidate(constant), None)) == 0
    grey = IMAGES.normalise(torch.full((2, *IMAGES.shape), 0.7).double())
    mirrored = IMAGES.normalise(torch.full((2, *IMAGES.shape), 0.3).double())
    flipped = torch.where(draw(0, 2) < 0, mirrored, grey)
    assert float(TotalVariation(weight=1.0, absolute=True)(candidate(flipped), None)) < 1e-12
    assert float(TotalVariation(weight=1.0)(candidate(flipped), None)) > 0.1


def test_total_variation_of_a_signal_is_along_its_one_axis():
    zigzag = torch.tensor([[[0.0, 1.0, 0.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]])
    at = candidate(zigzag, Signal((1, 4)))
    assert float(TotalVariation(weight=1.0)(at, None)) == 0.5


def test_a_single_pixel_has_no_variation():
    at = candidate(torch.ones(2, 1, 1, 1), Image((1, 1, 1)))
    assert float(TotalVariation(weight=1.0)(at, None)) == 0


def test_squared_norm_is_in_natural_units():
    x = draw(1)
    natural = IMAGES.denormalise(x).flatten().tolist()
    expected = sum(v * v for v in natural)
    assert float(SquaredNorm(weight=1.0)(candidate(x), None)) == pytest.approx(expected, rel=1e-12)
    black = IMAGES.normalise(torch.zeros(1, *IMAGES.shape).double())
    assert float(SquaredNorm(weight=1.0)(candidate(black), None)) < 1e-30


def test_orthogonality_sums_squared_products_of_different_inputs():
    x = draw(2)
    rows = IMAGES.denormalise(x).flatten(1).tolist()
    expected = sum(
        sum(a * b for a, b in zip(rows[i], rows[j], strict=True)) ** 2
        for i in range(3)
        for j in range(3)
        if i != j
    )
    term = Orthogonality(weight=1.0)
    assert float(term(candidate(x), None)) == pytest.approx(expected, rel=1e-12)
    assert float(term(candidate(x[:1]), None)) == 0


def test_group_consistency_is_the_mean_squared_distance_from_the_consensus():
    x, consensus = draw(3), draw(4)
    pairs = zip(x.flatten().tolist(), consensus.flatten().tolist(), strict=True)
    expected = sum((a - b) ** 2 for a, b in pairs) / x.numel()
    term = GroupConsistency(weight=1.0)
    assert float(term(candidate(x, consensus=consensus), None)) == pytest.approx(expected)
    assert float(term(candidate(x, consensus=x), None)) == 0


PRIORS = [
    TotalVariation(weight=0.1),
    TotalVariation(weight=0.1, absolute=True),
    SquaredNorm(weight=0.1),
    Orthogonality(weight=0.1),
    GroupConsistency(weight=0.1),
    Decaying(Orthogonality(weight=0.1), every=2),
]


@pytest.mark.parametrize("domain", [IMAGES, SIGNALS], ids=["images", "signals"])
@pytest.mark.parametrize("term", PRIORS, ids=repr)
def test_priors_are_the_same_under_vmap_and_smooth_enough_at_zero(term, domain):
    points = torch.stack([draw(i, 3, domain) for i in range(4)])
    steps, consensus = torch.arange(4), draw(9, 3, domain)

    def row(x, step):
        at = replace(candidate(x, domain, consensus=consensus), step=step)
        return term(at, None)

    apart = torch.stack([row(x, step) for x, step in zip(points, steps, strict=True)])
    assert torch.allclose(vmap(row)(points, steps), apart, rtol=1e-12)
    blank = torch.zeros_like(points[0])
    for x in (points[0], blank, domain.normalise(blank)):
        assert grad(row)(x, steps[3]).isfinite().all()


class Normalised(nn.Module):
    """Two convolutions with batch normalisation; the second is registered first."""

    def __init__(self):
        super().__init__()
        self.late = nn.BatchNorm2d(4)
        self.early = nn.BatchNorm2d(3)
        self.conv1 = nn.Conv2d(2, 3, 3)
        self.conv2 = nn.Conv2d(3, 4, 2)
        self.head = nn.Linear(4 * 1 * 2, 3)

    def forward(self, x):
        x = torch.relu(self.early(self.conv1(x)))
        return self.head(torch.relu(self.late(self.conv2(x))).flatten(1))


def network(mode="eval"):
    torch.manual_seed(0)
    model = Normalised().double()
    with torch.no_grad():
        for layer in (model.early, model.late):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)
    return sp.Task(model, sp.cross_entropy, IMAGES, mode=mode)


def observe(batchnorm, size=3):
    batch = sp.Batch(IMAGES.sample(size, rng=sp.rng(5)).double(), torch.arange(size) % 3)
    threat = sp.Threat(knows_labels=True, batchnorm=batchnorm)
    return batch, threat.observe(sp.Client(sp.Gradient()), network(), batch, rng=sp.rng(0))


def by_channel(features):
    means = [float(features[:, c].mean()) for c in range(features.shape[1])]
    biased = [float(features[:, c].var(correction=0)) for c in range(features.shape[1])]
    return means, biased


def distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5


def test_without_the_batchs_own_statistics_the_running_ones_are_matched():
    _, seen = observe("running")
    x = draw(6)
    model = network().model.eval()
    with torch.no_grad():
        first = model.conv1(x)
        second = model.conv2(torch.relu(model.early(first)))
    parts = []
    for features, layer in ((first, model.early), (second, model.late)):
        means, biased = by_channel(features)
        parts.append(
            distance(means, layer.running_mean.tolist())
            + distance(biased, layer.running_var.tolist())
        )
    value = BatchNormStatistics(weight=1.0)(candidate(x), seen)
    assert float(value) == pytest.approx(sum(parts), rel=1e-10)
    stressed = BatchNormStatistics(weight=1.0, first_layer=10.0)(candidate(x), seen)
    assert float(stressed) == pytest.approx(10 * parts[0] + parts[1], rel=1e-10)


def test_exact_statistics_are_met_by_the_truth_and_by_nothing_else():
    batch, seen = observe("exact")
    term = BatchNormStatistics(weight=1.0)
    truth = IMAGES.normalise(batch.inputs)
    assert float(term(candidate(truth), seen)) < 1e-12
    assert float(term(candidate(draw(6)), seen)) > 0.1


def test_an_unknown_batch_falls_back_to_what_was_broadcast():
    _, seen = observe("unknown")
    assert seen.statistics is None
    assert float(BatchNormStatistics(weight=1.0)(candidate(draw(6)), seen)) > 0.1


@pytest.mark.parametrize("batchnorm", ["exact", "running", "unknown"])
def test_batch_statistics_are_the_same_under_vmap_with_statistics_by_row(batchnorm):
    _, seen = observe(batchnorm)
    term = BatchNormStatistics(weight=1.0, first_layer=2.0)
    points = torch.stack([draw(i) for i in range(4)])
    shift = torch.linspace(0, 1, 4, dtype=torch.float64)

    def row(x, by):
        known = seen.statistics and {
            n: Statistics(s.mean + by, s.variance + by) for n, s in seen.statistics.items()
        }
        return term(candidate(x), replace(seen, statistics=known))

    apart = torch.stack([row(x, by) for x, by in zip(points, shift, strict=True)])
    assert torch.allclose(vmap(row)(points, shift), apart, rtol=1e-10)
    slopes = vmap(grad(row))(points, shift)
    assert torch.allclose(slopes[1], grad(row)(points[1], shift[1]), rtol=1e-8, atol=1e-12)


def test_the_slope_is_finite_where_all_statistics_agree():
    batch, seen = observe("exact")
    truth = IMAGES.normalise(batch.inputs)
    known = sp.clients.batch_statistics(seen.task, IMAGES.denormalise(truth))
    seen = replace(seen, statistics=known)

    def at(x):
        return BatchNormStatistics(weight=1.0)(candidate(x), seen)

    assert float(at(truth)) == 0
    assert grad(at)(truth).isfinite().all()


def test_a_network_without_batch_normalisation_is_refused(photos):
    task = sp.zoo.mlp(hidden=(4,))
    batch = sp.Batch(photos.inputs[:1], photos.labels[:1])
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    at = candidate(task.domain.normalise(batch.inputs), task.domain)
    with pytest.raises(NotApplicable, match="runs no batch normalisation"):
        BatchNormStatistics(weight=1.0)(at, seen)


def test_statistics_that_nobody_broadcasts_are_asked_for():
    layers = (nn.BatchNorm2d(2, track_running_stats=False), nn.Flatten(), nn.Linear(40, 3))
    task = sp.Task(nn.Sequential(*layers), sp.cross_entropy, IMAGES)
    batch = sp.Batch(IMAGES.sample(3, rng=sp.rng(5)), torch.arange(3))
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    with pytest.raises(MissingKnowledge, match=r"use Threat\(batchnorm='exact'\)"):
        BatchNormStatistics(weight=1.0)(candidate(draw(0).float()), seen)


def test_a_falling_variation_ends_at_its_last_weight():
    term = weigh_variation((0.1, 1e-5), steps=400)
    assert term.weight == 0.1
    assert term.factor ** (400 / term.every) == pytest.approx(1e-4)
    assert weigh_variation(0.1, steps=400) == TotalVariation(weight=0.1)


@pytest.mark.parametrize("weight", [(0.1,), (1e-3, 1e-2), (0.1, 0.0), (0.3, 0.2, 0.1)])
def test_a_falling_variation_needs_two_weights_that_fall(weight):
    with pytest.raises(InvalidValue, match="a first and a last weight"):
        weigh_variation(weight, steps=10)
