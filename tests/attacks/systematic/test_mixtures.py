"""Clients that mix: the mixtures that the network saw, and the way back to private inputs."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

import seepage as sp
from seepage.attacks import teacher_forced
from seepage.attacks._cut_network import cut_network, observe_inputs, observe_mixtures
from seepage.attacks.feature_recovery import Features
from seepage.core import Mixing
from seepage.scoring import METRICS, pair
from seepage.search._feature_matching import features_at
from seepage.search.fast import case_simulation, use_known_statistics
from seepage.search.fast._row_simulation import SharedWeights, shared_simulation

PEOPLE = 4


class Sure(nn.Module):
    """Two normalised convolutions, and a classifier that is sure of what it says."""

    def __init__(self, sure: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.Tanh(),
            nn.Conv2d(24, 12, 3, stride=2, padding=1),
            nn.BatchNorm2d(12),
            nn.Tanh(),
            nn.Flatten(),
        )
        self.head = nn.Linear(12 * 16, 10)
        self.head.weight.data *= sure

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@pytest.fixture(scope="module")
def pictures():
    return sp.data.load("photos", pixels=8)


@pytest.fixture(scope="module")
def task(pictures):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sp.Task(Sure(5.0), sp.cross_entropy, pictures.domain)


@pytest.fixture(scope="module")
def exact(task):
    return task.to(dtype=torch.float64)


@pytest.fixture(scope="module")
def batch(pictures):
    """In the order of its labels, two of which are equal, as a server is told them."""
    drawn = pictures.batch(PEOPLE).to(dtype=torch.float64)
    return sp.Batch(drawn.inputs, torch.tensor([1, 4, 4, 7]))


def observe(task, batch, defense, threat=None, *, seed=0):
    client = sp.Client(sp.Gradient(), defense)
    return (threat or sp.Threat.strongest()).observe(client, task, batch, rng=sp.rng(seed))


def trained_on(task, batch, defense, *, seed=0):
    """What the client's network saw, which no adversary is told."""
    client = sp.Client(sp.Gradient(), defense)
    (prepared,) = client.share(task.in_mode("train"), batch, rng=sp.rng(seed)).prepared_batches
    return prepared.batch


def true_features(seen, inputs):
    values = features_at(seen.task, "head", inputs).detach()
    return Features("head", values, torch.linalg.qr(values.T).Q, True, 0.0)


def below_inputs(seen, mixed):
    """The network below the last layer, as a search for private inputs sees it."""
    mixtures, mixing = observe_mixtures(seen)
    return observe_inputs(cut_network(mixtures, true_features(seen, mixed.inputs)), mixing)


def apart(found, wanted):
    return float((found.flat() - wanted.flat()).norm() / wanted.flat().norm())


def row(found, seen, place):
    """What one row shares, as an update."""
    return replace(seen.update, tensors={name: t[place].detach() for name, t in found.items()})


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("k", [2, 4])
def test_mixtures_have_the_labels_that_the_client_mixed(exact, batch, k, soft):
    seen = observe(exact, batch, sp.MixUp(k))
    mixed = trained_on(exact, batch, sp.MixUp(k))
    known = replace(seen, labels=one_hot(seen.labels, 10).double()) if soft else seen
    mixtures, mixing = observe_mixtures(known)
    torch.testing.assert_close(mixtures.labels, mixed.labels)
    assert mixing is seen.mixing
    assert apart(mixtures.simulate(mixed.inputs, mixtures.labels), seen.update) < 1e-12
    assert apart(mixtures.simulate(batch.inputs, mixtures.labels), seen.update) > 0.1


@pytest.mark.parametrize(
    "defense", [sp.MixUp(2), sp.MixUp(4), sp.chain(sp.MixUp(2), sp.Clip(1e-3))], ids=repr
)
def test_private_inputs_share_what_the_network_below_shared_of_their_mixtures(
    exact, batch, defense
):
    seen = observe(exact, batch, defense)
    lower = below_inputs(seen, trained_on(exact, batch, defense))
    assert lower.labels.shape == (PEOPLE, 12 * 16)
    assert set(lower.update.tensors) == {n for n in seen.update.tensors if n.startswith("body")}
    assert apart(lower.simulate(batch.inputs, lower.labels), lower.update) < 1e-6
    for others in (batch.inputs.roll(1, 0), 1 - batch.inputs, batch.inputs.flip(3)):
        assert apart(lower.simulate(others, lower.labels), lower.update) > 0.1


def test_labels_before_mixing_are_found_unless_mixtures_made_alike_disagree(exact, batch):
    seen = observe(exact, batch, sp.MixUp(2))
    weights = seen.mixing.coefficients
    mixtures, _ = observe_mixtures(seen)
    draw = torch.Generator().manual_seed(0)
    wanted = torch.randn(PEOPLE, 7, dtype=torch.float64, generator=draw)
    of_all = replace(mixtures, labels=weights @ wanted)
    torch.testing.assert_close(observe_inputs(of_all, seen.mixing).labels, wanted)
    twice = replace(mixtures, labels=torch.cat([weights, weights.flip(0)]) @ wanted)
    both = Mixing(torch.cat([weights, weights.flip(0)]))
    torch.testing.assert_close(observe_inputs(twice, both).labels, wanted)
    # Two mixtures made alike, of which different things are said.
    deficient = Mixing(weights[[0, 1, 2, 2]])
    assert observe_inputs(of_all, deficient) is None
    assert (
        observe_inputs(replace(mixtures, labels=of_all.labels[[0, 1, 2, 2]]), deficient) is not None
    )


def test_what_was_not_mixed_or_is_not_told_how_is_left_as_it_is(exact, batch):
    for defense, threat in (
        (sp.chain(), sp.Threat.strongest()),
        (sp.Clip(1.0), sp.Threat.strongest()),
        (sp.MixUp(2), sp.Threat.realistic()),
        (sp.InstaHide(2), sp.Threat.strongest()),
    ):
        seen = observe(exact, batch, defense, threat)
        mixtures, mixing = observe_mixtures(seen)
        assert mixtures is seen
        assert mixing is None
    unlabelled = replace(observe(exact, batch, sp.MixUp(2)), labels=None)
    assert observe_mixtures(unlabelled)[0] is unlabelled


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("mixtures", [3, PEOPLE])
def test_rows_are_mixed_together_as_they_are_one_by_one(exact, batch, mixtures, soft):
    seen = observe(exact, batch, sp.MixUp(2))
    mixing = Mixing(seen.mixing.coefficients[:mixtures])
    seen = replace(seen, simulate=replace(seen.simulate, mixing=mixing))
    shared = shared_simulation(seen)
    assert isinstance(shared, SharedWeights)
    inputs = torch.stack([batch.inputs, batch.inputs.flip(3)])
    labels = torch.stack([batch.labels, batch.labels.flip(0)])
    if soft:
        draw = torch.Generator().manual_seed(0)
        labels = torch.rand(2, PEOPLE, 10, dtype=torch.float64, generator=draw).softmax(2)
    found = shared(exact.domain.normalise(inputs), labels)
    for place in range(2):
        alone = seen.simulate(inputs[place], labels[place])
        assert set(found) == set(alone.tensors)
        for name, tensor in alone.tensors.items():
            torch.testing.assert_close(found[name][place], tensor, rtol=1e-8, atol=1e-12)
    assert apart(row(found, seen, 0), row(found, seen, 1)) > 0.1


@pytest.mark.parametrize("strategy", ["in_turn", "vectorised", "shared"])
@pytest.mark.parametrize("forced", [False, True])
def test_at_private_inputs_rows_share_what_was_observed(exact, batch, strategy, forced):
    seen = observe(exact, batch, sp.MixUp(2))
    if forced:
        seen = below_inputs(seen, trained_on(exact, batch, sp.MixUp(2)))
    plain = case_simulation([seen], rows=2, strategy=strategy)
    given = use_known_statistics(plain, [seen])
    normal = exact.domain.normalise(batch.inputs)
    labels = seen.labels.expand(2, *seen.labels.shape)
    for simulate in (plain, given):
        found = simulate(torch.stack([normal, 0.5 * normal]), labels)
        assert apart(row(found, seen, 0), seen.update) < 1e-6
        dimmed = apart(row(found, seen, 1), seen.update)
    # Given statistics tell the contrast, which the batch's own take away.
    assert dimmed > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_of_whom_a_sure_network_saw_mixtures_more_is_recovered_by_their_features(
    task, pictures, seed
):
    private = pictures.batch(PEOPLE)
    seen = observe(task, private, sp.MixUp(2), seed=seed)
    attack = teacher_forced(steps=200)

    def psnr(attack):
        return float(METRICS["psnr"](pair(attack(seen, rng=sp.rng(seed)), private)).mean())

    forced = psnr(attack)
    assert forced > 17
    assert forced > psnr(replace(attack, features=None)) + 2


@pytest.mark.parametrize(
    ("defense", "threat"),
    [(sp.InstaHide(2), sp.Threat.strongest()), (sp.MixUp(2), sp.Threat.realistic())],
    ids=["signs flipped", "mixing unknown"],
)
def test_where_encodings_are_searched_for_slopes_are_of_their_probabilities(
    exact, batch, defense, threat
):
    seen = observe(exact, batch, defense, threat)
    encoded = trained_on(exact, batch, defense)
    order = sorted(range(PEOPLE), key=lambda place: encoded.labels[place].tolist())
    encodings = encoded.inputs[order]
    assert seen.labels.shape == (PEOPLE, 10)
    lower = cut_network(seen, true_features(seen, encodings))
    assert lower.labels.shape == (PEOPLE, 12 * 16)
    assert apart(lower.simulate(encodings, lower.labels), lower.update) < 1e-9
    assert apart(lower.simulate(batch.inputs, lower.labels), lower.update) > 0.1


def test_features_of_encodings_are_recovered_and_given_by_themselves(exact, batch):
    # Of two encodings with equal labels nobody could say which is which.
    batch = replace(batch, labels=torch.arange(PEOPLE))
    seen = observe(exact, batch, sp.InstaHide(2))
    encoded = trained_on(exact, batch, sp.InstaHide(2))
    search, lower = teacher_forced(steps=2)._prepare(seen, sp.rng(1))
    order = sorted(range(PEOPLE), key=lambda place: encoded.labels[place].tolist())
    assert search.terms[-1].ordered
    assert apart(lower.simulate(encoded.inputs[order], lower.labels), lower.update) < 1e-4
