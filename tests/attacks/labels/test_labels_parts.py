"""The parts of label counting against naive computations."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import seepage as sp
from seepage.attacks.labels._count_labels import _round_counts, count_classes
from seepage.attacks.labels._infer_labels import InferLabels
from seepage.attacks.labels._label_evidence import measure_gain, read_evidence
from seepage.attacks.labels._peel_examples import (
    _cost_of_adding,
    count_visible,
    peel_examples,
    write_equations,
)
from seepage.core import Update
from seepage.core.errors import SeepageError
from seepage.domains import Signal
from seepage.scoring import count_error


def linear_task(*, bias=True, scale=1.0, inputs=12, classes=6):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes, bias=bias))
    with torch.no_grad():
        model[1].weight.mul_(scale)
    return sp.Task(model, sp.cross_entropy, Signal((1, inputs)), name="linear")


def observed(task, labels, local=None):
    batch = sp.Batch(task.domain.sample(len(labels), rng=sp.rng(0)), torch.tensor(labels))
    client = sp.Client(local or sp.Gradient())
    return batch, sp.Threat().observe(client, task, batch, rng=sp.rng(0))


def supposed(equations, labels):
    features = sp.rng(2).normal((len(labels), equations.weight.shape[1])).double()
    return features, torch.tensor(labels)


@pytest.mark.parametrize("seed", range(12))
def test_rounding_finds_the_nearest_counts(seed):
    estimate = 2 * sp.rng(seed).normal((4,)).double() + 1
    ours = _round_counts(estimate, 5)
    every = [torch.tensor(n) for n in product(range(6), repeat=4) if sum(n) == 5]
    best = min((n - estimate).square().sum() for n in every)
    assert ours.sum() == 5
    assert ours.min() >= 0
    assert torch.isclose((ours - estimate).square().sum(), best)


def test_counts_of_an_update_lost_in_noise_are_rounded_at_once():
    # Taking units away one by one would never end: 3e8 - 1 is 3e8 in float32.
    assert _round_counts(torch.tensor([3e8, 2e8, -1e8]), 4).tolist() == [4, 0, 0]
    assert _round_counts(torch.tensor([1e9, 1e9]), 4).tolist() == [2, 2]


@pytest.mark.parametrize(
    ("local", "factor"),
    [
        (sp.Gradient(), 1.0),
        (sp.Gradient(reduction="sum"), 4.0),
        (sp.FedAvg(lr=0.01, steps=1), 0.01),
        (sp.FedAvg(lr=1e-4, steps=5), 5e-4),
    ],
    ids=str,
)
def test_the_gain_is_what_the_client_multiplies_by(local, factor):
    _, seen = observed(linear_task(), [0, 1, 2, 3], local)
    gain = measure_gain(seen, 4)
    assert gain.factor == pytest.approx(factor, rel=1e-3)
    assert gain.error < 1e-2


def test_the_jacobian_is_the_derivative():
    _, seen = observed(linear_task(scale=2.0), [0, 3, 5])
    equations = write_equations(read_evidence(seen), 3)
    features, labels = supposed(equations, [0, 3, 5])

    def explained(features):
        return equations.gradient - equations.residual(features, labels)

    exact = torch.autograd.functional.jacobian(explained, features)
    assert torch.allclose(equations.jacobian(features, labels), exact, atol=1e-10)


def test_the_cost_of_one_more_example_is_that_of_all_together():
    _, seen = observed(linear_task(scale=2.0), [0, 3, 5])
    equations = write_equations(read_evidence(seen), 3)
    features, labels = supposed(equations, [0, 3])
    more = sp.rng(3).normal((4, 3)).double()
    left, accuracy = equations.residual(features, labels), equations.accuracy(features, labels)
    quick = _cost_of_adding(equations, left, accuracy, more)
    for feature, label in product(range(4), range(6)):
        together = torch.cat([features, more[feature][None]]), torch.tensor([0, 3, label])
        slow = equations.cost(equations.residual(*together), equations.accuracy(*together)).sum()
        assert torch.isclose(quick[feature, label], slow)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_rank_counts_examples_while_there_are_fewer_than_classes(size, bias):
    _, seen = observed(linear_task(bias=bias), [0, 1, 1, 0][:size])
    assert count_visible(read_evidence(seen)) == size


@pytest.mark.parametrize("bias", [True, False])
def test_peeling_finds_the_labels_of_all_examples(bias):
    _, seen = observed(linear_task(scale=20.0, bias=bias), [0, 3, 3])
    found = peel_examples(write_equations(read_evidence(seen), 3), limit=3)
    assert sorted(found.labels.tolist()) == [0, 3, 3]


def test_a_solution_holds_the_features_of_the_examples():
    batch, seen = observed(linear_task(scale=20.0), [0, 3, 3])
    evidence = read_evidence(seen)
    equations = write_equations(evidence, 3)
    found = peel_examples(equations, limit=3)
    assert found.solved
    assert not peel_examples(equations, limit=2).solved
    truth = torch.cat([batch.inputs.flatten(1).double(), torch.ones(3, 1).double()], dim=1)
    ours, theirs = found.features @ equations.weight.T, truth @ evidence.weight.T
    assert torch.allclose(ours[ours[:, 0].argsort()], theirs[theirs[:, 0].argsort()], atol=1e-3)


@pytest.mark.parametrize(("guessed", "wrong"), [([1, 2, 2], 0), ([2, 1, 2], 0), ([1, 1, 5], 2)])
def test_the_count_error_is_what_the_overlap_lacks(guessed, wrong):
    assert count_error(torch.tensor(guessed), torch.tensor([2, 2, 1])) == wrong


class CountNumbers(TorchDispatchMode):
    """Counts the numbers that operations return, and those of the largest tensor."""

    def __init__(self):
        super().__init__()
        self.all = self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.all += result.numel()
            self.largest = max(self.largest, result.numel())
        return result


def test_the_work_of_counting_grows_with_the_head_and_not_with_the_square_of_its_classes():
    task = linear_task(classes=10_000, inputs=40)
    _, seen = observed(task, [7, 70, 70, 9_000])
    with CountNumbers() as work:
        counts = count_classes(seen)
    assert counts.nonzero().flatten().tolist() == [7, 70, 9_000]
    assert counts[70] == 2
    size = sum(p.numel() for p in task.parameters.values())
    assert work.largest <= 10 * size
    assert work.all <= 250 * size


@pytest.mark.parametrize("ratio", [0.9, 0.99])
@pytest.mark.parametrize("size", [1, 4])
def test_rows_that_pruning_sets_to_zero_are_left_out(ratio, size):
    batch = sp.data.bundled("photos", size=size)
    client = sp.Client(sp.FedAvg(lr=0.1, steps=2), sp.Prune(ratio))
    seen = sp.Threat().observe(client, sp.zoo.lenet(), batch, rng=sp.rng(0))
    search = InferLabels(sp.attacks.inverting_gradients(steps=1))
    found = sorted(search(seen, rng=sp.rng(1)).labels.tolist())
    expected = sorted(batch.labels.tolist())
    assert sum(label in expected for label in found) >= size - 1


def test_an_update_of_zeros_shows_nobody():
    task = sp.zoo.lenet()
    zeros = Update({name: torch.zeros_like(p) for name, p in task.parameters.items()})
    seen = sp.Threat().observe(
        sp.Client(sp.Gradient()), task, sp.data.bundled("photos", size=2), rng=sp.rng(0)
    )
    found = InferLabels(sp.attacks.inverting_gradients(steps=1))
    with pytest.raises(SeepageError) as refused:
        found(replace(seen, update=zeros), rng=sp.rng(1))
    assert "\n" not in str(refused.value)
