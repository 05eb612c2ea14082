"""Features of ordinary classifiers, from the gradient of their last layer."""

from dataclasses import replace

import pytest
import torch
from scipy.optimize import least_squares as scipy_least_squares

import seepage as sp
from seepage.attacks.feature_recovery import (
    Fallback,
    NotToldApartWarning,
    exact_features,
    softmax_features,
)
from seepage.attacks.feature_recovery._softmax_features import _SoftmaxEquations
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable
from seepage.numerics._least_squares import least_squares
from seepage.search._feature_matching import features_at


@pytest.fixture(scope="module")
def task():
    return sp.zoo.resnet18(width=8)


def observe(task, batch, defense=None, **knows):
    threat = sp.Threat(**{"knows_labels": True, "batchnorm": "exact", **knows})
    return threat.observe(
        sp.Client(sp.Gradient(), defense or sp.chain()), task, batch, rng=sp.rng(0)
    )


def pictures(labels):
    inputs = sp.data.load("photos").batch(len(labels)).inputs
    return sp.Batch(inputs, torch.tensor(sorted(labels)))


def errors(found, seen, batch):
    """Of everybody's feature, relative to its length; people of one label come in any order."""
    true = features_at(seen.task, found.layer, batch.inputs).detach()
    apart = torch.cdist(found.values, true) / true.norm(dim=1)
    same = batch.labels[:, None] == batch.labels
    return torch.where(same, apart, torch.inf).min(0).values


def invented(people=3, classes=6):
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.double, generator=draw)

    labels = torch.eye(classes, dtype=torch.double)[:people]
    return _SoftmaxEquations(
        normal(classes, people), normal(classes), labels, normal(classes, people), normal(classes)
    ), normal(people * people + 1)


@pytest.mark.parametrize("biased", [True, False])
def test_the_derivative_is_that_of_the_equations(biased):
    equations, unknowns = invented()
    equations = equations if biased else replace(equations, bias=None)
    expected = torch.autograd.functional.jacobian(equations, unknowns)
    torch.testing.assert_close(equations.derivative(unknowns), expected)


def test_where_least_squares_ends_scipy_finds_nothing_better():
    equations, unknowns = invented()
    found, left = least_squares(equations, unknowns, steps=200)
    assert left < 0.5 * float(equations(unknowns).square().sum())
    theirs = scipy_least_squares(
        lambda x: equations(torch.from_numpy(x)).numpy(),
        found.numpy(),
        jac=lambda x: equations.derivative(torch.from_numpy(x)).numpy(),
        xtol=1e-12,
        ftol=1e-12,
    )
    assert left == pytest.approx(2 * theirs.cost, rel=1e-3)


@pytest.mark.parametrize(
    "labels",
    [[3], [1, 5], [4, 4], [1, 1, 7, 9], [0, 2, 2, 5, 7, 8], [0, 1, 2, 3, 4, 5, 6, 7]],
    ids=str,
)
def test_features_of_everybody_come_back_at_their_length(task, labels):
    batch = pictures(labels)
    seen = observe(task, batch)
    found = softmax_features().recover(seen, rng=sp.rng(1))
    assert found.layer == "fc"
    assert found.scaled
    assert float(errors(found, seen, batch).max()) < 5e-3


def test_neither_clipping_nor_a_sum_hides_them(task):
    batch = pictures([1, 5, 5])
    for seen in (
        observe(task, batch, sp.Clip(0.01)),
        sp.Threat(knows_labels=True, batchnorm="exact").observe(
            sp.Client(sp.Gradient(reduction="sum")), task, batch, rng=sp.rng(0)
        ),
    ):
        found = softmax_features().recover(seen, rng=sp.rng(1))
        assert float(errors(found, seen, batch).max()) < 5e-3


def test_noise_is_said_to_hide_them(task):
    seen = observe(task, pictures([1, 5, 7]), sp.AddGaussian(0.1))
    with pytest.warns(NotToldApartWarning, match="not all of 3 examples"):
        found = softmax_features(starts=3).recover(seen, rng=sp.rng(1))
    assert found.residual > 1e-3
    # Which is all that is left: a little noise blurs features of people who were told apart.
    little = observe(task, pictures([1, 5, 7]), sp.AddGaussian(3e-5))
    blurred = softmax_features().recover(little, rng=sp.rng(1))
    assert 1e-6 < blurred.residual < 1e-2
    assert blurred.told_apart
    # One example alone cannot be mistaken for another.
    with pytest.warns(NotToldApartWarning, match="^no exact match: the features found leave"):
        softmax_features(starts=3).recover(
            observe(task, pictures([1]), sp.AddGaussian(0.1)), rng=sp.rng(1)
        )


def test_what_cannot_be_told_apart_is_refused(task):
    recover = softmax_features().recover
    with pytest.raises(NotApplicable, match=r"10 examples in 10 classes.*at most 9 can"):
        recover(observe(task, pictures(list(range(10)))), rng=sp.rng(1))
    twins = pictures([2, 2])
    twins = sp.Batch(twins.inputs[:1].expand(2, -1, -1, -1), twins.labels)
    with pytest.raises(NotApplicable, match="some features are equal"):
        recover(observe(task, twins), rng=sp.rng(1))
    with pytest.raises(MissingKnowledge, match="labels"):
        recover(observe(task, pictures([2]), knows_labels=False), rng=sp.rng(1))

    def squared(logits, labels):
        return (logits - torch.nn.functional.one_hot(labels, 10)).square().sum(1)

    with pytest.raises(NotApplicable, match="gradient of cross-entropy"):
        recover(observe(replace(task, loss=squared), pictures([2])), rng=sp.rng(1))
    with pytest.raises(NotApplicable, match="reads features and not the input"):
        softmax_features()(observe(task, pictures([2])), rng=sp.rng(1))
    with pytest.raises(InvalidValue, match="starts >= 1, got 0"):
        softmax_features(starts=0)


def test_losses_that_weigh_classes_are_refused_by_the_classes_of_the_batch(task):
    def weighted(logits, labels):
        rare = 1 + 4 * (torch.arange(10) == 7).to(logits)
        return torch.nn.functional.cross_entropy(logits, labels, weight=rare, reduction="none")

    weighing = replace(task, loss=weighted)
    with pytest.raises(NotApplicable, match="gradient of cross-entropy"):
        softmax_features().recover(observe(weighing, pictures([6, 7])), rng=sp.rng(1))
    found = softmax_features().recover(observe(weighing, pictures([5, 6])), rng=sp.rng(1))
    assert found.residual < 1e-5


def test_a_bias_whose_gradient_was_taken_away_is_done_without(task):
    batch = pictures([1, 5])
    seen = observe(task, batch)
    pruned = {**seen.update.tensors, "fc.bias": torch.zeros(10)}
    seen = replace(seen, update=replace(seen.update, tensors=pruned))
    found = softmax_features().recover(seen, rng=sp.rng(1))
    assert float(errors(found, seen, batch).max()) < 5e-3


def test_the_first_that_applies_is_taken_and_all_reasons_are_given(task):
    both = Fallback((exact_features(), softmax_features()))
    batch = pictures([1, 5])
    seen = observe(task, batch)
    assert float(errors(both.recover(seen, rng=sp.rng(1)), seen, batch).max()) < 5e-3
    with pytest.raises(NotApplicable, match=r"(?s)ExactFeatures: .*SoftmaxFeatures: 10 examples"):
        both.recover(observe(task, pictures(list(range(10)))), rng=sp.rng(1))
    with pytest.raises(InvalidValue, match="one method or more"):
        Fallback(())


def test_features_that_are_not_finite_count_as_none(task):
    class Singular:
        def recover(self, observation, *, rng):
            found = softmax_features().recover(observation, rng=rng)
            return replace(found, values=found.values * float("nan"), residual=float("nan"))

    seen = observe(task, pictures([1, 5]))
    found = Fallback((Singular(), softmax_features())).recover(seen, rng=sp.rng(1))
    assert bool(found.values.isfinite().all())
    with pytest.raises(NotApplicable, match="Singular: its equations have no finite solution"):
        Fallback((Singular(),)).recover(seen, rng=sp.rng(1))


def test_an_ordinary_classifier_is_searched_below_its_last_layer(task):
    batch = pictures([1, 5])
    seen = observe(task, batch)
    guess = sp.attacks.teacher_forced(steps=2)(seen, rng=sp.rng(1))
    assert torch.equal(guess.labels, seen.labels)
    (_, lower) = sp.attacks.teacher_forced(steps=2)._prepare(seen, sp.rng(1))
    assert "fc.weight" not in lower.update.tensors
    assert len(lower.update.tensors) == len(seen.update.tensors) - 2
