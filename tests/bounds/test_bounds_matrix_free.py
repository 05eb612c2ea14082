"""Bounds from products alone against bounds from the whole matrix."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.bounds import (
    CramerRao,
    CramerRaoRelaxed,
    Information,
    Inversion,
    VanTrees,
    information,
)
from seepage.bounds._information import Channel
from seepage.bounds._inverse_trace import _dense_trace, half_width
from seepage.core._progress import listen
from seepage.core.errors import InvalidValue
from seepage.numerics._krylov import krylov, lanczos

NOISY = sp.Client(sp.Gradient(), sp.AddGaussian(0.01))
SMALL = sp.domains.Image((3, 8, 8), mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
FROM_PRODUCTS = Inversion(held=0, probes=16, steps=160)


@pytest.fixture(scope="module")
def people():
    """Two photos, cut to their middle."""
    photos = sp.data.bundled("photos", size=2)
    return sp.Batch(photos.inputs[..., 12:20, 12:20], photos.labels)


def spread(values, seed=0):
    """A symmetric matrix with these eigenvalues."""
    drawn = sp.rng(seed).normal((len(values), len(values)), like=values)
    basis, _ = torch.linalg.qr(drawn)
    return basis @ torch.diag(values) @ basis.T


@pytest.mark.parametrize("kind", [CramerRao, VanTrees])
def test_it_agrees_with_the_whole_matrix_within_two_percent(kind, people):
    task = sp.zoo.mlp(hidden=(12,), activation="sigmoid", domain=SMALL)
    whole = kind()(NOISY, task, people, rng=sp.rng(0))
    estimated = kind(inversion=FROM_PRODUCTS)(NOISY, task, people, rng=sp.rng(0))
    assert torch.allclose(estimated.value, whole.value, rtol=0.02)
    assert estimated.value.tolist() != whole.value.tolist()
    assert any("estimated" in phrase for phrase in estimated.assumptions)
    assert not any("estimated" in phrase for phrase in whole.assumptions)


def test_it_agrees_on_a_convolutional_network(people):
    task = sp.zoo.lenet(domain=SMALL)
    one = sp.Batch(people.inputs[:1], people.labels[:1])
    whole = VanTrees(points=2)(NOISY, task, one, rng=sp.rng(0))
    estimated = VanTrees(points=2, inversion=FROM_PRODUCTS)(NOISY, task, one, rng=sp.rng(0))
    assert torch.allclose(estimated.value, whole.value, rtol=0.02)


def test_products_are_those_of_the_whole_matrix_also_through_a_batchs_own_statistics(people):
    layers = nn.Conv2d(3, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    model = nn.Sequential(*layers, nn.Linear(2, 10))
    task = sp.Task(model, sp.cross_entropy, sp.domains.Image((3, 4, 4))).in_mode("train")
    cut = sp.Batch(people.inputs[..., :4, :4], people.labels)
    about = information(Channel(NOISY, std=0.5), task, cut)
    rows = sp.rng(0).normal((3, about.unknowns), like=about.points)
    columns = torch.autograd.functional.jacobian(about.signal, about.points[0])
    assert torch.allclose(about.products(rows), rows @ columns.T @ columns / 0.25, rtol=1e-6)
    assert torch.allclose(
        about.block_traces(2), columns.square().sum(0).reshape(2, -1).sum(1) / 0.25, rtol=1e-8
    )


def test_a_krylov_space_has_an_orthonormal_basis_in_which_the_matrix_is_tridiagonal():
    matrix = spread(torch.logspace(-6, 2, 30, dtype=torch.float64))
    own = torch.linalg.eigh(matrix).eigenvectors
    # The second start lies in a space of three dimensions.
    start = torch.stack([sp.rng(1).normal((30,), like=matrix), own[:, 27:].sum(1)])
    *_, space = krylov(lambda r: r @ matrix, start, steps=12)
    for basis, tridiagonal, size in zip(space.basis, space.matrices(), (12, 3), strict=True):
        assert torch.allclose(basis @ basis.T, torch.diag((torch.arange(12) < size).double()))
        inside = tridiagonal[:size, :size]
        assert torch.allclose((basis @ matrix @ basis.T)[:size, :size], inside, atol=1e-12)
    assert not space.ended


def test_a_short_krylov_space_gives_too_little_and_never_too_much():
    matrix = spread(torch.logspace(-4, 2, 60, dtype=torch.float64))
    start = sp.rng(1).normal((5, 60), like=matrix)
    exact = (start * torch.linalg.solve(matrix, start.T).T).sum(1)
    forms = [
        (start * lanczos(lambda r: r @ matrix, start, steps=k, tolerance=1e-12).solutions).sum(1)
        for k in (5, 20, 40, 60)
    ]
    for short, long in pairwise(forms):
        assert bool((short < long).all())
    assert torch.allclose(forms[-1], exact, rtol=1e-6)


def test_a_space_that_cannot_grow_ends_the_search():
    matrix = spread(torch.tensor([1.0] * 5 + [3.0] * 5, dtype=torch.float64))
    start = sp.rng(1).normal((2, 10), like=matrix)
    found = lanczos(lambda r: r @ matrix, start, steps=10, tolerance=1e-15)
    assert (found.steps, found.settled) == (2, True)
    assert torch.allclose(found.solutions, torch.linalg.solve(matrix, start.T).T)
    assert (found.least, found.most) == (pytest.approx(1.0), pytest.approx(3.0))


def test_the_interval_covers_the_trace():
    matrix = spread(torch.logspace(-1, 1, 80, dtype=torch.float64))
    about = Information(lambda x: torch.linalg.cholesky(matrix).T @ x, matrix[:1], std=1.0)
    whole = _dense_trace(about.dense(), examples=4)
    found = Inversion(held=0, probes=32)(about, 4, rng=sp.rng(0))
    assert bool(((found.value - whole.value).abs() < 2 * found.error).all())
    assert bool((found.error < 0.5 * found.value).all())


def test_two_probes_are_trusted_as_little_as_students_distribution_says():
    drawn = torch.tensor([[1.0], [3.0]])
    assert float(half_width(drawn)) == pytest.approx(12.706, rel=1e-4)


def test_progress_is_told():
    steps = []
    matrix = spread(torch.logspace(-2, 1, 30, dtype=torch.float64))
    with listen(lambda step, total, _: steps.append((step, total))):
        lanczos(lambda r: r @ matrix, torch.eye(30, dtype=torch.float64)[:2], steps=6, tolerance=1)
    assert steps[0] == (1, 6)


def test_an_update_with_too_few_entries_is_said_in_words(people):
    task = sp.zoo.mlp(hidden=(1,), activation="sigmoid", domain=SMALL)
    found = CramerRao(inversion=FROM_PRODUCTS)(NOISY, task, people, rng=sp.rng(0))
    assert "213 entries for 384 unknowns" in found.remark
    assert "VanTrees" in found.remark
    biased = VanTrees(inversion=FROM_PRODUCTS)(NOISY, task, people, rng=sp.rng(0))
    assert not biased.vacuous


def test_a_direction_that_changes_nothing_is_noticed():
    hidden = torch.eye(20, dtype=torch.float64)
    hidden[3] = 0
    about = Information(lambda x: hidden @ x, hidden[:1], std=1.0)
    with pytest.raises(sp.SeepageError, match="leaves the update as it is"):
        Inversion(held=0, steps=20)(about, 1, rng=sp.rng(0))


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(InvalidValue, match="probes >= 2"):
        Inversion(probes=1)
    with pytest.raises(InvalidValue, match="probes >= 2"):
        CramerRaoRelaxed(probes=1)
