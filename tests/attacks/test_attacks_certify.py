"""A certificate says that a guess explains the update, and whether any neighbour does as well."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.jacobian import Jacobian, update_jacobian
from seepage.attacks.uniqueness import dense_full_rank, full_column_rank, lanczos_full_rank
from seepage.core.errors import MissingKnowledge


def scene(model, *, pixels=8, size=1, defense=None, threat=None, **options):
    """What is seen of `size` small photos, and the guess that is the truth."""
    photos = sp.data.load("photos", pixels=pixels)
    batch = photos.batch(size)
    task = sp.zoo.build(model, options={"domain": photos.domain, **options})
    client = sp.Client(sp.Gradient(), defense or sp.chain())
    seen = (threat or sp.Threat()).observe(client, task, batch, rng=sp.rng(0))
    return seen, sp.Reconstruction(batch.inputs, batch.labels)


def jacobian_at(seen, guess):
    return update_jacobian(seen, guess.inputs, guess.labels)


UNIQUE = [
    ("mlp", {"hidden": [16]}),  # Proposition 1 of Geiping et al.
    ("mlp", {"hidden": [1], "activation": "sigmoid"}),  # Proposition 1 of Qian and Hansen
    ("cnn3-v3", {}),  # c(M) = 0
    ("cnn2-v1", {"pixels": 10}),
    ("fc", {"hidden": 6, "size": 4}),  # more hidden units than people
    ("single_conv", {}),  # as many filters as the counting rule asks for
]
AMBIGUOUS = [
    ("cnn3-v4", {}),  # enough equations, but one filter is all that sees the image
    ("cnn2-v2", {"pixels": 16}),  # wide strides leave fewer outputs than pixels
    ("single_conv", {"filters": 1}),
    ("mlp", {"hidden": [1], "size": 4}),
    ("fc", {"hidden": 3, "size": 4}),
]


@pytest.mark.parametrize(("model", "options"), UNIQUE, ids=str)
def test_where_theory_has_one_solution_the_certificate_says_so(model, options):
    certificate = sp.certify(*scene(model, **options))
    assert certificate.residual < 1e-6
    assert certificate.unique is True


@pytest.mark.parametrize(("model", "options"), AMBIGUOUS, ids=str)
def test_where_equations_lack_the_certificate_says_so(model, options):
    certificate = sp.certify(*scene(model, **options))
    assert certificate.residual < 1e-6
    assert certificate.unique is False


SMALL = [(model, options) for model, options in [*UNIQUE, *AMBIGUOUS] if "pixels" not in options]


@pytest.mark.parametrize(("model", "options"), SMALL, ids=str)
def test_lanczos_and_all_eigenvalues_give_the_same_answer(model, options):
    jacobian = jacobian_at(*scene(model, **options))
    assert lanczos_full_rank(jacobian) is dense_full_rank(jacobian)


def test_an_input_that_is_not_unique_can_be_moved_while_the_update_stays():
    seen, guess = scene("cnn3-v4")
    jacobian = jacobian_at(seen, guess)
    gram = jacobian.squared(torch.eye(jacobian.unknowns, dtype=torch.float64))
    silent = torch.linalg.eigh(gram).eigenvectors[:, 0].reshape(guess.inputs.shape).float()
    for direction, expected in ((silent, 1e-6), (torch.ones_like(silent) / len(gram) ** 0.5, None)):
        moved = replace(guess, inputs=guess.inputs + 0.5 * direction)
        residual = sp.certify(seen, moved).residual
        assert residual < expected if expected else residual > 1e-2


def naive_jacobian(seen, guess):
    """The Jacobian entry by entry, from torch's own double backward."""
    task = seen.task.to(dtype=torch.float64)
    parameters = {n: p.clone().requires_grad_() for n, p in task.parameters.items()}

    def update(inputs):
        loss = task.losses(parameters, inputs, guess.labels).mean()
        gradients = torch.autograd.grad(loss, parameters.values(), create_graph=True)
        return torch.cat([g.flatten() for g in gradients])

    full = torch.autograd.functional.jacobian(update, guess.inputs.double())
    return full.flatten(1)


@pytest.mark.parametrize(
    ("model", "options"), [("cnn3-v3", {"pixels": 5}), ("fc", {"hidden": 3, "size": 2})], ids=str
)
def test_products_with_the_jacobian_are_those_of_the_whole_matrix(model, options):
    seen, guess = scene(model, **options)
    whole = naive_jacobian(seen, guess)
    jacobian = jacobian_at(seen, guess)
    assert (jacobian.equations, jacobian.unknowns) == whole.shape
    ours = jacobian.squared(torch.eye(whole.shape[1], dtype=torch.float64))
    assert torch.allclose(ours, whole.T @ whole, rtol=1e-8, atol=1e-12)


def test_a_network_that_mixes_its_batch_is_differentiated_as_exactly():
    photos = sp.data.load("photos", pixels=5)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten()
        task = sp.Task(nn.Sequential(*layers, nn.Linear(36, 10)), sp.cross_entropy, photos.domain)
    batch = photos.batch(2)
    threat = sp.Threat(batchnorm="unknown")
    seen = threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    guess = sp.Reconstruction(batch.inputs, batch.labels)
    whole = naive_jacobian(seen, guess)
    few = torch.eye(whole.shape[1], dtype=torch.float64)[:6]
    assert torch.allclose(
        jacobian_at(seen, guess).squared(few), (whole.T @ whole)[:6], rtol=1e-8, atol=1e-12
    )


@pytest.mark.parametrize("decide", [dense_full_rank, lanczos_full_rank])
@pytest.mark.parametrize(("least", "expected"), [(1e-4, True), (1e-5, True), (1e-8, False)])
def test_a_singular_value_counts_from_a_millionth_of_the_largest(decide, least, expected):
    rows, columns = 60, 40
    left, _ = torch.linalg.qr(sp.rng(0).fork("left").normal((rows, columns)).double())
    right, _ = torch.linalg.qr(sp.rng(0).fork("right").normal((columns, columns)).double())
    values = torch.cat([torch.tensor([least]), torch.linspace(0.1, 1, columns - 1)]).double()
    matrix = left @ torch.diag(values) @ right
    assert decide(Jacobian(lambda x: matrix @ x, torch.zeros(columns).double())) is expected


@pytest.mark.parametrize("decide", [dense_full_rank, lanczos_full_rank])
@pytest.mark.parametrize("least", [1e-2, 1e-4])
def test_one_silent_direction_among_hundreds_that_speak_softly_is_found(decide, least):
    values = torch.logspace(0, torch.tensor(least).log10().item(), 200).double()
    values[7] = 0.0
    assert decide(Jacobian(lambda x: values * x, torch.zeros(200).double())) is False


def test_a_map_that_only_scales_is_settled_though_no_second_direction_comes_of_it():
    assert lanczos_full_rank(Jacobian(lambda x: 2 * x, torch.zeros(50).double())) is True


def test_behind_a_defense_that_rounds_nothing_is_claimed():
    certificate = sp.certify(*scene("mlp", hidden=[16], defense=sp.Sign()))
    assert certificate.residual < 1e-6
    assert certificate.unique is None


def test_behind_pruning_what_is_left_decides():
    assert sp.certify(*scene("mlp", hidden=[16], defense=sp.Prune(0.5))).unique is True
    assert sp.certify(*scene("mlp", hidden=[16], defense=sp.Prune(0.99))).unique is False


def test_too_few_steps_leave_it_unknown():
    jacobian = jacobian_at(*scene("cnn3-v3"))
    assert lanczos_full_rank(jacobian, steps=5) is None


def test_too_few_equations_settle_it_whatever_the_size():
    assert full_column_rank(Jacobian(lambda x: x[:3], torch.zeros(1_000_000))) is False


def test_noise_fails_the_residual_and_uniqueness_is_then_not_claimed():
    for strength, least in ((1e-3, 0.01), (0.05, 0.5)):
        certificate = sp.certify(*scene("cnn3-v3", defense=sp.AddGaussian(strength)))
        assert certificate.residual > least
        assert certificate.unique is None


def test_the_closed_form_is_certified_by_the_jacobian_as_by_its_own_theory():
    seen, _ = scene("mlp", hidden=[16], threat=sp.Threat(knows_labels=True))
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    assert guess.certificate == sp.certify(seen, guess)
    assert guess.certificate.unique


def test_a_wrong_input_is_not_certified():
    seen, guess = scene("cnn3-v3")
    certificate = sp.certify(seen, replace(guess, inputs=guess.inputs.flip(-1)))
    assert certificate.residual > 0.1
    assert certificate.unique is None


def test_labels_are_taken_from_the_guess_then_from_the_observation_or_asked_for():
    seen, guess = scene("mlp", hidden=[8])
    nameless = replace(guess, labels=None)
    with pytest.raises(MissingKnowledge, match="needs the labels"):
        sp.certify(seen, nameless)
    known = replace(seen, labels=guess.labels)
    assert sp.certify(known, nameless) == sp.certify(seen, guess)


def test_a_simulation_of_ones_own_has_a_residual_but_no_claim_of_uniqueness():
    seen, guess = scene("mlp", hidden=[8])
    own = replace(seen, simulate=lambda inputs, labels: seen.simulate(inputs, labels))
    certificate = sp.certify(own, guess)
    assert certificate.residual < 1e-6
    assert certificate.unique is None
