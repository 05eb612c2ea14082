"""Blind separation brings back the inputs of a fully connected layer, whatever follows it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

import seepage as sp
from seepage.attacks.feature_recovery import FeatureRecovery, cocktail_party
from seepage.attacks.feature_recovery._cocktail_party import _compute_edges
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable, UnknownName
from seepage.numerics._source_separation import (
    Contrast,
    minimise_contrast,
    run_fast_ica,
    whitening_matrix,
)
from seepage.probing._first_layer import list_calls
from seepage.scoring import METRICS, pair


def observe(task, batch, *, defense=None, **knows):
    client = sp.Client(sp.Gradient(), defense or sp.chain())
    return sp.Threat(**knows).observe(client, task, batch, rng=sp.rng(0))


def psnr(guess, batch):
    return METRICS["psnr"](pair(guess, batch))


@pytest.fixture(scope="module")
def cifar(data_root):
    return sp.data.load("cifar10")


@pytest.fixture(scope="module")
def pictures():
    return sp.data.load("photos", pixels=16)


def laplacian_sources(count, samples):
    uniform = sp.rng(0).uniform((count, samples)).double() - 0.5
    return -uniform.sign() * torch.log1p(-2 * uniform.abs())


def test_edges_are_the_differences_and_half_the_laplacian_of_scipy(pictures):
    photo = pictures.batch(1).inputs.double()
    made = _compute_edges(photo.flatten(1), pictures.domain.shape)[0].T.numpy()
    rows, columns = (np.diff(photo[0].numpy(), axis=axis) for axis in (1, 2))
    laplacian = np.stack([ndimage.laplace(c)[1:-1, 1:-1] for c in photo[0].numpy()])
    wanted = np.concatenate([a.reshape(3, -1) for a in (rows, columns, laplacian / 2)], axis=1)
    assert np.abs(made - wanted).max() < 1e-12


def test_edges_of_a_mixture_are_the_mixture_of_edges(pictures):
    flat = pictures.batch(3).inputs.double().flatten(1)
    mixing = sp.rng(1).normal((3, 3)).double()
    mixed = torch.einsum("ij,jgc->igc", mixing, _compute_edges(flat, pictures.domain.shape))
    assert torch.allclose(_compute_edges(mixing @ flat, pictures.domain.shape), mixed)


def negentropies_and_correlation(sources):
    """Written out: - sum of negentropies by a Laplacian's entropy, minus half log det corr."""
    sizes = np.abs(sources).mean(1)
    gaussian = 0.5 * np.log(2 * np.pi * np.e * (sources**2).mean(1))
    negentropy = gaussian - np.log(2 * np.e * sizes)
    covariance = sources @ sources.T / sources.shape[1]
    deviations = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(deviations, deviations)
    return -negentropy.sum() - 0.5 * np.linalg.slogdet(correlation)[1]


def test_the_contrast_is_negentropy_and_decorrelation():
    """At the best row lengths it differs from the two, written out, by a constant."""
    mixed = sp.rng(2).normal((3, 3)).double() @ laplacian_sources(3, 4000)
    white = (whitening_matrix(mixed.unsqueeze(2)) @ mixed).unsqueeze(2)
    contrast = Contrast(white)
    gaps = []
    for seed in range(3):
        unmixing = sp.rng(seed).normal((3, 3)).double()
        sources = unmixing @ white.flatten(1)
        # E|s| = 1 is where the derivative by a row's length vanishes.
        best = unmixing / sources.abs().mean(1, keepdim=True)
        expected = negentropies_and_correlation((best @ white.flatten(1)).numpy())
        gaps.append(float(contrast(best)) - expected)
        for longer in (0.8, 1.25):
            assert contrast(longer * best) > contrast(best)
    assert max(gaps) - min(gaps) < 1e-3


def test_independent_sources_come_back_up_to_order_and_scale():
    truth = laplacian_sources(6, 6000)
    mixed = sp.rng(1).normal((6, 6)).double() @ truth
    matrix = whitening_matrix(mixed.unsqueeze(2))
    white = (matrix @ mixed).unsqueeze(2)
    orthogonal = run_fast_ica(white, steps=200, rng=sp.rng(3))
    found, values = minimise_contrast(Contrast(white), orthogonal, steps=100)
    alike = np.abs(np.corrcoef((found @ matrix @ mixed).numpy(), truth.numpy())[:6, 6:])
    assert sorted(alike.argmax(1).tolist()) == list(range(6))
    assert alike.max(1).min() > 0.999
    assert min(values) < values[0]


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu"])
def test_eight_people_come_back_whatever_the_activation(cifar, activation):
    task = sp.zoo.mlp(hidden=(64,), activation=activation, domain=cifar.domain)
    batch = cifar.batch(8, start=100)
    guess = cocktail_party(restarts=1)(observe(task, batch, knows_batch_size=False), rng=sp.rng(1))
    paired = pair(guess, batch)
    assert float(psnr(guess, batch).min()) > 25
    assert bool((paired.guessed_labels == paired.labels).all())
    assert len(guess.trace.finals) == 1


def test_little_noise_costs_little(cifar):
    task = sp.zoo.mlp(hidden=(64,), activation="tanh", domain=cifar.domain)
    batch = cifar.batch(8, start=100)
    seen = observe(task, batch, defense=sp.AddGaussian(1e-4))
    assert float(psnr(cocktail_party(restarts=1)(seen, rng=sp.rng(1)), batch).min()) > 20


def test_bounds_of_pixels_help(cifar):
    task = sp.zoo.mlp(hidden=(64,), activation="tanh", domain=cifar.domain)
    batch = cifar.batch(16, start=1000)
    seen = observe(task, batch)
    free, bounded = (
        psnr(cocktail_party(restarts=1, bounds=weight)(seen, rng=sp.rng(1)), batch).mean()
        for weight in (0.0, 3.0)
    )
    assert bounded > free + 0.5


def test_without_a_bias_the_range_of_pixels_gives_sign_and_size():
    digits = sp.data.load("digits")
    task = sp.zoo.mlp(hidden=(64,), activation="tanh", bias=False, domain=digits.domain)
    batch = digits.batch(4)
    guess = cocktail_party()(observe(task, batch), rng=sp.rng(1))
    assert float(psnr(guess, batch).median()) > 20


def test_features_behind_a_relu_come_back_with_their_length(cifar):
    task = sp.zoo.mlp(hidden=(128, 64), domain=cifar.domain)
    batch = cifar.batch(2, start=50)
    recovery = cocktail_party(layer="hidden2")
    assert isinstance(recovery, FeatureRecovery)
    found = recovery.recover(observe(task, batch), rng=sp.rng(1))
    read = dict(list_calls(task, torch.nn.Linear, cifar.domain.normalise(batch.inputs)))
    truth = read["hidden2"]
    outside = truth - (truth @ found.span) @ found.span.T
    assert float(outside.norm() / truth.norm()) < 1e-5
    assert found.scaled
    assert found.residual < 1e-5
    cosines = torch.cosine_similarity(found.values[:, None], truth[None], dim=2)
    assert float(cosines.amax(1).min()) > 0.95
    near = cosines.argmax(1)
    assert torch.allclose(found.values.norm(dim=1), truth[near].norm(dim=1), rtol=0.2)


def test_what_cannot_be_separated_is_refused_in_one_sentence(pictures):
    attack, batch, again = cocktail_party(), pictures.batch(4), [0, 0, 1, 2]
    wide, narrow = (sp.zoo.mlp(hidden=(width,), domain=pictures.domain) for width in (64, 3))
    twice = replace(batch, inputs=batch.inputs[again], labels=batch.labels[again])
    noisy = observe(wide, batch, defense=sp.AddGaussian(1e-2), knows_batch_size=False)
    with pytest.raises(NotApplicable, match="does not read its input"):
        attack(observe(sp.zoo.lenet(domain=pictures.domain), batch), rng=sp.rng(1))
    with pytest.raises(NotApplicable, match="rank 3 at most, too little to separate 4 examples"):
        attack(observe(narrow, batch), rng=sp.rng(1))
    with pytest.raises(NotApplicable, match="some inputs are equal"):
        attack(observe(wide, twice), rng=sp.rng(1))
    with pytest.raises(MissingKnowledge, match="batch size"):
        attack(noisy, rng=sp.rng(1))
    with pytest.raises(UnknownName, match="did you mean 'hidden1'"):
        cocktail_party(layer="hiden1")(observe(wide, batch), rng=sp.rng(1))
    with pytest.raises(InvalidValue, match="restarts >= 1"):
        cocktail_party(restarts=0)
    with pytest.raises(InvalidValue, match="bounds >= 0"):
        cocktail_party(bounds=-1.0)
    with pytest.raises(UnknownName, match="contrast"):
        cocktail_party(contrast="corners")
