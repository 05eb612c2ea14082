"""Features of classifiers whose last gradient is not whole, or has too few equations."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import check_grad, minimize
from scipy.special import softmax
from torch import nn
from torch.nn.functional import one_hot

import seepage as sp
from seepage.attacks import teacher_forced
from seepage.attacks.feature_recovery import estimated_features, softmax_features
from seepage.attacks.feature_recovery._features import find_missing
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable
from seepage.probing._heads import classifier_head
from seepage.search._feature_matching import features_at

DEFENSES = (sp.Prune(0.5), sp.Dropout(0.5), sp.AddGaussian(1e-3))


@pytest.fixture(scope="module")
def task():
    return sp.zoo.resnet18(width=8)


@pytest.fixture(scope="module")
def without_bias(task):
    model = copy.deepcopy(task.model)
    linear = nn.Linear(model.fc.in_features, 10, bias=False)
    linear.weight.data = model.fc.weight.detach().clone()
    model.fc = linear
    return sp.Task(model, task.loss, task.domain)


def observe(task, batch, defense=None, **knows):
    threat = sp.Threat(**{"knows_labels": True, "batchnorm": "exact", **knows})
    return threat.observe(
        sp.Client(sp.Gradient(), defense or sp.chain()), task, batch, rng=sp.rng(0)
    )


def pictures(labels):
    inputs = sp.data.load("photos").batch(len(labels)).inputs
    return sp.Batch(inputs, torch.tensor(sorted(labels)))


def known(labels):
    return one_hot(labels, 10).double() if labels.ndim == 1 else labels.double()


def shares(seen, values):
    """R = softmax(U A^T + b) - Y."""
    tensors = seen.task.parameters
    logits = values.double() @ tensors["fc.weight"].double().T
    if "fc.bias" in tensors:
        logits = logits + tensors["fc.bias"].double()
    return logits.softmax(1) - known(seen.labels)


def true_features(seen, inputs):
    return features_at(seen.task, "fc", inputs).detach()


def usual(seen):
    """For everybody what noise has on average, which takes no update to know."""
    return classifier_head(seen.task).features.mean(0).expand(len(seen.labels), -1)


def apart(found, true, labels):
    """Relative to the truth; people of one label come in any order."""
    same = (known(labels)[:, None] == known(labels)).all(2)
    nearest = torch.where(same, torch.cdist(found.double(), true.double()), torch.inf).min(0).values
    return float(nearest.norm() / true.norm())


def misses(seen, values, inputs):
    """How far these features are from the truth in what they send back."""
    return apart(shares(seen, values), shares(seen, true_features(seen, inputs)), seen.labels)


def test_zeros_are_missing_unless_a_dead_feature_explains_them_all():
    draw = torch.Generator().manual_seed(0)
    features = torch.rand(3, 5, generator=draw) + 0.1
    sent = torch.rand(3, 4, generator=draw) + 0.1
    features[:, 2] = 0
    gradient = sent.T @ features
    assert not find_missing(gradient).any()
    taken = torch.zeros(4, 5, dtype=torch.bool)
    taken[0, 0] = taken[0, 4] = taken[3, 1] = True
    # Then nobody can say which of the others were taken as well.
    left = torch.where(taken, 0.0, gradient)
    assert torch.equal(find_missing(left), left == 0)
    # A whole row is that of a class whose entries were all too small.
    left = gradient.clone()
    left[1] = 0
    assert torch.equal(find_missing(left), left == 0)
    assert not find_missing(torch.zeros(4, 5)).any()


@pytest.mark.parametrize(
    ("labels", "defense"),
    [(labels, defense) for labels in ([1, 5, 7], [0, 2, 3, 5, 7, 8]) for defense in DEFENSES],
    ids=str,
)
def test_what_a_defense_leaves_tells_what_everybody_sends_back(task, labels, defense):
    batch = pictures(labels)
    seen = observe(task, batch, defense)
    found = estimated_features().recover(seen, rng=sp.rng(1))
    assert found.layer == "fc"
    assert found.scaled
    assert found.residual < 0.02
    missed = misses(seen, found.values, batch.inputs)
    assert missed < 0.045
    assert missed < 0.6 * misses(seen, usual(seen), batch.inputs)


@pytest.mark.parametrize("defense", [sp.Prune(0.5), sp.Dropout(0.5)], ids=repr)
def test_where_entries_are_missing_equations_are_refused_and_likelihood_is_named(task, defense):
    seen = observe(task, pictures([1, 5, 7]), defense)
    with pytest.raises(NotApplicable, match=r"'fc.weight' are missing.*use estimated_features"):
        softmax_features().recover(seen, rng=sp.rng(1))


@pytest.mark.parametrize(
    ("labels", "slack"), [([3], 1e-3), ([1, 5, 7], 1e-3), ([1, 5, 5, 7], 0.1)], ids=str
)
def test_of_a_whole_gradient_the_likeliest_features_are_those_that_solve_it(task, labels, slack):
    batch = pictures(labels)
    seen = observe(task, batch)
    likely = estimated_features().recover(seen, rng=sp.rng(1))
    solved = softmax_features().recover(seen, rng=sp.rng(1))
    assert apart(likely.values, solved.values, seen.labels) < slack
    # What the tolerance is worth: nothing of the update says that much.
    assert apart(usual(seen), solved.values, seen.labels) > 2 * slack


def test_clipping_does_not_hide_them(task):
    batch = pictures([1, 5, 7])
    for defense in (sp.Clip(0.01), sp.chain(sp.Clip(0.01), sp.Dropout(0.5))):
        seen = observe(task, batch, defense)
        found = estimated_features().recover(seen, rng=sp.rng(1))
        assert misses(seen, found.values, batch.inputs) < 0.01


CROWDS = ([*range(10)], [0, *range(10), 9])


@pytest.mark.parametrize("labels", CROWDS, ids=len)
def test_of_as_many_people_as_classes_features_are_nearer_than_the_usual_ones(task, labels):
    batch = pictures(labels)
    seen = observe(task, batch)
    found = estimated_features().recover(seen, rng=sp.rng(1))
    assert found.values.shape == (len(labels), 64)
    assert bool(found.values.isfinite().all())
    assert found.residual < 0.01
    true = true_features(seen, batch.inputs)
    assert apart(found.values, true, seen.labels) < 0.85 * apart(usual(seen), true, seen.labels)


@pytest.mark.parametrize("labels", CROWDS, ids=len)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_and_so_is_what_they_send_back(task, labels, reduction):
    batch = pictures(labels)
    threat = sp.Threat(knows_labels=True, batchnorm="exact")
    client = sp.Client(sp.Gradient(reduction=reduction))
    seen = threat.observe(client, task, batch, rng=sp.rng(0))
    found = estimated_features().recover(seen, rng=sp.rng(1))
    missed = misses(seen, found.values, batch.inputs)
    assert missed < 0.7 * misses(seen, usual(seen), batch.inputs)


class Posterior:
    """The posterior once more: in numpy, and with a gradient that was derived by hand."""

    def __init__(self, seen, *, noise, strays):
        self.strays = strays
        tensors, gradient = seen.task.parameters, seen.update.tensors
        self.weight, self.offset = (tensors[f"fc.{n}"].double().numpy() for n in ("weight", "bias"))
        self.labels = known(seen.labels).numpy()
        by_weight, by_bias = (gradient[f"fc.{n}"].double().numpy() for n in ("weight", "bias"))
        self.wanted = np.column_stack([by_weight, by_bias])
        sizes = [np.sqrt(np.mean(part[part != 0] ** 2)) for part in (by_weight, by_bias)]
        precise = 1 / (noise * np.array([sizes[0]] * by_weight.shape[1] + [sizes[1]]))
        self.precision = np.where(self.wanted != 0, precise, 0.0)
        read = classifier_head(seen.task).features.double().numpy()
        self.mean, self.size = read.mean(0), np.sqrt(np.mean(read**2))

    def point(self, values):
        """These features, with the scale that suits them best."""
        plain = self._explained(values)[0] * self.precision
        wanted = self.wanted * self.precision
        return np.append(values, np.log((plain * wanted).sum() / (plain**2).sum()))

    def cost(self, point):
        return self._costs(point)[0]

    def slopes(self, point):
        return self._costs(point)[1]

    def _costs(self, point):
        values, scale = point[:-1].reshape(len(self.labels), -1), np.exp(point[-1])
        explained, shares, likely = self._explained(values)
        left = (scale * explained - self.wanted) * self.precision
        off = (values - self.mean) / self.size
        rescaled = (point[-1] + np.log(len(self.labels))) / self.strays
        by_explained = 2 * scale * left * self.precision
        by_shares = values @ by_explained[:, :-1].T + by_explained[:, -1]
        by_logits = likely * (by_shares - (likely * by_shares).sum(1, keepdims=True))
        slopes = shares @ by_explained[:, :-1] + by_logits @ self.weight + 2 * off / self.size
        by_scale = (by_explained * explained).sum() + 2 * rescaled / self.strays
        cost = (left**2).sum() + (off**2).sum() + rescaled**2
        return cost, np.append(slopes, by_scale)

    def _explained(self, values):
        likely = softmax(values @ self.weight.T + self.offset, axis=1)
        shares = likely - self.labels
        return np.column_stack([shares.T @ values, shares.sum(0)]), shares, likely


@pytest.mark.slow
@pytest.mark.parametrize("defense", [sp.Clip(0.01), sp.Dropout(0.5)], ids=repr)
def test_where_it_ends_scipy_finds_nothing_likelier(task, defense):
    batch = pictures([1, 5, 7])
    seen = observe(task.to(dtype=torch.float64), batch.to(dtype=torch.float64), defense)
    found = estimated_features(noise=0.1, steps=3000).recover(seen, rng=sp.rng(1))
    posterior = Posterior(seen, noise=0.1, strays=10.0)
    start, end, true = (
        posterior.point(values.double().numpy())
        for values in (usual(seen), found.values, true_features(seen, batch.inputs.double()))
    )
    rough = check_grad(posterior.cost, posterior.slopes, start, seed=0, direction="random")
    assert rough < 1e-4 * np.linalg.norm(posterior.slopes(start))
    assert np.linalg.norm(posterior.slopes(end)) < 1e-3 * np.linalg.norm(posterior.slopes(start))
    assert posterior.cost(end) < posterior.cost(true) < 0.01 * posterior.cost(start)
    theirs = minimize(
        posterior.cost,
        end,
        jac=posterior.slopes,
        method="L-BFGS-B",
        options={"maxiter": 3000, "maxfun": 6000, "maxcor": 20, "ftol": 1e-13, "gtol": 1e-8},
    )
    assert posterior.cost(end) == pytest.approx(theirs.fun, rel=1e-3)


def test_more_noise_means_nearer_to_the_usual_features(task):
    seen = observe(task, pictures([1, 5, 7]))
    away = [
        estimated_features(noise=noise).recover(seen, rng=sp.rng(1)).values - usual(seen)
        for noise in (1e-2, 1.0, 100.0)
    ]
    near, middle, far = (float(one.norm() / usual(seen).norm()) for one in reversed(away))
    assert near < 0.1 * middle < 0.09 * far


def test_a_head_without_bias_tells_them_too(without_bias):
    batch = pictures([1, 5, 7])
    for defense in (sp.chain(), sp.Dropout(0.5)):
        seen = observe(without_bias, batch, defense)
        found = estimated_features().recover(seen, rng=sp.rng(1))
        assert misses(seen, found.values, batch.inputs) < 0.02
        assert misses(seen, usual(seen), batch.inputs) > 0.06


@pytest.mark.slow
def test_labels_may_be_probabilities(task):
    batch = pictures([1, 5, 7])
    seen = observe(task, batch, sp.Dropout(0.5))
    hard = estimated_features().recover(seen, rng=sp.rng(1))
    as_shares = replace(seen, labels=one_hot(seen.labels, 10).float())
    found = estimated_features().recover(as_shares, rng=sp.rng(1))
    torch.testing.assert_close(found.values, hard.values)
    # Of mixtures they say more than any class does.
    client = sp.Client(sp.Gradient(), sp.MixUp(2))
    (prepared,) = client.share(task.in_mode("train"), batch, rng=sp.rng(0)).prepared_batches
    mixed = replace(observe(task, batch, sp.MixUp(2)), labels=prepared.batch.labels)
    found = estimated_features().recover(mixed, rng=sp.rng(1))
    assert misses(mixed, found.values, prepared.batch.inputs) < 0.01
    nearest = replace(mixed, labels=prepared.batch.labels.argmax(1))
    wrong = estimated_features().recover(nearest, rng=sp.rng(1))
    assert wrong.residual > 10 * found.residual


def test_what_it_cannot_work_with_is_refused(task):
    batch = pictures([2, 4])
    recover = estimated_features().recover
    with pytest.raises(MissingKnowledge, match=r"estimated_features.*labels"):
        recover(observe(task, batch, knows_labels=False), rng=sp.rng(1))

    def squared(logits, labels):
        return (logits - one_hot(labels, 10)).square().sum(1)

    with pytest.raises(
        NotApplicable, match="estimated_features reads the gradient of cross-entropy"
    ):
        recover(observe(replace(task, loss=squared), batch), rng=sp.rng(1))
    for noise in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidValue, match=f"noise > 0, got {noise!r}"):
            estimated_features(noise=noise)
    with pytest.raises(InvalidValue, match="steps >= 1, got 0"):
        estimated_features(steps=0)


@pytest.mark.parametrize(
    ("labels", "defense"), [([1, 5, 7], sp.Dropout(0.5)), ([*range(10)], None)], ids=str
)
def test_who_teaches_by_force_uses_them_by_himself(task, labels, defense):
    seen = observe(task, pictures(labels), defense)
    _, lower = teacher_forced(steps=2)._prepare(seen, sp.rng(1))
    assert set(lower.update.tensors) == set(seen.update.tensors) - {"fc.weight", "fc.bias"}
