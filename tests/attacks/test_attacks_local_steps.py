"""Updates of several local steps."""

import pytest
import torch

import seepage as sp
from seepage.attacks._applicability import check_applicability
from seepage.attacks._local_steps import (
    EpochAgnostic,
    EpochInvariance,
    SoftSteps,
    SurrogateModel,
    _merge_epochs,
    _observe_at,
)
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable
from seepage.rehearsal._portfolio import list_contenders
from seepage.search import Candidate


def observe(task, batch, local, **threat):
    threat = sp.Threat(**{"knows_labels": True, **threat})
    return threat.observe(sp.Client(local), task, batch, rng=sp.rng(0))


def matching(steps=250):
    return sp.attacks.inverting_gradients(steps=steps, restarts=1, tv=1e-5)


def psnr(guess, batch):
    return sp.score(guess, batch)["psnr"]


@pytest.fixture(scope="module")
def digits():
    return sp.data.load("digits")


@pytest.mark.slow
def test_a_surrogate_recovers_from_many_steps_without_unrolling_them(digits):
    batch = digits.batch(1, start=3)
    task = sp.zoo.cnn(variant="cnn2-v1", domain=digits.domain)
    seen = observe(task, batch, sp.FedAvg(lr=1e-2, steps=20))
    guess = SurrogateModel(matching(200))(seen, rng=sp.rng(1))
    assert psnr(guess, batch).item() > 20


@pytest.mark.slow
def test_the_position_whose_objective_ends_lowest_wins(digits):
    batch = digits.batch(1, start=2)
    task = sp.zoo.cnn(variant="cnn2-v1", domain=digits.domain)
    seen = observe(task, batch, sp.FedAvg(lr=0.05, steps=20))
    inner = [
        matching(60)(_observe_at(seen, a), rng=sp.rng(1).fork("surrogate", i))
        for i, a in enumerate((0.5, 0.0))
    ]
    chosen = SurrogateModel(matching(60), positions=(0.5, 0.0))(seen, rng=sp.rng(1))
    best = min(inner, key=lambda guess: min(guess.trace.finals))
    assert torch.equal(chosen.inputs, best.inputs)
    assert len({min(guess.trace.finals) for guess in inner}) == 2


def test_one_step_at_the_start_is_the_gradient_itself(digits):
    batch = digits.batch(1)
    task = sp.zoo.cnn(variant="cnn2-v2", domain=digits.domain)
    seen = observe(task, batch, sp.FedAvg(lr=0.1, steps=1))
    seen_by_wrapped = []

    def spy(observation, *, rng):
        seen_by_wrapped.append(observation)
        return sp.Reconstruction(batch.inputs)

    SurrogateModel(spy, positions=(0.0,))(seen, rng=sp.rng(0))
    [inner] = seen_by_wrapped
    gradient = sp.Gradient()(task, batch.inputs, batch.labels)
    assert torch.allclose(inner.update.flat(), 0.1 * gradient.flat(), atol=1e-7)
    assert torch.allclose(inner.simulate(batch.inputs, batch.labels).flat(), gradient.flat())


@pytest.mark.slow
def test_people_come_back_from_epochs_in_unknown_order(digits):
    batch = digits.take([7, 1, 4, 2])
    task = sp.zoo.cnn(variant="cnn2-v1", domain=digits.domain)
    seen = observe(task, batch, sp.FedAvg(lr=1e-2, epochs=2, local_batch_size=2))
    guess = EpochAgnostic(matching(300))(seen, rng=sp.rng(1))
    assert guess.inputs.shape == batch.inputs.shape
    assert psnr(guess, batch).median().item() > 16


def test_epochs_of_the_same_data_cost_nothing_in_any_order():
    domain = sp.domains.Image((1, 2, 2))
    inputs = domain.sample(3, rng=sp.rng(0))

    def cost(second):
        both = torch.cat([inputs, second])
        candidate = Candidate(both, torch.zeros(6).long(), None, domain, torch.zeros(()), both)
        return float(EpochInvariance(epochs=2)(candidate, None))

    assert cost(inputs.flip(0)) < 1e-12
    shifted = cost(inputs + 0.5)
    assert shifted == pytest.approx(2 * 0.25**2)


def test_merging_pairs_before_it_averages():
    first = torch.eye(3)
    noisy = first[[2, 0, 1]] + 0.1
    assert torch.allclose(_merge_epochs(torch.stack([first, noisy])), first + 0.05)


@pytest.mark.parametrize(
    ("wrapper", "local", "error", "said"),
    [
        (SurrogateModel, sp.Gradient(), NotApplicable, "this update is a gradient"),
        (EpochAgnostic, sp.FedAvg(lr=0.1, steps=2), NotApplicable, "trains for epochs"),
        (
            EpochAgnostic,
            sp.FedAvg(lr=0.1, epochs=2, local_batch_size=3),
            NotApplicable,
            "local batches that divide 4",
        ),
    ],
)
def test_what_does_not_fit_is_refused(digits, wrapper, local, error, said):
    task = sp.zoo.mlp(hidden=(4,), domain=digits.domain)
    seen = observe(task, digits.batch(4), local)
    with pytest.raises(error, match=said):
        wrapper(matching(1))(seen, rng=sp.rng(0))


def test_bad_options_are_refused(digits):
    with pytest.raises(InvalidValue, match="positions in"):
        SurrogateModel(matching(1), positions=(1.5,))
    with pytest.raises(InvalidValue, match="weight >= 0"):
        EpochAgnostic(matching(1), weight=-1.0)
    task = sp.zoo.mlp(hidden=(4,), domain=digits.domain)
    seen = observe(task, digits.batch(4), sp.FedAvg(lr=0.1, epochs=2), knows_labels=False)
    with pytest.raises(MissingKnowledge, match="labels"):
        EpochAgnostic(matching(1))(seen, rng=sp.rng(0))


ADAM = sp.Local(optimizer="Adam", lr=1e-3, steps=2)


def test_soft_steps_are_simulated_behind_adam_and_the_update_stays(digits):
    batch, task = digits.batch(1), sp.zoo.cnn(variant="cnn2-v1", domain=digits.domain)
    seen = observe(task, batch, ADAM)
    prepared = SoftSteps(matching()).prepare(seen, sp.rng(0))
    assert prepared.seen.simulate.client.local == ADAM.soften()
    assert prepared.seen.update is seen.update
    guess = SoftSteps(matching(2))(seen, rng=sp.rng(0))
    assert guess.inputs.shape == batch.inputs.shape


@pytest.mark.parametrize(
    "local",
    [
        sp.Gradient(),
        sp.FedAvg(lr=0.1, steps=2),
        sp.Local(optimizer="SGD", lr=0.1, steps=2, momentum=0.9),
    ],
    ids=repr,
)
def test_soft_steps_leave_other_clients_as_they_are(digits, local):
    task = sp.zoo.cnn(variant="cnn2-v1", domain=digits.domain)
    seen = observe(task, digits.batch(1), local)
    assert SoftSteps(matching()).prepare(seen, sp.rng(0)).seen is seen
    listed = list_contenders(seen, check_applicability(seen))
    assert not any(one.soft_steps for one in listed)


def test_auto_tries_soft_steps_and_true_ones_behind_adam(digits):
    task = sp.zoo.cnn(variant="cnn2-v1", domain=digits.domain)
    seen = observe(task, digits.batch(1), ADAM)
    first, second, *_ = list_contenders(seen, check_applicability(seen))
    assert (first.soft_steps, second.soft_steps) == (True, False)
    assert "with soft steps" in str(first)
    assert "with soft steps" not in str(second)


@pytest.mark.slow
def test_soft_steps_bring_more_back_behind_adam():
    photos = sp.data.load("photos", pixels=16)
    task = sp.zoo.cnn(variant="cnn2-v1", domain=photos.domain)
    search = sp.attacks.inverting_gradients(
        steps=150, restarts=1, tv=5e-2, spread=0.1, step_size=0.2, schedule="cosine"
    )
    found = torch.zeros(2)
    for person in range(4):
        batch = sp.Batch(photos.inputs[person : person + 1], photos.labels[person : person + 1])
        seen = observe(task, batch, sp.Local(optimizer="Adam", lr=1e-3, steps=1))
        for number, attack in enumerate((search, SoftSteps(search))):
            found[number] += psnr(attack(seen, rng=sp.rng(1)), batch).item() / 4
    assert found[1] > found[0] + 1
