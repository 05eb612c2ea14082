"""Clients, networks and wrappers that `teacher_forced` meets besides those it was made for."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks import ReadLogits, adaptive, exact_features, softmax_features, teacher_forced
from seepage.attacks.feature_recovery import Fallback
from seepage.search import Engine
from seepage.search._feature_matching import features_at
from seepage.search.fast import case_simulation, use_known_statistics


class Body(nn.Module):
    """One normalised convolution and a head of two layers."""

    def __init__(
        self, *, width: int = 1024, activation: nn.Module | None = None, twice: bool = False
    ) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 12, 4, stride=4)
        self.norm, self.unused, self.twice = nn.BatchNorm2d(12), nn.BatchNorm2d(12), twice
        self.hidden, self.head = nn.Linear(48, width, bias=False), nn.Linear(width, 10)
        self.activation = activation or nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(torch.tanh(self.norm(self.first(x))))
        x = 2 * self.norm(x) if self.twice else x
        return self.head(self.activation(self.hidden(x.tanh().flatten(1))))


@pytest.fixture(scope="module")
def pictures():
    return sp.data.load("photos", pixels=8)


def made(pictures, *, frozen=(), **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Body(**options)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return sp.Task(model, sp.cross_entropy, pictures.domain)


def observe(task, batch, defense=None):
    threat = sp.Threat(knows_labels=True, batchnorm="exact")
    return threat.observe(
        sp.Client(sp.Gradient(), defense or sp.chain()), task, batch, rng=sp.rng(0)
    )


def shares_the_observed(simulate, seen, batch):
    """Whether a simulation of one row shares at the truth what was observed."""
    inputs = seen.task.domain.normalise(batch.inputs)[None]
    found = simulate(inputs, batch.labels[None])
    return all(torch.allclose(found[n][0], t, rtol=1e-9) for n, t in seen.update.tensors.items())


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("strategy", ["in_turn", "vectorised", "shared"])
def test_statistics_are_given_however_rows_run_and_only_to_layers_that_run_once(
    pictures, strategy, twice
):
    task = made(pictures, twice=twice).to(dtype=torch.float64)
    batch = pictures.batch(2).to(dtype=torch.float64)
    seen = observe(task, batch)
    simulate = use_known_statistics(case_simulation([seen], rows=1, strategy=strategy), [seen])
    assert shares_the_observed(simulate, seen, batch)
    brighter = replace(batch, inputs=0.5 * batch.inputs)
    assert not shares_the_observed(simulate, seen, brighter)
    given = {n for n, m in simulate.network.named_modules() if getattr(m, "given", None)}
    assert given == (set() if twice else {"norm"})


def test_cases_read_apart_are_given_their_own_statistics(pictures):
    task = made(pictures).to(dtype=torch.float64)
    batches = [pictures.batch(2, start=start).to(dtype=torch.float64) for start in (0, 2)]
    seen = [observe(task, batch, sp.Clip(c)) for batch, c in zip(batches, (1e3, 2e3), strict=True)]
    simulate = use_known_statistics(case_simulation(seen, rows=2, strategy="in_turn"), seen)
    inputs = torch.stack([task.domain.normalise(batch.inputs) for batch in batches])
    found = simulate(inputs, torch.stack([batch.labels for batch in batches]))
    half = simulate(0.5 * inputs, torch.stack([batch.labels for batch in batches]))
    for row, one in enumerate(seen):
        torch.testing.assert_close(found["first.weight"][row], one.update.tensors["first.weight"])
        far = half["first.weight"][row] - one.update.tensors["first.weight"]
        assert far.norm() > 0.1 * one.update.tensors["first.weight"].norm()


def test_a_single_row_is_simulated_in_bfloat16_too(pictures):
    seen = observe(made(pictures), pictures.batch(2))
    guess = teacher_forced(steps=2, engine=Engine(precision="bf16"))(seen, rng=sp.rng(1))
    assert bool(guess.inputs.isfinite().all())


@pytest.mark.parametrize("defense", [sp.Prune(0.1), sp.TopK(50_000)], ids=repr)
def test_what_was_read_of_a_sparse_update_holds_of_its_part(pictures, defense):
    """Adapted, the network below is searched, where each entry is compared as it survived."""
    seen = observe(made(pictures), pictures.batch(2), defense)
    attack = teacher_forced(steps=2)
    plan = adaptive(attack)._plan(seen)
    _, lower = attack._prepare(plan.observation, sp.rng(1))
    assert "below hidden" in lower.task.name
    assert bool(adaptive(attack)(seen, rng=sp.rng(1)).inputs.isfinite().all())


def test_of_more_largest_entries_than_a_part_has_the_whole_is_simulated(pictures):
    seen = observe(made(pictures), pictures.batch(2), sp.TopK(50_000))
    assert teacher_forced(steps=2)._prepare(seen, sp.rng(1))[1] is seen


def test_features_of_a_frozen_layer_are_matched_in_any_order(pictures):
    seen = observe(made(pictures, frozen=["hidden.weight"]), pictures.batch(2))
    attack = teacher_forced(features=exact_features(), steps=2)
    search, lower = attack._prepare(seen, sp.rng(1))
    assert lower is seen
    assert search.terms[-1].labels is None
    assert bool(attack(seen, rng=sp.rng(1)).inputs.isfinite().all())


@pytest.mark.slow
@pytest.mark.parametrize(("width", "activation"), [(84, nn.Sigmoid()), (16, nn.ReLU())])
def test_what_explains_the_update_is_taken_and_not_what_fits_the_head(pictures, width, activation):
    """Behind narrow layers least squares finds people who were not there, and leave little."""
    batch = replace(pictures.batch(7), labels=torch.arange(7))
    seen = observe(made(pictures, width=width, activation=activation), batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        doubtful = exact_features().recover(seen, rng=sp.rng(1))
    # Of what was not taken no warning is left, which would be an error here.
    found = Fallback((exact_features(), softmax_features())).recover(seen, rng=sp.rng(1))
    assert found.residual < 1e-5 < doubtful.residual

    def error(features):
        true = features_at(seen.task, features.layer, batch.inputs).detach()
        return float((torch.cdist(features.values, true) / true.norm(dim=1)).min(0).values.max())

    assert error(found) < 1e-3
    assert error(doubtful) > 0.3


def test_around_it_the_last_layer_may_be_read(pictures):
    batch = pictures.batch(1)
    seen = observe(made(pictures), batch)
    guess = ReadLogits(teacher_forced(steps=2))(seen, rng=sp.rng(1))
    assert torch.equal(guess.labels, batch.labels)
