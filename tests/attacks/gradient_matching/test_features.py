"""Features of the candidate against recovered ones: values, order, and what cannot be."""

import numpy as np
import pytest
import torch
from torch.func import vmap

import seepage as sp
from seepage.core.errors import InvalidValue, UnknownName
from seepage.search import Candidate, FeatureMatching
from seepage.search._feature_matching import _greedy_matching, features_at

TASK = sp.zoo.mlp(hidden=(16, 12), activation="tanh", domain=sp.domains.Image((1, 4, 4)))
LAYER = "hidden2"


def candidate(inputs, labels=None):
    labels = torch.zeros(len(inputs), dtype=torch.long) if labels is None else labels
    normalised = TASK.domain.normalise(inputs)
    update = sp.Client(sp.Gradient())(TASK, sp.Batch(inputs, labels), rng=sp.rng(0))
    return Candidate(normalised, labels, update, TASK.domain, torch.tensor(0), normalised)


def observation(inputs):
    labels = torch.zeros(len(inputs), dtype=torch.long)
    batch = sp.Batch(inputs, labels)
    return sp.Threat().observe(sp.Client(sp.Gradient()), TASK, batch, rng=sp.rng(0))


@pytest.fixture(scope="module")
def inputs():
    return TASK.domain.sample(4, rng=sp.rng(3))


def first_layers(inputs):
    """Written out: tanh of the first layer, in numpy."""
    weight, bias = (TASK.parameters[f"hidden1.{part}"].numpy() for part in ("weight", "bias"))
    return np.tanh(inputs.flatten(1).numpy() @ weight.T + bias)


def matching(comparison, features, **options):
    features = torch.as_tensor(features, dtype=torch.float32)
    return FeatureMatching(
        weight=1.0, layer=LAYER, features=features, comparison=comparison, **options
    )


def test_features_are_what_the_layer_reads(inputs):
    found = features_at(TASK, LAYER, inputs).detach().numpy()
    assert np.abs(found - first_layers(inputs)).max() < 1e-6


def test_the_three_comparisons_as_they_are_written(inputs):
    ours = first_layers(inputs)
    theirs = ours[::-1] + 0.05 * np.random.default_rng(0).normal(size=ours.shape)
    seen, guess = observation(inputs), candidate(inputs)
    pairs = list(zip(ours, theirs[::-1], strict=True))
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]
    assert float(matching("cosine", -3 * theirs)(guess, seen)) == pytest.approx(
        1 - np.mean(np.square(cosines)), abs=1e-5
    )
    distances = [((a - b) ** 2).sum() / (b**2).sum() for a, b in pairs]
    assert float(matching("distance", theirs)(guess, seen)) == pytest.approx(
        np.mean(distances), abs=1e-5
    )
    two = theirs[:2]
    rest = ours.T - two.T @ np.linalg.lstsq(two.T, ours.T, rcond=None)[0]
    shares = (rest**2).sum(0) / (ours**2).sum(1)
    assert float(matching("span", two)(guess, seen)) == pytest.approx(shares.mean(), abs=1e-5)


@pytest.mark.parametrize("comparison", ["cosine", "distance", "span"])
def test_nothing_is_to_be_gained_at_the_truth_in_any_order(inputs, comparison):
    term = matching(comparison, first_layers(inputs)[[2, 0, 3, 1]])
    assert float(term(candidate(inputs), observation(inputs))) < 1e-6


def test_greedy_matching_takes_the_largest_first_under_vmap():
    many = sp.rng(0).uniform((5, 6, 6))
    for alike, taken in zip(many, vmap(_greedy_matching)(many), strict=True):
        left, expected = alike.numpy().copy(), np.zeros((6, 6))
        for _ in range(6):
            row, column = np.unravel_index(left.argmax(), left.shape)
            expected[row, column] = 1
            left[row], left[:, column] = -1, -1
        assert np.array_equal(taken.numpy(), expected)


@pytest.mark.parametrize("comparison", ["cosine", "distance"])
def test_inputs_without_a_feature_are_left_alone(inputs, comparison):
    """Two features are given to the inputs they resemble most; the others do not matter."""
    ours = first_layers(inputs)
    theirs = ours[[3, 1]] + 0.05 * np.random.default_rng(1).normal(size=(2, ours.shape[1]))
    pairs = list(zip(ours[[3, 1]], theirs, strict=True))
    if comparison == "cosine":
        each = [1 - (a @ b) ** 2 / (a @ a) / (b @ b) for a, b in pairs]
    else:
        each = [((a - b) ** 2).sum() / (b @ b) for a, b in pairs]
    guess = candidate(inputs.clone().requires_grad_())
    value = matching(comparison, theirs)(guess, observation(inputs))
    assert float(value.detach()) == pytest.approx(np.mean(each), abs=1e-5)


def test_labels_go_before_likeness(inputs):
    """With the labels of the features swapped, every input is held to the wrong one."""
    features, labels = first_layers(inputs), torch.arange(4)
    seen, guess = observation(inputs), candidate(inputs, labels)
    right = matching("distance", features, labels=labels)
    wrong = matching("distance", features, labels=labels.flip(0))
    assert float(right(guess, seen)) < 1e-6
    assert float(wrong(guess, seen)) > 0.1


def test_a_dead_feature_costs_a_finite_value(inputs):
    term = matching("cosine", np.zeros((4, 16)))
    assert float(term(candidate(inputs), observation(inputs))) == pytest.approx(1.0)


def test_bad_features_are_refused_in_one_sentence(inputs):
    with pytest.raises(UnknownName, match="comparison"):
        matching("angle", np.ones((4, 16)))
    with pytest.raises(InvalidValue, match="finite features"):
        matching("cosine", np.full((4, 16), np.nan))
    with pytest.raises(InvalidValue, match="no more features than the 4 inputs, got 5"):
        matching("cosine", np.ones((5, 16)))(candidate(inputs), observation(inputs))
    elsewhere = FeatureMatching(weight=1.0, layer="hiden2", features=torch.ones(4, 16))
    with pytest.raises(UnknownName, match="did you mean 'hidden2'"):
        elsewhere(candidate(inputs), observation(inputs))
