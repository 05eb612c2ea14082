"""Gradient matching: its parts against closed forms, the whole on real images."""

import pytest
import torch
from torch.func import vmap

import seepage as sp
from seepage.attacks.gradient_matching import Adam, Candidate, Cosine, StepDecay, TotalVariation
from seepage.attacks.gradient_matching.descent import descend
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable, UnknownName
from seepage.core.progress import listen
from seepage.domains import CIFAR10, Image, Signal


def observe(task, batch, *, local=None, defense=None, **threat):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    threat = sp.Threat(**{"knows_labels": True, **threat})
    return threat.observe(client, task, batch, rng=sp.rng(0))


def person(batch, i):
    return sp.Batch(batch.inputs[i : i + 1], batch.labels[i : i + 1])


def psnr(guess, batch):
    return sp.score(guess, batch)["psnr"]


def candidate(inputs, domain=CIFAR10):
    return Candidate(domain.normalise(inputs), torch.zeros(len(inputs)).long(), domain)


def test_a_photo_comes_back_through_two_convolutions(photos):
    batch = person(photos, 0)
    attack = sp.attacks.inverting_gradients(steps=500, restarts=1, tv=1e-6)
    guess = attack(observe(sp.zoo.cnn(variant="cnn3-v3"), batch), rng=sp.rng(1))
    assert psnr(guess, batch).item() > 30


def test_a_digit_comes_back_through_local_steps():
    digits = sp.data.load("digits")
    batch = digits.batch(1)
    task = sp.zoo.cnn(variant="cnn2-v1", domain=digits.domain)
    seen = observe(task, batch, local=sp.FedAvg(lr=1e-3, steps=3))
    attack = sp.attacks.inverting_gradients(steps=300, restarts=1, tv=1e-5)
    assert psnr(attack(seen, rng=sp.rng(1)), batch).item() > 25


def test_two_people_come_back_from_one_update(photos):
    batch = sp.Batch(photos.inputs[:2], photos.labels[:2])
    task = sp.zoo.cnn(variant="cnn2-v1")
    attack = sp.attacks.inverting_gradients(steps=500, restarts=1, tv=1e-5)
    assert psnr(attack(observe(task, batch), rng=sp.rng(1)), batch).min().item() > 22


@pytest.fixture(scope="module")
def three_restarts(photos):
    seen = observe(sp.zoo.cnn(variant="cnn2-v1"), person(photos, 0))
    attack = sp.attacks.inverting_gradients(steps=40, restarts=3, tv=1e-4)
    return attack, seen, attack(seen, rng=sp.rng(1))


def test_the_restart_with_the_lowest_objective_is_kept(three_restarts):
    *_, guess = three_restarts
    assert guess.trace.restarts == 3
    assert min(guess.trace.objective) == min(guess.trace.finals)


def test_the_guess_is_the_point_whose_own_objective_was_lowest(three_restarts):
    attack, seen, guess = three_restarts
    again = Candidate(CIFAR10.normalise(guess.inputs), guess.labels, CIFAR10)
    value = sum(t.weight * t(again, seen) for t in attack.terms)
    assert abs(float(value) - min(guess.trace.finals)) < 1e-6


def test_a_restart_is_the_same_alone_and_among_others(three_restarts):
    _, seen, guess = three_restarts
    alone = sp.attacks.inverting_gradients(steps=40, restarts=1, tv=1e-4)(seen, rng=sp.rng(1))
    assert alone.trace.finals[0] == guess.trace.finals[0]


def test_progress_is_reported(photos):
    seen = observe(sp.zoo.mlp(hidden=(8,)), person(photos, 0))
    heard = []
    with listen(lambda *report: heard.append(report)):
        sp.attacks.inverting_gradients(steps=60, restarts=1)(seen, rng=sp.rng(1))
    assert [step for step, _, _ in heard] == [0, 25, 50, 60]
    assert heard[-1][2] <= heard[0][2]


def test_unknown_labels_are_asked_for(photos):
    seen = observe(sp.zoo.mlp(hidden=(8,)), photos, knows_labels=False)
    with pytest.raises(MissingKnowledge, match="needs the labels"):
        sp.attacks.inverting_gradients(steps=1, restarts=1)(seen, rng=sp.rng(1))


def test_settings_are_those_of_table_2():
    a, b, c = (sp.attacks.inverting_gradients(setting=s) for s in "ABC")
    assert (a.steps, a.restarts, a.terms[0].top, a.terms[1].weight) == (4000, 32, None, 1e-8)
    assert (b.steps, b.restarts, b.terms[0].top, b.terms[1].weight) == (12_000, 16, 10, 1e-4)
    assert c == b
    assert a.optimiser == Adam(step_size=0.1, signed=True)
    with pytest.raises(UnknownName, match="unknown setting 'D'"):
        sp.attacks.inverting_gradients(setting="D")


@pytest.mark.parametrize("option", [{"steps": 0}, {"restarts": 0}, {"step_size": 0.0}])
def test_impossible_budgets_are_refused(option):
    with pytest.raises(InvalidValue, match=r"got .*0"):
        sp.attacks.inverting_gradients(**option)


def test_cosine_is_zero_at_the_truth_and_equals_the_definition(photos):
    batch = person(photos, 0)
    task = sp.zoo.cnn(variant="cnn2-v2")
    seen = observe(task, batch)
    at_truth = Candidate(CIFAR10.normalise(batch.inputs), batch.labels, CIFAR10)
    assert float(Cosine()(at_truth, seen)) < 1e-10
    other = Candidate(CIFAR10.normalise(photos.inputs[1:2]), batch.labels, CIFAR10)
    ours = sp.Gradient()(task, photos.inputs[1:2], batch.labels).flat().double()
    theirs = seen.update.flat().double()
    definition = 1 - (ours @ theirs) / (ours.norm() * theirs.norm())
    assert abs(float(Cosine()(other, seen)) - float(definition)) < 1e-6


def test_top_n_compares_the_tensors_of_largest_observed_norm(photos):
    batch = person(photos, 0)
    task = sp.zoo.cnn(variant="cnn4-v1")
    seen = observe(task, batch)
    names = sorted(seen.update.tensors, key=lambda n: -float(seen.update.tensors[n].norm()))[:2]
    ours = sp.Gradient()(task, photos.inputs[1:2], batch.labels)
    a, b = (torch.cat([u.tensors[n].flatten() for n in names]) for u in (ours, seen.update))
    definition = 1 - torch.nn.functional.cosine_similarity(a, b, dim=0)
    other = Candidate(CIFAR10.normalise(photos.inputs[1:2]), batch.labels, CIFAR10)
    assert torch.isclose(Cosine(top=2)(other, seen), definition, atol=1e-6)
    with pytest.raises(InvalidValue, match="top >= 1"):
        Cosine(top=0)


def test_a_constant_image_has_no_variation():
    constant = candidate(torch.full((2, 3, 32, 32), 0.3))
    assert float(TotalVariation(weight=1.0)(constant, None)) < 1e-6


def test_total_variation_equals_a_loop():
    plain = Image((2, 4, 5))
    inputs = plain.sample(3, rng=sp.rng(0)).double()
    down = [
        abs(float(inputs[n, c, i + 1, j] - inputs[n, c, i, j]))
        for n in range(3)
        for c in range(2)
        for i in range(3)
        for j in range(5)
    ]
    along = [
        abs(float(inputs[n, c, i, j + 1] - inputs[n, c, i, j]))
        for n in range(3)
        for c in range(2)
        for i in range(4)
        for j in range(4)
    ]
    expected = sum(down) / len(down) + sum(along) / len(along)
    value = TotalVariation(weight=1.0)(candidate(inputs, plain), None)
    assert abs(float(value) - expected) < 1e-12


def test_total_variation_of_a_signal_is_along_its_one_axis():
    domain = Signal((1, 4))
    zigzag = torch.tensor([[[0.0, 1.0, 0.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]])
    assert float(TotalVariation(weight=1.0)(candidate(zigzag, domain), None)) == 0.5


def test_terms_work_under_vmap(photos):
    seen = observe(sp.zoo.cnn(variant="cnn2-v2"), person(photos, 0))
    starts = sp.rng(0).normal((3, 1, 3, 32, 32))

    def value(point):
        trial = Candidate(point, seen.labels, CIFAR10)
        return Cosine()(trial, seen) + TotalVariation(weight=0.1)(trial, seen)

    assert torch.allclose(vmap(value)(starts), torch.stack([value(s) for s in starts]), atol=1e-5)


@pytest.mark.parametrize("signed", [True, False])
def test_adam_moves_like_torch(signed):
    target = sp.rng(0).normal((5,)).double()
    rule = Adam(step_size=0.05, signed=signed)
    ours, state = torch.zeros(5).double(), rule.start(torch.zeros(5).double())
    theirs = torch.zeros(5).double().requires_grad_()
    reference = torch.optim.Adam([theirs], lr=0.05)
    for _ in range(30):
        ours, state = rule.step(ours, 2 * (ours - target), state, 1.0)
        slope = 2 * (theirs.detach() - target)
        theirs.grad = slope.sign() if signed else slope
        reference.step()
    assert torch.allclose(ours, theirs.detach(), atol=1e-12)


def test_the_step_size_falls_at_the_papers_milestones():
    factors = [StepDecay()(step, 800) for step in (0, 299, 300, 499, 500, 699, 700, 799)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def run(objective, start=1.0, steps=100):
    return descend(
        objective,
        torch.tensor([start]),
        optimiser=Adam(step_size=0.1),
        schedule=StepDecay(),
        steps=steps,
        project=lambda x: x,
    )


def test_a_run_that_stops_being_finite_ends_at_its_best_point():
    # Below 0.5 the logarithm of a negative number is NaN.
    result = run(lambda x: (x - 0.5).log().sum())
    assert result.value == min(v for v in result.values if v == v)
    assert float(result.point) > 0.5


def test_a_run_that_was_never_finite_has_infinite_value():
    assert run(lambda x: (x * torch.nan).sum()).value == float("inf")


def test_an_attack_whose_restarts_all_diverge_says_so(photos):
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Diverging:
        weight: float = 1.0

        def __call__(self, candidate, observation):
            return (candidate.normalised * torch.nan).sum()

    from seepage.attacks.gradient_matching import GradientMatching

    attack = GradientMatching(
        terms=(Diverging(),), optimiser=Adam(), schedule=StepDecay(), steps=2, restarts=2
    )
    seen = observe(sp.zoo.mlp(hidden=(8,)), person(photos, 0))
    with pytest.raises(NotApplicable, match="every one of 2 restarts diverged"):
        attack(seen, rng=sp.rng(0))
