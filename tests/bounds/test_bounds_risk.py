"""Risk scores against the dense Jacobian, and their directions."""

import math

import pytest
import torch

import seepage as sp
from seepage.bounds.risk import (
    RISKS,
    GradientNorm,
    InfluenceFloor,
    InversionInfluence,
    JacobianNorm,
)
from seepage.core.errors import InvalidValue


@pytest.fixture(scope="module")
def scene():
    """Real photographs of 8 pixels a side, a small network and a client."""
    task = sp.zoo.mlp(hidden=(8,), domain=sp.domains.Image((3, 8, 8)))
    return sp.Client(sp.Gradient()), task, sp.data.bundled("photos", size=3, pixels=8)


@pytest.fixture(scope="module")
def jacobians(scene):
    """Dense, by torch's own reverse mode on a plain loop, without the library's Jacobian."""
    client, task, batch = scene
    exact = task.to(dtype=torch.float64)

    def of(person):
        def update(x):
            rows = batch.inputs.double().clone()
            rows[person] = x
            return client.expected(exact, rows, batch.labels).flat()

        found = torch.autograd.functional.jacobian(update, batch.inputs[person].double())
        return found.flatten(1)

    return [of(person) for person in range(len(batch))]


def test_the_gradient_norm_is_of_each_persons_own_gradient(scene):
    client, task, batch = scene
    found = GradientNorm()(client, task, batch, rng=sp.rng(0))
    for person in range(3):
        alone = sp.Batch(batch.inputs[person : person + 1], batch.labels[person : person + 1])
        norm = client(task, alone, rng=sp.rng(0)).norm()
        assert float(found[person]) == pytest.approx(float(norm), rel=1e-5)


def test_the_jacobian_norm_is_the_frobenius_norm(scene, jacobians):
    found = JacobianNorm(probes=512)(*scene, rng=sp.rng(0))
    exact = [float(j.norm()) for j in jacobians]
    assert found.tolist() == pytest.approx(exact, rel=0.15)


@pytest.mark.slow
def test_the_influence_is_the_damped_pseudo_inverse(scene, jacobians):
    score = InversionInfluence(damping=1e-2, iterations=60, draws=64)
    found = score(*scene, rng=sp.rng(0))
    for value, jacobian in zip(found.tolist(), jacobians, strict=True):
        gram = jacobian.T @ jacobian
        top = float(torch.linalg.eigvalsh(gram)[-1])
        damped = torch.linalg.inv(gram + 1e-2 * top * torch.eye(len(gram)).double()) @ jacobian.T
        # Over noise of deviation one, the mean square of A delta is ||A||_F^2 / d.
        assert value == pytest.approx(float(damped.norm()) / math.sqrt(len(gram)), rel=0.1)


@pytest.mark.slow
def test_the_floor_is_below_the_influence_and_is_its_formula(scene, jacobians):
    floor = InfluenceFloor(iterations=50, draws=64)(*scene, rng=sp.rng(0))
    whole = InversionInfluence(damping=1e-8, iterations=60, draws=64)(*scene, rng=sp.rng(0))
    assert bool((floor < whole).all())
    for value, jacobian in zip(floor.tolist(), jacobians, strict=True):
        top = float(torch.linalg.eigvalsh(jacobian.T @ jacobian)[-1])
        assert value == pytest.approx(float(jacobian.norm()) / top / math.sqrt(192), rel=0.1)


@pytest.mark.parametrize("name", RISKS)
def test_every_score_is_one_finite_number_per_person_and_a_function_of_its_key(scene, name):
    score = RISKS[name]()
    first, again = (score(*scene, rng=sp.rng(0)) for _ in range(2))
    assert first.shape == (3,)
    assert bool(first.isfinite().all())
    assert torch.equal(first, again)


def test_scaling_the_update_scales_the_scores_as_their_formulas_say(scene):
    _, task, batch = scene
    for kind, power in [(JacobianNorm, 1), (GradientNorm, 1), (InfluenceFloor, -1)]:
        mean = kind()(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
        total = kind()(sp.Client(sp.Gradient(reduction="sum")), task, batch, rng=sp.rng(0))
        # The gradient norm is of a person alone, for whom sum and mean are one.
        factor = 1.0 if kind is GradientNorm else 3.0**power
        assert (total / mean).tolist() == pytest.approx([factor] * 3, rel=1e-6)


def test_bad_numbers_get_a_sentence():
    with pytest.raises(InvalidValue, match="damping"):
        InversionInfluence(damping=0.0)
    with pytest.raises(InvalidValue, match="draws"):
        InfluenceFloor(draws=0)
