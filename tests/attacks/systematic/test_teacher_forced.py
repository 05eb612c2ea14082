"""Searches in which what is known stands in the place of what would be simulated."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks import exact_features, systematic, teacher_forced
from seepage.attacks._cut_network import cut_network, order_by_labels
from seepage.attacks.feature_recovery import Features
from seepage.core.errors import InvalidValue
from seepage.scoring import METRICS, pair
from seepage.search import Engine
from seepage.search._feature_matching import features_at
from seepage.search.fast import case_simulation, use_known_statistics


class WideHead(nn.Module):
    """Two normalised convolutions, and a head wide enough to give its inputs away."""

    def __init__(self, *, bypassed: bool = False, sure: float = 1.0) -> None:
        super().__init__()
        self.bypassed = bypassed
        self.body = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.BatchNorm2d(24),
            nn.Tanh(),
            nn.Conv2d(24, 12, 3, stride=2, padding=1),
            nn.BatchNorm2d(12),
            nn.Tanh(),
            nn.Flatten(),
        )
        self.hidden = nn.Linear(12 * 16, 1024, bias=False)
        self.activation, self.head = nn.ReLU(), nn.Linear(1024, 10)
        nn.init.normal_(self.hidden.weight, std=(12 * 16) ** -0.5)
        self.head.weight.data *= sure

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.body(x)
        logits = self.head(self.activation(self.hidden(features)))
        return logits - features.mean(1, keepdim=True) if self.bypassed else logits


@pytest.fixture(scope="module")
def pictures():
    return sp.data.load("photos", pixels=8)


def made(pictures, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return sp.Task(WideHead(**options), sp.cross_entropy, pictures.domain)


@pytest.fixture(scope="module")
def task(pictures):
    return made(pictures)


@pytest.fixture(scope="module")
def exact(task):
    return task.to(dtype=torch.float64)


def observe(task, batch, defense=None, local=None, **knows):
    threat = sp.Threat(**{"knows_labels": True, "batchnorm": "exact", **knows})
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    return threat.observe(client, task, batch, rng=sp.rng(0))


def sorted_by_label(batch):
    order = batch.labels.argsort(stable=True)
    return sp.Batch(batch.inputs[order], batch.labels[order])


def true_features(seen, batch):
    values = features_at(seen.task, "hidden", batch.inputs).detach()
    return Features("hidden", values, torch.linalg.qr(values.T).Q, True, 0.0)


@dataclass(frozen=True)
class Told:
    """Features that are known, with the residual they are said to have."""

    features: Features

    def recover(self, observation, *, rng):
        return self.features


def test_at_the_truth_the_network_below_shares_what_was_observed(exact, pictures):
    batch = sorted_by_label(pictures.batch(4).to(dtype=torch.float64))
    seen = observe(exact, batch)
    lower = cut_network(seen, true_features(seen, batch))
    simulated = lower.simulate(batch.inputs, lower.labels)
    assert set(simulated.tensors) == {n for n in seen.update.tensors if n.startswith("body")}
    for name, tensor in simulated.tensors.items():
        torch.testing.assert_close(tensor, seen.update.tensors[name], rtol=1e-9, atol=1e-12)


def test_at_the_truth_given_statistics_change_nothing_and_elsewhere_they_tell_the_contrast(photos):
    task = sp.zoo.resnet18(width=2).to(dtype=torch.float64)
    batch = photos.to(dtype=torch.float64)
    seen = observe(task, batch)
    plain = case_simulation([seen], rows=1, strategy="shared")
    given = use_known_statistics(plain, [seen])
    true = seen.task.domain.normalise(batch.inputs)

    def apart(simulate, inputs):
        found = simulate(inputs[None], batch.labels[None])
        flat = replace(seen.update, tensors={n: t[0].detach() for n, t in found.items()}).flat()
        wanted = seen.update.flat()
        return ((flat - wanted).norm() / wanted.norm()).item()

    assert apart(given, true) < 1e-9
    assert apart(plain, 0.5 * true) < 0.05
    assert apart(given, 0.5 * true) > 0.3


def test_given_statistics_are_each_cases_own(exact, pictures):
    batches = [pictures.batch(2, start=start).to(dtype=torch.float64) for start in (0, 2)]
    seen = [observe(exact, batch) for batch in batches]
    plain = case_simulation(seen, rows=4, strategy="shared")
    # Two restarts of each case, all at the truth.
    inputs = torch.stack([exact.domain.normalise(b.inputs) for b in batches]).repeat_interleave(
        2, 0
    )
    labels = torch.stack([b.labels for b in batches]).repeat_interleave(2, 0)
    found = use_known_statistics(plain, seen)(inputs, labels)
    for row in range(4):
        for name, tensor in seen[row // 2].update.tensors.items():
            torch.testing.assert_close(found[name][row], tensor, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_where_logits_are_sure_it_recovers_what_simulating_them_does_not(pictures):
    batch = pictures.batch(8)
    seen = observe(made(pictures, sure=10.0), batch)

    def psnr(attack):
        return float(METRICS["psnr"](pair(attack(seen, rng=sp.rng(1)), batch)).mean())

    forced = psnr(teacher_forced(weighting="entries", feature_weight=0.1, steps=300))
    assert forced > 22
    assert forced > psnr(systematic(features=exact_features(), steps=300)) + 1.5


def test_labels_come_back_as_they_were_known(task, pictures):
    seen = observe(task, pictures.batch(4))
    guess = teacher_forced(steps=2)(seen, rng=sp.rng(1))
    assert torch.equal(guess.labels, seen.labels)


def test_side_by_side_is_one_by_one(exact, pictures):
    batches = [pictures.batch(2, start=start).to(dtype=torch.float64) for start in (0, 2, 4)]
    seen, rngs = [observe(exact, batch) for batch in batches], [sp.rng(i) for i in range(3)]
    attack = teacher_forced(steps=6, restarts=2, engine=Engine(rows=6))
    alone = [attack(one, rng=rng) for one, rng in zip(seen, rngs, strict=True)]
    for one, other in zip(alone, attack.many(seen, rngs=rngs), strict=True):
        torch.testing.assert_close(other.inputs, one.inputs, rtol=0, atol=1e-7)
    assert len({tuple(one.trace.objective) for one in alone}) == 3


def test_what_does_not_cut_the_network_or_the_client_is_simulated(task, pictures):
    batch = sorted_by_label(pictures.batch(2))
    plain = observe(task, batch)
    features = true_features(plain, batch)
    assert cut_network(plain, features) is not None
    bypassed = observe(made(pictures, bypassed=True), batch)
    assert cut_network(bypassed, features) is None
    assert cut_network(observe(task, batch, local=sp.FedAvg(steps=2, lr=0.01)), features) is None
    # The largest entries of the whole are not those of a part; each tensor's own are.
    for defense, cut in ((sp.Prune(0.5, scope="update"), False), (sp.Prune(0.5), True)):
        seen = observe(task, batch, defense, knows_defense=True)
        assert (cut_network(seen, features) is not None) == cut


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_clipping_is_undone_by_what_features_say_of_the_norm(task, pictures, reduction):
    batch = sorted_by_label(pictures.batch(2))
    local = sp.Gradient(reduction=reduction)
    plain = observe(task, batch, local=local)
    for tight in (0.1, 10.0):
        clip = sp.Clip(tight * float(plain.update.flat().norm()))
        seen = observe(task, batch, clip, local=local, knows_defense=True)
        lower = cut_network(seen, true_features(plain, batch))
        for name, tensor in lower.update.tensors.items():
            torch.testing.assert_close(tensor, plain.update.tensors[name], rtol=1e-4, atol=1e-6)
        simulated = lower.simulate(batch.inputs, lower.labels)
        torch.testing.assert_close(simulated.flat(), lower.update.flat(), rtol=1e-3, atol=1e-5)


def test_doubtful_features_are_matched_and_not_given(task, pictures):
    batch = sorted_by_label(pictures.batch(2))
    seen = observe(task, batch)
    features = true_features(seen, batch)
    ordered = order_by_labels(seen.labels, features, seen)
    torch.testing.assert_close(ordered.values, features.values)
    sure, doubtful = (Told(replace(features, residual=r)) for r in (0.001, 0.1))

    def searched(recovery):
        attack = teacher_forced(features=recovery, given=0.01, steps=2)
        (search, lower) = attack._prepare(seen, sp.rng(0))
        return search.terms[-1], lower

    term, lower = searched(sure)
    assert term.ordered
    assert lower.task is not seen.task
    term, lower = searched(doubtful)
    assert not term.ordered
    assert lower is seen
    mingled = Told(replace(features, residual=0.001, told_apart=False))
    term, lower = searched(mingled)
    assert not term.ordered
    assert lower is seen
    with pytest.raises(InvalidValue, match="given >= 0"):
        teacher_forced(given=-1.0)


@pytest.mark.parametrize("recipe", [systematic, teacher_forced])
def test_adam_can_see_the_gradient_itself(recipe):
    assert recipe().search.optimiser.sign == "hard"
    assert recipe(signed=False).search.optimiser.sign == "none"
