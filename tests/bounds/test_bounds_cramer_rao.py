"""The Cramér-Rao bound against closed forms, and against an estimator that reaches it."""

import math

import numpy as np
import pytest
import torch
from benchmarks.two_layer import Derivatives, on_the_sphere, two_layer
from scipy.optimize import least_squares

import seepage as sp
from seepage.bounds import CramerRao, CramerRaoRelaxed, Identifiability, pruned_share
from seepage.core.errors import InvalidValue

STD = 0.01
INPUTS, WIDTH, PEOPLE = 6, 30, 3


@pytest.fixture(scope="module")
def task():
    return two_layer(INPUTS, WIDTH)


@pytest.fixture(scope="module")
def batch():
    return on_the_sphere(PEOPLE, INPUTS)


def client(*links, local=None):
    return sp.Client(local or sp.Gradient(reduction="sum"), sp.chain(*links))


def bound(who, task, batch, **options):
    return CramerRao(**options)(who, task, batch, rng=sp.rng(0))


def arrays(batch):
    return batch.inputs.double().numpy()[:, 0], 1 - 2 * batch.labels.numpy()


def jacobian(task, batch):
    return Derivatives.of(task).jacobian(*arrays(batch))


def gradient(task, batch):
    return Derivatives.of(task).gradient(*arrays(batch))


def error(j, std, people=PEOPLE):
    """sigma sqrt(tr_i((J^T J)^-1) / d), in NumPy."""
    inverse = np.linalg.inv(j.T @ j)
    return std * np.sqrt(np.diag(inverse).reshape(people, -1).mean(1))


def test_the_closed_form_is_the_derivative_of_the_gradient(task, batch):
    inputs, signs = arrays(batch)
    derivatives, step = Derivatives.of(task), 1e-6
    shared = client().expected(task, batch.inputs, batch.labels).flat().numpy()
    assert np.allclose(derivatives.gradient(inputs, signs), shared, atol=1e-5)
    numerical = np.zeros((WIDTH * (INPUTS + 1), inputs.size))
    for column in range(inputs.size):
        moved = np.zeros(inputs.size)
        moved[column] = step
        moved = moved.reshape(inputs.shape)
        ahead, behind = (derivatives.gradient(inputs + t, signs) for t in (moved, -moved))
        numerical[:, column] = (ahead - behind) / (2 * step)
    assert np.allclose(numerical, derivatives.jacobian(inputs, signs), atol=1e-7)


def test_it_is_the_trace_of_each_persons_block_of_the_inverse(task, batch):
    found = bound(client(sp.AddGaussian(STD)), task, batch)
    assert np.allclose(found.value, error(jacobian(task, batch), STD), rtol=1e-5)
    assert (found.side, found.metric, found.vacuous) == ("lower", "rmse", False)
    assert any("unbiased" in phrase for phrase in found.assumptions)


def test_the_relaxation_is_looser_and_what_equation_29_says(task, batch):
    who = client(sp.AddGaussian(STD))
    j = jacobian(task, batch).reshape(-1, PEOPLE, INPUTS)
    squares = (j**2).sum((0, 2))
    relaxed = CramerRaoRelaxed()(who, task, batch, rng=sp.rng(0)).value
    assert np.allclose(relaxed, STD * np.sqrt(INPUTS / squares), rtol=1e-5)
    assert bool((relaxed < bound(who, task, batch).value).all())
    estimated = CramerRaoRelaxed(held=0, probes=512)(who, task, batch, rng=sp.rng(0))
    assert np.allclose(estimated.value, relaxed, rtol=0.1)
    assert "probes" in estimated.assumptions[-1]


def test_maximum_likelihood_reaches_it(task, batch):
    inputs, signs = arrays(batch)
    derivatives, std, draws = Derivatives.of(task), 1e-3, 150
    clean = derivatives.gradient(inputs, signs)
    noise = np.random.default_rng(0).normal(size=(draws, clean.size)) * std
    misses = []
    for row in noise:
        fitted = least_squares(
            lambda x, seen=clean + row: derivatives.gradient(x.reshape(inputs.shape), signs) - seen,
            inputs.ravel(),
            jac=lambda x: derivatives.jacobian(x.reshape(inputs.shape), signs),
            method="lm",
        )
        misses.append(fitted.x.reshape(inputs.shape) - inputs)
    reached = np.sqrt((np.stack(misses) ** 2).mean((0, 2)))
    allowed = bound(client(sp.AddGaussian(std)), task, batch).value.numpy()
    assert np.allclose(reached, allowed, rtol=0.1)


def test_laplace_noise_counts_by_its_fisher_information(task, batch):
    """One over b squared: the mean of (d log p / dx)^2, integrated."""
    scale = 0.3
    grid = np.linspace(-12, 12, 200_001)
    density = np.exp(-np.abs(grid) / scale) / (2 * scale)
    score = np.gradient(np.log(density), grid)
    information = np.trapezoid(score**2 * density, grid)
    found = bound(client(sp.AddLaplace(scale)), task, batch)
    assert np.allclose(
        found.value, error(jacobian(task, batch), 1 / math.sqrt(information)), rtol=1e-4
    )


def test_noises_in_a_row_add_up(task, batch):
    both = bound(client(sp.AddGaussian(3 * STD), sp.AddGaussian(4 * STD)), task, batch)
    assert torch.allclose(both.value, bound(client(sp.AddGaussian(5 * STD)), task, batch).value)


def test_clipping_projects_the_jacobian(task, batch):
    """Lemma E.1: C / ||G|| (J - G G^T J / ||G||^2)."""
    g, j, most = gradient(task, batch), jacobian(task, batch), 0.1
    norm = np.linalg.norm(g)
    assert norm > most
    clipped = most / norm * (j - np.outer(g, g @ j) / norm**2)
    found = bound(client(sp.Clip(most), sp.AddGaussian(STD)), task, batch)
    assert np.allclose(found.value, error(clipped, STD), rtol=1e-4)
    loose = bound(client(sp.Clip(2 * norm), sp.AddGaussian(STD)), task, batch)
    assert np.allclose(loose.value, error(j, STD), rtol=1e-5)


def test_dp_sgd_projects_each_persons_own(task, batch):
    inputs, signs = arrays(batch)
    most, derivatives, blocks = 0.05, Derivatives.of(task), []
    for x, y in zip(inputs, signs, strict=True):
        g, j = derivatives.gradient(x[None], [y]), derivatives.jacobian(x[None], [y])
        norm = np.linalg.norm(g)
        assert norm > most
        blocks.append(most / norm * (j - np.outer(g, g @ j) / norm**2) / PEOPLE)
    private = sp.dp_sgd(max_norm=most, noise_multiplier=2.0, batch_size=PEOPLE)
    found = bound(client(private, local=sp.Gradient()), task, batch)
    # A direction that moves a clipped gradient along itself is invisible for nobody here.
    expected = error(np.concatenate(blocks, 1), 2.0 * most / PEOPLE)
    assert np.allclose(found.value, expected, rtol=1e-4)


def test_pruning_drops_rows_and_the_bound_jumps_past_the_first_layer(task, batch):
    g, j = gradient(task, batch), jacobian(task, batch)
    order = np.argsort(np.abs(g))
    values = {}
    for ratio in (0.5, 0.8, 0.9):
        rows = order[int(ratio * len(g)) :]
        prune = sp.Prune(ratio, scope="update")
        values[ratio] = bound(client(prune, sp.AddGaussian(STD)), task, batch).value.numpy()
        assert np.allclose(values[ratio], error(j[rows], STD), rtol=1e-4)
        share = pruned_share(client(prune), task, batch)
        lost = np.delete(j, rows, axis=0)
        assert share == pytest.approx((lost**2).sum() / (j**2).sum(), rel=1e-4)
    # d / (d + 1) = 0.857 of the entries are in the first layer. How much larger the error gets
    # depends on network and batch, so this is the mean over some.
    larger = {0.8: 0.0, 0.9: 0.0}
    for seed in range(6):
        network, people = (
            two_layer(INPUTS, WIDTH, seed=seed),
            on_the_sphere(PEOPLE, INPUTS, seed=seed),
        )
        g, j = gradient(network, people), jacobian(network, people)
        order = np.argsort(np.abs(g))
        for ratio in larger:
            pruned = error(j[order[int(ratio * len(g)) :]], STD)
            larger[ratio] += (pruned / error(j, STD)).mean() / 6
    assert larger[0.8] < 1.5 < 2 < larger[0.9]


def test_dropout_leaves_a_share_of_the_information_to_who_sees_the_mask(task, batch):
    j, rate, masks = jacobian(task, batch), 0.5, 400
    found = bound(client(sp.Dropout(rate), sp.AddGaussian(STD)), task, batch)
    assert np.allclose(found.value, error(j, STD) / math.sqrt(1 - rate), rtol=1e-5)
    drawn = np.random.default_rng(0).random((masks, len(j))) >= rate
    mean = np.mean([j[kept].T @ j[kept] for kept in drawn], axis=0)
    simulated = STD * np.sqrt(np.diag(np.linalg.inv(mean)).reshape(PEOPLE, -1).mean(1))
    assert np.allclose(found.value, simulated, rtol=0.02)
    after = bound(client(sp.AddGaussian(STD), sp.Dropout(rate)), task, batch)
    assert torch.allclose(after.value, found.value)
    rescaled = bound(client(sp.Dropout(rate, rescale=True), sp.AddGaussian(STD)), task, batch)
    assert torch.allclose(rescaled.value, found.value * (1 - rate))


def test_local_steps_are_differentiated_through(task, batch):
    """Two steps, the second at the parameters the first left, by finite differences."""
    local = sp.FedAvg(lr=0.05, steps=2)
    exact, step, columns = task.to(dtype=torch.float64), 1e-5, []
    inputs = batch.inputs.double()
    for column in range(inputs.numel()):
        moved = torch.zeros(inputs.numel(), dtype=torch.float64)
        moved[column] = step
        ahead, behind = (
            local(exact, inputs + sign * moved.reshape(inputs.shape), batch.labels).flat()
            for sign in (1, -1)
        )
        columns.append((ahead - behind) / (2 * step))
    found = bound(client(sp.AddGaussian(1e-4), local=local), task, batch)
    assert np.allclose(found.value, error(torch.stack(columns, 1).numpy(), 1e-4), rtol=1e-3)


def test_what_comes_after_the_noise_changes_nothing(task, batch):
    noisy = bound(client(sp.AddGaussian(STD)), task, batch)
    for link in (sp.Prune(0.9), sp.Sign(), sp.Quantize(4), sp.Clip(0.1)):
        later = bound(client(sp.AddGaussian(STD), link), task, batch)
        assert torch.equal(later.value, noisy.value)
        assert any("told" in phrase for phrase in later.assumptions)


def test_noise_of_several_clients_adds_up_in_their_mean(task, batch):
    """Three clients of one example each: the mean gradient in noise of std / sqrt(3)."""
    company = client(sp.AddGaussian(STD), sp.SecureAggregation(3), local=sp.Gradient())
    alone = client(sp.AddGaussian(STD / math.sqrt(3)), local=sp.Gradient())
    assert torch.allclose(bound(company, task, batch).value, bound(alone, task, batch).value)
    after = client(sp.AddGaussian(STD), sp.Prune(0.9), sp.SecureAggregation(3), local=sp.Gradient())
    j = jacobian(task, batch).reshape(-1, PEOPLE, INPUTS)
    apart = [error(j[:, i], STD, people=1)[0] for i in range(PEOPLE)]
    assert np.allclose(bound(after, task, batch).value, apart, rtol=1e-5)


def test_without_noise_it_says_so(task, batch):
    silent = bound(client(sp.AddGaussian(0.0)), task, batch)
    assert silent.vacuous
    assert "sigma = 0" in silent.remark
    assert silent.value.tolist() == [0.0] * PEOPLE
    observed = bound(client(), task, batch, std=STD)
    assert torch.equal(observed.value, bound(client(sp.AddGaussian(STD)), task, batch).value)


@pytest.mark.parametrize(
    ("links", "word"),
    [
        ((sp.Sign(), sp.AddGaussian(STD)), "rounds"),
        ((sp.Quantize(4), sp.AddGaussian(STD)), "rounds"),
        ((sp.MixUp(2), sp.AddGaussian(STD)), "draws"),
        ((sp.Dropout(0.5), sp.Clip(0.1), sp.AddGaussian(STD)), "draws"),
    ],
    ids=repr,
)
def test_what_it_cannot_bound_is_said_by_name(links, word):
    task = sp.zoo.mlp(hidden=(4,), domain=sp.domains.Image((1, 4, 4)))
    batch = sp.Batch(sp.rng(0).uniform((2, 1, 4, 4)), torch.tensor([1, 2]))
    found = bound(client(*links), task, batch)
    assert found.vacuous
    assert word in found.remark


def test_directions_that_leave_the_update_as_it_is_are_counted_and_shown(task, batch):
    who = client(sp.Prune(0.99, scope="update"), sp.AddGaussian(STD))
    found = bound(who, task, batch)
    determined = Identifiability().determined(who, task, batch, rng=sp.rng(0))
    left = PEOPLE * INPUTS - determined.rank
    assert f"{left} of {PEOPLE * INPUTS} directions" in found.remark
    assert bool(found.value.isinf().all())


def test_noise_of_no_scale_is_refused():
    for kind in (CramerRao, CramerRaoRelaxed):
        with pytest.raises(InvalidValue, match="expected std >= 0, got -1"):
            kind(std=-1.0)


def test_an_attack_in_closed_form_does_not_beat_it(photos):
    """Dividing gradients is unbiased to first order, and comes near what is allowed."""
    domain = sp.domains.Image((3, 8, 8))
    one = sp.Batch(photos.inputs[:1, :, 12:20, 12:20], photos.labels[:1])
    network = sp.zoo.mlp(hidden=(16,), domain=domain)
    who = sp.Client(sp.Gradient(), sp.AddGaussian(1e-4))
    threat, attack = sp.Threat(knows_labels=True), sp.attacks.analytic_fc()
    errors = []
    for seed in range(20):
        seen = threat.observe(who, network, one, rng=sp.rng(seed))
        errors.append(float(sp.score(attack(seen, rng=sp.rng(0)), one)["rmse"]))
    reached = math.sqrt(np.mean(np.square(errors)))
    allowed = float(bound(who, network, one).value)
    assert 0.95 * allowed < reached < 3 * allowed
