"""The weights of an untrained network are searched instead of pixels."""

from dataclasses import replace

import pytest
import torch

import seepage as sp
from seepage.attacks import PriorNetwork, through
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.domains import MNIST, Image, Signal
from seepage.scoring import METRICS, pair
from seepage.search._objective import Layout

TINY = PriorNetwork(width=4)
LIKE = torch.zeros(())


@pytest.fixture(scope="module")
def pictures():
    return sp.data.load("photos", pixels=16)


def bound(prior, people, domain):
    return prior.bind(people, domain, like=LIKE)


def test_the_network_is_the_papers(pictures):
    """Four resolutions from 32 to 4 with two residual blocks each, attention at 16."""
    made = bound(PriorNetwork(width=8), 2, Image((3, 32, 32)))
    names = list(made.shapes)
    assert {name.split(".")[1] for name in names if name.startswith("down.")} == set("0123")
    blocks = {tuple(n.split(".")[:4]) for n in names if n.startswith("down.") and ".blocks." in n}
    assert len(blocks) == 8
    attends = {".".join(name.split(".")[:2]) for name in names if ".attention." in name}
    assert attends == {"down.1", "up.1", "middle.attention"}


def test_features_enter_every_residual_block():
    prior = replace(TINY, features=sp.rng(0).normal((2, 5)))
    made = bound(prior, 2, Image((3, 32, 32)))
    blocks = {n.rpartition(".first.")[0] for n in made.shapes if n.endswith(".first.weight")}
    injected = {n.rpartition(".inject.")[0] for n in made.shapes if n.endswith("inject.weight")}
    assert blocks == injected
    weights = made.start(rng=sp.rng(1))
    other = bound(replace(TINY, features=-prior.features), 2, Image((3, 32, 32)))
    assert not torch.allclose(made(weights), other(weights))


@pytest.mark.parametrize("domain", [Image((3, 32, 32)), MNIST, Image((1, 5, 8), bounds=(-1, 2))])
def test_images_of_any_size_are_made_within_their_bounds(domain):
    made = bound(TINY, 2, domain)
    images = made(10 * made.start(rng=sp.rng(0)))
    assert images.shape == (2, *domain.shape)
    domain.check(domain.project(domain.denormalise(images)))
    natural = domain.denormalise(images)
    assert float((natural - domain.project(natural)).abs().max()) < 1e-5


def test_rows_made_together_are_those_made_apart(pictures):
    made = bound(TINY, 2, pictures.domain)
    points = torch.stack([made.start(rng=sp.rng(seed)) for seed in range(3)])
    together, apart = made(points), torch.stack([made(point) for point in points])
    assert torch.allclose(together, apart, atol=1e-4)
    assert not torch.allclose(together[0], together[1], atol=1e-2)
    assert torch.equal(made(points[:1])[0], made(points[0]))


def test_a_layout_reads_labels_behind_the_weights(pictures):
    made = bound(TINY, 2, pictures.domain)
    layout = Layout(2, pictures.domain, 10, made)
    point = torch.cat([made.start(rng=sp.rng(0)), torch.arange(20.0)])
    assert layout.size == len(point)
    expected = torch.arange(20.0).reshape(2, 10).softmax(-1)
    assert torch.equal(layout.label_probabilities(point), expected)
    assert layout.project(point) is point


@pytest.mark.slow
def test_an_image_comes_back_through_the_network(pictures):
    """Any recipe will do, and restarts run as rows together or apart."""
    task, batch = sp.zoo.mlp(hidden=(32,), domain=pictures.domain), pictures.batch(1)
    client = sp.Client(sp.Gradient())
    seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    plain = sp.attacks.inverting_gradients(steps=100, restarts=1, tv=1e-4)
    attack = through(plain, PriorNetwork(width=8), step_size=5e-3)
    guess = attack(seen, rng=sp.rng(1))
    assert float(METRICS["psnr"](pair(guess, batch)).min()) > 17
    short = replace(attack, search=replace(attack.search, steps=3, restarts=2))
    together = replace(short, engine=replace(short.engine, rows=2))
    apart, rows = (a(seen, rng=sp.rng(1)).trace.finals for a in (short, together))
    assert len(rows) == 2
    assert rows == pytest.approx(apart, rel=1e-3)


def test_the_content_of_features_is_in_the_name():
    first, second = (replace(TINY, features=torch.full((1, 2), value)) for value in (1.0, 2.0))
    assert repr(first) != repr(second)
    assert repr(first) == repr(replace(TINY, features=torch.ones(1, 2)))


def test_what_no_network_can_make_is_refused_in_one_sentence(pictures):
    with pytest.raises(NotApplicable, match="expected images"):
        bound(TINY, 1, Signal((1, 40)))
    with pytest.raises(InvalidValue, match="one feature for each of 3 images, got 2"):
        bound(replace(TINY, features=torch.ones(2, 4)), 3, pictures.domain)
    with pytest.raises(InvalidValue, match="width and multipliers >= 1"):
        PriorNetwork(width=0)
    with pytest.raises(InvalidValue, match="by gradient matching"):
        through(sp.attacks.analytic_fc(), TINY)
    with pytest.raises(InvalidValue, match="median_every"):
        through(sp.attacks.inverting_gradients(median_every=5), TINY)
