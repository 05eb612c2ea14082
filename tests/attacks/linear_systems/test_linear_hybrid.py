"""The hybrid chooses among the solutions of linear systems, and chooses better than R-GAP."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.linear_systems._hybrid import Hybrid, _observe_tail
from seepage.attacks.linear_systems._rgap import walk_back
from seepage.core import SideBySide
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable, UnknownName
from seepage.domains import Image
from seepage.probing._layer_stack import read_stack
from seepage.search import Engine, LayerwiseCosine

QUICK = {"steps": (30, 10, 10), "step_size": 2e-2}


def shifted(pixels):
    return Image((3, pixels, pixels), mean=(0.5, 0.5, 0.5))


def observe(task, batch, *, labels=True, defense=None):
    client = sp.Client(sp.Gradient(), defense or sp.chain())
    return sp.Threat(knows_labels=labels).observe(client, task, batch, rng=sp.rng(0))


def photo(pixels):
    return sp.data.load("photos", pixels=pixels).batch(1)


def psnr(guess, batch):
    return sp.score(guess, batch)["psnr"].item()


def test_a_cifar_image_is_better_than_the_solution_of_least_norm(data_root, monkeypatch):
    monkeypatch.setenv("SEEPAGE_DATA", str(data_root))
    batch = sp.data.load("cifar10").batch(1)
    seen = observe(sp.zoo.cnn(variant="cnn2-v2", domain=shifted(32)), batch)
    least = psnr(sp.attacks.rgap()(seen, rng=sp.rng(1)), batch)
    guess = sp.attacks.hybrid(steps=(30, 1, 1), step_size=2e-2)(seen, rng=sp.rng(1))
    assert psnr(guess, batch) > least + 3


@pytest.mark.slow
def test_errors_from_the_layer_above_do_not_undo_the_gain():
    batch = photo(16)
    seen = observe(sp.zoo.cnn(variant="cnn3-v1", domain=shifted(16)), batch)
    least = psnr(sp.attacks.rgap()(seen, rng=sp.rng(1)), batch)
    guess = sp.attacks.hybrid(steps=(30, 30, 1), step_size=2e-2)(seen, rng=sp.rng(1))
    assert psnr(guess, batch) > least + 1


def test_what_is_certain_is_not_corrected():
    batch = photo(8)
    seen = observe(sp.zoo.cnn(variant="cnn3-v3", domain=shifted(8)), batch)
    guess = sp.attacks.hybrid(**QUICK)(seen, rng=sp.rng(1))
    assert torch.equal(guess.inputs, sp.attacks.rgap()(seen, rng=sp.rng(1)).inputs)
    assert guess.certificate.unique
    assert guess.trace.steps == 0


@pytest.mark.parametrize(("constraint", "gain"), [("hard", 3.0), ("soft", 1.0)])
def test_either_constraint_beats_least_norm(constraint, gain):
    batch = photo(16)
    seen = observe(sp.zoo.cnn(variant="cnn2-v2", domain=shifted(16)), batch)
    guess = sp.attacks.hybrid(constraint=constraint, **QUICK)(seen, rng=sp.rng(1))
    assert psnr(guess, batch) > psnr(sp.attacks.rgap()(seen, rng=sp.rng(1)), batch) + gain
    assert guess.trace.steps == 30


def test_the_hard_constraint_keeps_the_system_solved():
    batch = photo(16)
    seen = observe(sp.zoo.cnn(variant="cnn2-v2", domain=shifted(16)), batch)
    stack = read_stack(seen.task)
    walk = (seen.update, seen.update.tensors["head.bias"].double())
    (step,) = walk_back(stack, [walk], damping=0.0)
    off = {}
    for constraint in ("hard", "soft"):
        guess = sp.attacks.hybrid(constraint=constraint, **QUICK)(seen, rng=sp.rng(1))
        x = seen.task.domain.normalise(guess.inputs).double().flatten()
        off[constraint] = (step.system.apply(x) - step.target).norm() / step.target.norm()
    assert off["hard"] < 1e-2
    assert off["hard"] < off["soft"]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_the_tail_at_the_true_features_shares_what_was_observed(index):
    batch = photo(16)
    seen = observe(sp.zoo.cnn(variant="cnn4-v1", domain=shifted(16)), batch)
    stack = read_stack(seen.task)
    tail = _observe_tail(seen, stack, index)
    features = seen.task.domain.normalise(batch.inputs).double()
    for layer in stack.layers[:index]:
        features = layer(features)
    features = tail.task.domain.denormalise(features.float())
    again = tail.simulate(features, batch.labels)
    torch.testing.assert_close(again.flat(), tail.update.flat(), rtol=1e-4, atol=1e-6)
    sizes = [t.numel() for t in seen.update][index:]
    assert [t.numel() for t in tail.update] == sizes


def first_step(task, batch):
    seen, stack = observe(task, batch), read_stack(task)
    _, bias = stack.layers[-1].parameters
    walk = (seen.update, seen.update.tensors[bias].double())
    return seen, walk_back(stack, [walk], damping=0.0)[0]


def test_every_solution_of_a_settled_layer_explains_the_update():
    batch = photo(8).to(dtype=torch.float64)
    task = sp.zoo.cnn(variant="cnn3-v4", domain=shifted(8)).to(dtype=torch.float64)
    seen, step = first_step(task, batch)
    assert step.settled
    assert not step.determined
    matrix = step.system.apply(torch.eye(step.system.shape[1], dtype=torch.float64)).T
    _, values, rows = torch.linalg.svd(matrix)
    unseen = rows[int((values > 1e-10 * values[0]).sum()) :]
    noise = unseen.T @ sp.rng(0).normal((len(unseen),), like=unseen)
    other = batch.inputs + noise.reshape(batch.inputs.shape)
    assert (other - batch.inputs).norm() > 1
    assert torch.allclose(
        seen.simulate(other, batch.labels).flat(), seen.update.flat(), rtol=1e-9, atol=1e-12
    )


def test_a_layer_behind_gaps_or_errors_is_not_settled():
    network = nn.Sequential(nn.Conv2d(3, 1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 10))
    gaps = sp.Task(network, sp.cross_entropy, shifted(8), name="relu")
    _, step = first_step(gaps, photo(8))
    assert not step.system.known.all()
    assert not step.settled
    _, step = first_step(sp.zoo.cnn(variant="cnn3-v2", domain=shifted(16)), photo(16))
    assert not step.exact
    assert not step.settled


@pytest.mark.parametrize(("hard", "matched"), [(True, False), (False, True)])
def test_gradients_are_matched_unless_all_solutions_explain_them(hard, matched):
    seen, step = first_step(sp.zoo.cnn(variant="cnn3-v4", domain=shifted(8)), photo(8))
    correction = sp.attacks.hybrid().corrections[0]
    attack = correction.attack(seen, step, hard=hard, step_size=1e-2, engine=Engine())
    kinds = [type(term) for term in attack.search.terms]
    assert (LayerwiseCosine in kinds) == matched


@pytest.mark.slow
def test_one_filter_is_no_worse_than_least_norm(data_root, monkeypatch):
    monkeypatch.setenv("SEEPAGE_DATA", str(data_root))
    images = sp.data.load("cifar10")
    batches = [images.batch(1, start=i) for i in (104, 105)]
    task = sp.zoo.cnn(variant="cnn3-v4", domain=shifted(32))
    seen = [observe(task, batch) for batch in batches]
    keys = [sp.rng(i) for i in range(len(seen))]

    def mean(attack):
        guesses = attack.many(seen, rngs=keys)
        return sum(psnr(g, b) for g, b in zip(guesses, batches, strict=True)) / len(guesses)

    quick = sp.attacks.hybrid(steps=(60, 1, 1), step_size=1e-2)
    assert mean(quick) > mean(sp.attacks.rgap()) + 0.1


def test_features_stay_in_the_range_of_their_activation():
    seen = observe(sp.zoo.cnn(variant="cnn3-v1", domain=shifted(16)), photo(16))
    assert _observe_tail(seen, read_stack(seen.task), 1).task.domain.bounds == (-1.0, 1.0)


def test_noise_gives_a_finite_guess_and_an_honest_certificate():
    seen = observe(
        sp.zoo.cnn(variant="cnn2-v2", domain=shifted(16)), photo(16), defense=sp.AddGaussian(1e-2)
    )
    guess = sp.attacks.hybrid(steps=(20, 5, 5), step_size=1e-2)(seen, rng=sp.rng(1))
    assert bool(guess.inputs.isfinite().all())
    assert guess.certificate.residual > 1e-2
    assert guess.certificate.unique is None


@pytest.mark.parametrize("constraint", ["hard", "soft"])
@pytest.mark.parametrize("variant", ["cnn2-v2", pytest.param("cnn3-v2", marks=pytest.mark.slow)])
def test_side_by_side_is_one_by_one(variant, constraint):
    task = sp.zoo.cnn(variant=variant, domain=shifted(16)).to(dtype=torch.float64)
    images = sp.data.load("photos", pixels=16)
    batches = [images.batch(1, start=i).to(dtype=torch.float64) for i in range(3)]
    seen, rngs = [observe(task, batch) for batch in batches], [sp.rng(i) for i in range(3)]
    options = {"constraint": constraint, "steps": (3, 3, 3), "step_size": 2e-2}
    attack = sp.attacks.hybrid(**options, engine=Engine(rows=3, strategy="shared"))
    assert isinstance(attack, SideBySide)
    alone = [attack(one, rng=rng) for one, rng in zip(seen, rngs, strict=True)]
    assert all(one.trace.steps > 0 for one in alone), "nothing was searched for"
    for one, other in zip(alone, attack.many(seen, rngs=rngs), strict=True):
        torch.testing.assert_close(other.inputs, one.inputs, rtol=0, atol=1e-6)
        assert other.trace.objective == pytest.approx(one.trace.objective, rel=1e-6)
        assert other.certificate.unique == one.certificate.unique
    assert not torch.allclose(alone[0].inputs, alone[1].inputs, atol=1e-2)


@pytest.mark.slow
def test_of_several_only_those_that_are_uncertain_are_corrected():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(180, 10)
        task = sp.Task(nn.Sequential(*layers), sp.cross_entropy, shifted(8))
    images = sp.data.load("photos", pixels=8)
    seen = [observe(task, images.batch(1, start=i)) for i in range(5)]
    guesses = sp.attacks.hybrid(**QUICK).many(seen, rngs=[sp.rng(i) for i in range(5)])
    # What a ReLU leaves of an image decides whether its equations suffice.
    certain = [guess.certificate.unique is True for guess in guesses]
    assert certain == [True, False, True, True, False]
    assert [guess.trace.steps for guess in guesses] == [0, 30, 0, 0, 30]


def test_it_needs_the_label_and_usable_options():
    task, batch = sp.zoo.cnn(variant="cnn2-v2", domain=shifted(16)), photo(16)
    with pytest.raises(MissingKnowledge, match="labels"):
        sp.attacks.hybrid()(observe(task, batch, labels=False), rng=sp.rng(1))
    with pytest.raises(UnknownName, match="did you mean 'soft'"):
        sp.attacks.hybrid(constraint="softer")
    with pytest.raises(InvalidValue, match="expected 3 numbers of steps"):
        sp.attacks.hybrid(steps=(100,))
    with pytest.raises(InvalidValue, match="expected damping >= 0"):
        sp.attacks.hybrid(damping=-0.1)
    with pytest.raises(NotApplicable, match="inverting_gradients"):
        sp.attacks.hybrid()(observe(sp.zoo.convnet(width=4), photo(32)), rng=sp.rng(1))


def test_its_setting_is_the_papers_with_less_total_variation():
    attack = sp.attacks.hybrid(setting="paper")
    assert isinstance(attack, Hybrid)
    weights = [(c.steps, c.matching, c.tv, c.system) for c in attack.corrections]
    assert weights == [(10_000, 1, 0.1, 0.05), (8_000, 1, 0.1, 0.1), (1_000, 10, 0.1, 1)]
    assert [c.norm / c.tv for c in attack.corrections] == pytest.approx([0.01] * 3)
    assert attack.step_size == 1e-3
