"""Gradient matching as a whole, on real images."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.core._progress import listen
from seepage.core.errors import Diverged, InvalidValue, MissingKnowledge, UnknownName
from seepage.domains import CIFAR10
from seepage.search import Adam, Engine, GradientMatching, Search, StepDecay
from seepage.search._objective import Layout, Objective
from seepage.search.fast import row_simulation


def observe(task, batch, *, local=None, defense=None, **threat):
    client = sp.Client(local or sp.Gradient(), defense or sp.chain())
    threat = sp.Threat(**{"knows_labels": True, **threat})
    return threat.observe(client, task, batch, rng=sp.rng(0))


def person(batch, i):
    return sp.Batch(batch.inputs[i : i + 1], batch.labels[i : i + 1])


def psnr(guess, batch):
    return sp.score(guess, batch)["psnr"]


@pytest.mark.slow
def test_a_photo_comes_back_through_two_convolutions(photos):
    batch = person(photos, 0)
    attack = sp.attacks.inverting_gradients(steps=500, restarts=1, tv=1e-6)
    guess = attack(observe(sp.zoo.cnn(variant="cnn3-v3"), batch), rng=sp.rng(1))
    assert psnr(guess, batch).item() > 30


class Averaged(nn.Module):
    """One block of attention over patches of 4 x 4, whose outputs are averaged."""

    def __init__(self, width=32):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 16, width))
        self.norm, self.mixed = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.wide, self.head = nn.Linear(width, width), nn.Linear(width, 10)

    def forward(self, inputs):
        tokens = self.patches(inputs).flatten(2).transpose(1, 2) + self.positions
        q, k, v = self.mixed(self.norm(tokens)).chunk(3, -1)
        tokens = tokens + (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        return self.head((tokens + nn.functional.gelu(self.wide(tokens))).mean(1))


@pytest.fixture(scope="module")
def transformer():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        domain = sp.data.load("photos", pixels=16).domain
        return sp.Task(Averaged().eval(), sp.cross_entropy, domain, name="transformer")


WHITENED = {"distance": "whitened", "optimiser": "lbfgs", "step_size": 1.0, "tv": (1e-1, 1e-3)}


def test_a_whitened_distance_reads_patches_that_a_cosine_averages(transformer):
    batch = sp.data.load("photos", pixels=16).batch(1)
    seen = observe(transformer, batch)
    plain = sp.attacks.inverting_gradients(steps=150, tv=1e-4)(seen, rng=sp.rng(1))
    guess = sp.attacks.inverting_gradients(steps=150, **WHITENED)(seen, rng=sp.rng(1))
    assert psnr(guess, batch).item() > psnr(plain, batch).item() + 5


def test_whitened_searches_side_by_side_are_those_one_by_one(transformer):
    photos = sp.data.load("photos", pixels=16)
    seen = [observe(transformer, photos.batch(1, start=i)) for i in range(2)]
    attack = sp.attacks.inverting_gradients(steps=5, engine=Engine(rows=2), **WHITENED)
    both = attack.many(seen, rngs=[sp.rng(0), sp.rng(1)])
    for case, rng, found in zip(seen, (sp.rng(0), sp.rng(1)), both, strict=True):
        torch.testing.assert_close(found.inputs, attack(case, rng=rng).inputs, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_a_digit_comes_back_through_local_steps():
    digits = sp.data.load("digits")
    batch = digits.batch(1)
    task = sp.zoo.cnn(variant="cnn2-v1", domain=digits.domain)
    seen = observe(task, batch, local=sp.FedAvg(lr=1e-3, steps=3))
    attack = sp.attacks.inverting_gradients(steps=300, restarts=1, tv=1e-5)
    assert psnr(attack(seen, rng=sp.rng(1)), batch).item() > 25


@pytest.mark.slow
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
    layout = Layout(1, CIFAR10)
    objective = Objective(
        attack.search.terms, (seen,), layout, seen.labels[None], row_simulation(seen, rows=1)
    )
    point = CIFAR10.normalise(guess.inputs).reshape(1, -1)
    assert abs(float(objective.values(point, torch.zeros(()))) - min(guess.trace.finals)) < 1e-6


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


def test_bare_recipes_are_short_and_the_papers_settings_have_names():
    made = sp.attacks
    lengths = {
        made.inverting_gradients: ("A", 32 * 4_000),
        made.gradattack_strongest: ("paper", 10_000),
        made.systematic: ("paper", 10_000),
        made.dlg: ("paper", 20 * 300),
        made.idlg: ("paper", 20 * 300),
        made.grad_inversion: ("paper", 8 * 20_000),
    }
    for recipe, (setting, steps) in lengths.items():
        bare, published, own = (
            getattr(attack, "attack", attack).search
            for attack in (recipe(), recipe(setting=setting), recipe(setting=setting, restarts=3))
        )
        assert bare.steps * bare.restarts <= 2_000, recipe
        assert published.steps * published.restarts == steps, recipe
        assert own == replace(published, restarts=3), recipe
        with pytest.raises(UnknownName, match="unknown setting 'D'"):
            recipe(setting="D")


def test_settings_are_those_of_table_2():
    a, b, c = (sp.attacks.inverting_gradients(setting=s).search for s in "ABC")
    assert (a.steps, a.restarts, a.terms[0].top, a.terms[1].weight) == (4000, 32, None, 1e-8)
    assert (b.steps, b.restarts, b.terms[0].top, b.terms[1].weight) == (12_000, 16, 10, 1e-4)
    assert c == b
    assert a.optimiser == Adam(step_size=0.1, sign="hard")
    with pytest.raises(UnknownName, match="unknown setting 'D'"):
        sp.attacks.inverting_gradients(setting="D")


@pytest.mark.parametrize("option", [{"steps": 0}, {"restarts": 0}, {"step_size": 0.0}])
def test_impossible_budgets_are_refused(option):
    with pytest.raises(InvalidValue, match=r"got .*0"):
        sp.attacks.inverting_gradients(**option)


def test_an_attack_whose_restarts_all_diverge_says_so(photos):
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Diverging:
        weight: float = 1.0

        def __call__(self, candidate, observation):
            return (candidate.normalised * torch.nan).sum()

    search = Search(
        terms=(Diverging(),), optimiser=Adam(), schedule=StepDecay(), steps=2, restarts=2
    )
    attack = GradientMatching(search)
    seen = observe(sp.zoo.mlp(hidden=(8,)), person(photos, 0))
    with pytest.raises(Diverged, match="all 2 restarts diverged"):
        attack(seen, rng=sp.rng(0))
