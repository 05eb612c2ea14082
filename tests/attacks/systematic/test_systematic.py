"""Gradient matching that is given recovered features."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks import PriorNetwork, cocktail_party, systematic
from seepage.attacks._cut_network import order_by_labels
from seepage.attacks.feature_recovery import Features
from seepage.core import OwnSimulation, SideBySide
from seepage.core.errors import InvalidValue, MissingKnowledge
from seepage.domains import Continuous, Signal, Tabular
from seepage.scoring import METRICS, pair
from seepage.search import Engine
from seepage.search._feature_matching import features_at


class WideHead(nn.Module):
    """A convolution, and a head of two layers that is wide enough to give its inputs away."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 4, stride=2, padding=1), nn.BatchNorm2d(16), nn.Tanh(), nn.Flatten()
        )
        features = 16 * (pixels // 2) ** 2
        self.head = nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


@dataclass(frozen=True)
class ExactHead:
    """Recovers what the head reads by running `exact_batch` on the head alone."""

    def recover(self, observation, *, rng):
        task, head = observation.task, observation.task.model.head
        domain = Signal((1, head[0].in_features), bounds=(-1e6, 1e6))
        model = nn.Sequential(nn.Flatten(), *head)
        names = {"head.0.": "1.", "head.2.": "3."}
        tensors = {
            n.replace(a, b): t
            for n, t in observation.update.tensors.items()
            for a, b in names.items()
            if n.startswith(a)
        }
        inner = sp.Task(model, task.loss, domain)
        client = sp.Client(sp.Gradient())

        def simulate(inputs, labels):
            return client(inner, sp.Batch(inputs, labels), rng=rng)

        update = replace(observation.update, tensors=tensors)
        seen = replace(
            observation, task=inner, update=update, simulate=OwnSimulation(simulate, inner)
        )
        found = sp.attacks.exact_batch()(seen, rng=rng).inputs.flatten(1)
        return Features("head.0", found, torch.linalg.qr(found.T).Q, True, 0.0)


@pytest.fixture(scope="module")
def pictures():
    return sp.data.load("photos", pixels=8)


@pytest.fixture(scope="module")
def task(pictures):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sp.Task(WideHead(8), sp.cross_entropy, pictures.domain)


@pytest.fixture(scope="module")
def exact(task):
    return task.to(dtype=torch.float64)


def observe(task, batch, defense=None, **knows):
    threat = sp.Threat(**{"knows_labels": True, "batchnorm": "exact", **knows})
    client = sp.Client(sp.Gradient(), defense or sp.chain())
    return threat.observe(client, task, batch, rng=sp.rng(0))


def psnr(attack, seen, batch):
    return float(METRICS["psnr"](pair(attack(seen, rng=sp.rng(1)), batch)).mean())


@pytest.mark.parametrize("scaled", [True, False])
def test_features_are_put_in_the_order_of_their_labels(task, pictures, scaled):
    batch = pictures.batch(8)
    seen = observe(task, batch)
    truth = features_at(seen.task, "head.0", batch.inputs).detach()
    shuffled = truth[sp.rng(5).permutation(8)]
    values = shuffled if scaled else torch.nn.functional.normalize(shuffled)
    found = Features("head.0", values, torch.linalg.qr(shuffled.T).Q, scaled, 0.0)
    ordered = order_by_labels(seen.labels, found, seen)
    wanted = truth[batch.labels.argsort()]
    cosines = torch.cosine_similarity(ordered.values, wanted)
    assert float(cosines.min()) > 0.999
    assert not values.requires_grad


def test_features_of_a_network_that_is_one_layer_are_put_in_order():
    data = sp.data.load("digits").batch(6)
    rows = sp.Batch(data.inputs.flatten(1), data.labels)
    pixels = rows.inputs.shape[1]
    columns = [Continuous(name=f"{i}", low=0, high=1, mean=0, std=1) for i in range(pixels)]
    bare = sp.Task(nn.Linear(pixels, 10), sp.cross_entropy, Tabular(tuple(columns)))
    seen = observe(bare, rows, batchnorm="running")
    shuffled = rows.inputs[sp.rng(5).permutation(6)]
    found = Features("", shuffled, torch.linalg.qr(shuffled.T).Q, True, 0.0)
    ordered = order_by_labels(seen.labels, found, seen)
    torch.testing.assert_close(ordered.values, rows.inputs[rows.labels.argsort()])
    assert not torch.equal(shuffled, ordered.values)


@dataclass(frozen=True)
class TrueFeatures:
    """Returns the features of `batch`, whose labels are in order."""

    batch: sp.Batch

    def recover(self, observation, *, rng):
        values = features_at(observation.task, "head.0", self.batch.inputs).detach()
        return Features("head.0", values, torch.linalg.qr(values.T).Q, True, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("span_from", [16, 2], ids=["distance", "span"])
def test_feature_matching_pulls_a_noisy_search_to_the_recovered_features(pictures, span_from):
    """Averaged over networks: how far the guess's features are from the given ones."""
    off = {True: 0.0, False: 0.0}
    for seed in range(3):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            task = sp.Task(WideHead(8), sp.cross_entropy, pictures.domain)
        batch = pictures.batch(2, start=4 * seed)
        order = batch.labels.argsort()
        batch = sp.Batch(batch.inputs[order], batch.labels[order])
        seen = observe(task, batch, sp.AddGaussian(0.1))
        given = TrueFeatures(batch).recover(seen, rng=sp.rng(0))
        plain = systematic(steps=40, tv=1e-2, feature_weight=10.0, span_from=span_from)
        for helped in off:
            attack = replace(plain, features=TrueFeatures(batch)) if helped else plain
            guess = attack(seen, rng=sp.rng(1))
            found = features_at(seen.task, "head.0", guess.inputs).detach()
            near = found @ given.span @ given.span.T if span_from == 2 else given.values
            off[helped] += float((found - near).norm() / found.norm()) / 3
    assert off[True] < 0.85 * off[False]


def test_it_runs_through_the_prior_network_with_features(task, pictures):
    batch = pictures.batch(2)
    attack = systematic(
        features=ExactHead(), prior=PriorNetwork(width=8), feature_weight=1.0, steps=40
    )
    guess = attack(observe(task, batch), rng=sp.rng(1))
    objective = guess.trace.objective
    assert min(objective) < 0.8 * objective[0]
    assert guess.inputs.shape == batch.inputs.shape


def test_a_network_without_batch_normalisation_is_attacked_without(pictures):
    plain = sp.zoo.mlp(hidden=(48, 32), domain=pictures.domain)
    batch = pictures.batch(2)
    seen = observe(plain, batch, batchnorm="running")
    attack = systematic(features=cocktail_party(layer="hidden2"), steps=150, tv=1e-3)
    assert psnr(attack, seen, batch) > 20


@dataclass(frozen=True)
class Directions:
    """The same features without sign and length."""

    def recover(self, observation, *, rng):
        found = ExactHead().recover(observation, rng=rng)
        return replace(found, values=-torch.nn.functional.normalize(found.values), scaled=False)


@pytest.mark.parametrize(
    ("features", "span_from", "prior"),
    [
        (ExactHead(), 16, None),
        (Directions(), 16, None),
        (ExactHead(), 2, None),
        pytest.param(
            *(ExactHead(), 16, PriorNetwork(width=4, multipliers=(1, 1))), marks=pytest.mark.slow
        ),
        (None, 16, PriorNetwork(width=4, multipliers=(1, 1))),
    ],
    ids=["distance", "cosine", "span", "prior", "no features"],
)
def test_side_by_side_is_one_by_one(exact, pictures, features, span_from, prior):
    batches = [pictures.batch(2, start=start).to(dtype=torch.float64) for start in (0, 2, 4)]
    seen, rngs = [observe(exact, batch) for batch in batches], [sp.rng(i) for i in range(3)]
    attack = systematic(
        features=features,
        span_from=span_from,
        prior=prior,
        feature_weight=1.0,
        steps=3,
        restarts=2,
        engine=Engine(rows=6),
    )
    assert isinstance(attack, SideBySide)
    alone = [attack(one, rng=rng) for one, rng in zip(seen, rngs, strict=True)]
    for one, other in zip(alone, attack.many(seen, rngs=rngs), strict=True):
        torch.testing.assert_close(other.inputs, one.inputs, rtol=0, atol=1e-8)
        assert other.trace.objective == pytest.approx(one.trace.objective, rel=1e-8)
    assert len({tuple(one.trace.objective) for one in alone}) == 3


def test_a_case_with_other_features_runs_apart(exact, pictures):
    @dataclass(frozen=True)
    class Sometimes:
        """Finds one feature too few in batches of one label."""

        def recover(self, observation, *, rng):
            found = ExactHead().recover(observation, rng=rng)
            same = len(observation.labels.unique()) == 1
            return replace(found, values=found.values[:1]) if same else found

    first, second = (pictures.batch(2, start=start) for start in (0, 2))
    twins = sp.Batch(first.inputs, torch.tensor([3, 3]))
    batches = [batch.to(dtype=torch.float64) for batch in (first, twins, second)]
    seen = [observe(exact, batch) for batch in batches]
    # One strategy: the bias before the normalisation has no gradient but rounding, and a cosine.
    engine = Engine(rows=3, strategy="shared")
    attack = systematic(features=Sometimes(), steps=3, engine=engine)
    rngs = [sp.rng(i) for i in range(3)]
    alone = [attack(one, rng=rng).trace.objective for one, rng in zip(seen, rngs, strict=True)]
    beside = [guess.trace.objective for guess in attack.many(seen, rngs=rngs)]
    for one, other in zip(alone, beside, strict=True):
        assert other == pytest.approx(one, rel=1e-8)


def test_what_fails_for_one_update_costs_the_others_nothing(exact, pictures):
    recovered = []

    @dataclass(frozen=True)
    class Choosy:
        """Finds nothing where both have the same label."""

        def recover(self, observation, *, rng):
            recovered.append(rng)
            if len(observation.labels.unique()) == 1:
                raise MissingKnowledge("labels", needed_by="Choosy", hint="give two")
            return ExactHead().recover(observation, rng=rng)

    first, second = (pictures.batch(2, start=start) for start in (0, 2))
    twins = sp.Batch(first.inputs, torch.tensor([3, 3]))
    batches = [batch.to(dtype=torch.float64) for batch in (first, twins, second)]
    seen, rngs = [observe(exact, batch) for batch in batches], [sp.rng(i) for i in range(3)]
    attack = systematic(features=Choosy(), steps=3, engine=Engine(rows=3, strategy="shared"))
    found = attack.many(seen, rngs=rngs)
    assert recovered == [key.fork("features") for key in rngs]
    assert isinstance(found[1], MissingKnowledge)
    for place in (0, 2):
        alone = attack(seen[place], rng=rngs[place])
        assert found[place].trace.objective == pytest.approx(alone.trace.objective, rel=1e-8)
    with pytest.raises(MissingKnowledge, match="Choosy needs the labels"):
        attack(seen[1], rng=rngs[1])


def test_what_is_missing_is_asked_for(task, pictures):
    seen = observe(task, pictures.batch(2), knows_labels=False)
    with pytest.raises(MissingKnowledge, match="labels"):
        systematic(features=ExactHead(), steps=1)(seen, rng=sp.rng(1))
    with pytest.raises(InvalidValue, match="FeatureRecovery"):
        systematic(features=sp.attacks.analytic_fc())
    with pytest.raises(InvalidValue, match="feature weight >= 0"):
        systematic(feature_weight=-1.0)


def test_only_the_first_statistics_tell_the_contrast_of_a_batch(photos):
    task = sp.zoo.resnet18(width=2).to(dtype=torch.float64)
    batch = photos.to(dtype=torch.float64)
    seen = observe(task, batch)
    fainter = task.domain.denormalise(0.5 * task.domain.normalise(batch.inputs))
    told = seen.simulate(fainter, batch.labels).flat()
    assert float(torch.cosine_similarity(told, seen.update.flat(), dim=0)) > 0.999
    found, known = sp.clients.batch_statistics(seen.task, fainter), seen.statistics
    first, *later = (float((found[name].variance / known[name].variance).mean()) for name in known)
    assert first == pytest.approx(0.25)
    assert later == pytest.approx([1.0] * len(later), abs=0.05)
