"""`auto` computes what can be computed, rehearses the rest, and never sees the private batch."""

import copy
import json
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks._applicability import check_applicability
from seepage.audit import Audit, select_targets
from seepage.core import Batch
from seepage.core._checkpoint import checkpointing
from seepage.core._progress import listen, stage
from seepage.core._reconstruction import Forecast, Race, Trace, Trial
from seepage.core._scale import DECIBELS, Scale
from seepage.core._schema import from_plain, to_plain
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.domains._box import Image
from seepage.domains._made_up import _SHAPES
from seepage.rehearsal import ALL_ATTACKS, EFFORTS, Auto, Effort, make_up
from seepage.rehearsal import _auto_attack as auto_attack
from seepage.rehearsal import _rehearse as rehearse
from seepage.rehearsal._combine import MeanOfStarts, combine, keep_sure
from seepage.rehearsal._effort_plan import Rung
from seepage.rehearsal._portfolio import Contender, list_contenders
from seepage.rehearsal._simulated_clients import Rehearsal, is_lost_in_noise, simulate_client
from seepage.search._runner import Runner
from seepage.testing import check_attack
from seepage.threats._threat import Threat

SMALL = Effort(640, (2, 1), (1, 1))
RUNGS = (Rung(2, 1, 20), Rung(1, 2, 20))
TRACE = Trace((1.0, 0.5), finals=(0.5,))
SEARCHES = (Contender("inverting_gradients", {"tv": 1e-2}), Contender("inverting_gradients"))


@pytest.fixture(scope="module")
def photos():
    return sp.data.load("photos", pixels=16)


@pytest.fixture(scope="module")
def task(photos):
    """A network that only a search can invert."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 12, 3), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(12 * 25, 10)),
        )
    return sp.Task(model, sp.cross_entropy, photos.domain, name="pooled")


@pytest.fixture(scope="module")
def public(photos):
    chosen = photos.take(range(8, 24))
    return sp.PublicData(chosen.inputs, chosen.labels)


def observe(task, batch, *, defense=None, seed=0, **knows):
    client = sp.Client(sp.Gradient(), sp.chain() if defense is None else defense)
    known = {"knows_labels": True, **knows}
    return sp.Threat(**known).observe(client, task, batch, rng=sp.rng(seed))


def psnr(guess, batch):
    return sp.score(guess, batch)["psnr"]


def test_what_a_closed_form_proves_is_the_answer_and_nothing_is_rehearsed(photos, monkeypatch):
    monkeypatch.setattr(Rehearsal, "of", lambda *_, **__: pytest.fail("it rehearsed"))
    batch, network = photos.take([0]), sp.zoo.mlp(hidden=(32,), domain=photos.domain)
    guess = sp.auto(effort="quick")(observe(network, batch), rng=sp.rng(1))
    assert guess.certificate.unique
    assert guess.trace.race.chosen == ("analytic_fc",)
    assert float(psnr(guess, batch)) > 60


def test_a_closed_form_that_proves_nothing_competes_with_the_searches(photos, public):
    batch, network = photos.take([0]), sp.zoo.mlp(hidden=(32,), domain=photos.domain)
    seen = observe(network, batch, defense=sp.AddGaussian(1e-4))
    guess = Auto(SMALL, public)(seen, rng=sp.rng(1))
    closed = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    assert any(trial.attack == "analytic_fc" for trial in guess.trace.race.trials)
    assert float(psnr(guess, batch)) >= float(psnr(closed, batch)) - 1e-3


def test_the_race_depends_on_nothing_that_is_private(photos, task, public):
    seen = [observe(task, photos.take([person]), seed=person) for person in (0, 3)]
    races = [
        rehearse.rehearse(one, SEARCHES, public, RUNGS, chosen=1, steps=20).race for one in seen
    ]
    assert races[0] == races[1]
    # Not since the second was remembered: without memory it is the same.
    rehearse._stored_races.cache_clear()
    assert rehearse.rehearse(seen[1], SEARCHES, public, RUNGS, chosen=1, steps=20).race == races[0]


def test_the_rehearsed_client_is_the_client_and_draws_noise_of_its_own(photos, task):
    batch, noisy = photos.take([0]), sp.AddGaussian(1.0)
    seen = observe(task, batch, defense=noisy, seed=5)
    again = simulate_client(seen, batch, rng=sp.rng(6))
    assert not torch.equal(again.update.flat(), seen.update.flat())
    same = simulate_client(observe(task, batch, seed=5), batch, rng=sp.rng(6))
    assert torch.allclose(same.update.flat(), observe(task, batch).update.flat())
    assert again.simulate.client == seen.simulate.client


@pytest.mark.parametrize(
    "threat",
    [
        Threat(),
        Threat(knows_labels=True),
        Threat(knows_labels=True, batchnorm="exact"),
        Threat(batchnorm="unknown"),
        Threat(knows_batch_size=False),
    ],
    ids=repr,
)
def test_an_observation_tells_the_threat_it_was_made_under(photos, threat):
    client, network = (
        sp.Client(sp.Gradient()),
        sp.zoo.build("resnet20", options={"width": 4, "domain": photos.domain}),
    )
    seen = threat.observe(client, network, photos.take([0, 1]), rng=sp.rng(0))
    assert Threat.of(seen) == threat


def test_a_network_that_the_defense_changed_is_not_changed_again(photos):
    seen = observe(sp.zoo.lenet(domain=photos.domain), photos.take([0]), defense=sp.Precode())
    again = simulate_client(seen, photos.take([1]), rng=sp.rng(0))
    assert list(again.update.tensors) == list(seen.update.tensors)


def test_no_person_of_an_audit_is_rehearsed_on(photos):
    twice = replace(photos, inputs=torch.cat([photos.inputs, photos.inputs[:2]]),
                    labels=torch.cat([photos.labels, photos.labels[:2]]))  # fmt: skip
    audit = Audit(
        tasks=[sp.zoo.mlp(hidden=(8,), domain=photos.domain)],
        attacks={"auto": sp.auto(effort="quick")},
        controls=True,
    )
    cases = audit.cases(select_targets(twice, people=[0, 1, 5], batch_size=1))
    assert {case.control for case in cases} == {None, "canary", "noise"}
    attacked = torch.cat([case.target.truth for case in cases])
    for case in cases:
        held = case.attack.public.inputs
        assert len(held) > 5
        same = (held[:, None] == attacked[None]).flatten(2).all(2)
        assert not same.any()


def test_rehearsals_are_stored_and_found_again(photos, task, public, tmp_path, monkeypatch):
    seen, attack = observe(task, photos.take([0])), Auto(replace(SMALL, steps=644), public)
    with checkpointing(tmp_path):
        first = attack(seen, rng=sp.rng(1))
    rehearse._stored_races.cache_clear()
    monkeypatch.setattr(Rehearsal, "of", lambda *_, **__: pytest.fail("it rehearsed again"))
    with checkpointing(tmp_path):
        second = attack(seen, rng=sp.rng(1))
    assert first.trace.race == second.trace.race
    assert torch.equal(first.inputs, second.inputs)


def test_a_race_survives_json():
    trials = Trial("a", 20, (10.0, 12.0)), Trial("b", 20, error="no")
    race = Race("psnr", trials, ("a",), forecast=Forecast.of((10.0, 12.0), DECIBELS), rising=True)
    assert from_plain(Race, json.loads(json.dumps(to_plain(race)))) == race


def test_fewer_steps_leave_fewer_contenders_and_no_search_too_short_to_tell():
    for steps in (640, 1_000, 3_000, 24_000, 240_000):
        rungs, attack = Effort(steps, (24, 8, 3), (1, 1, 1)).plan()
        spent = sum(rung.contenders * rung.batches * rung.steps for rung in rungs)
        assert spent <= steps // 2
        assert min(rung.steps for rung in rungs) >= 100
        assert attack == steps // 2
        assert all(rung.contenders > 1 for rung in rungs[1:])
    assert Effort(390, (24, 8, 3), (1, 1, 1)).plan() == ((), 390)


def test_a_batch_of_several_people_is_rehearsed_once_and_longer():
    effort = Effort(24_000, (12, 4, 2), (2, 2, 3))
    alone, four = effort.plan(1)[0], effort.plan(4)[0]
    assert [rung.batches for rung in alone] == [2, 2, 3]
    assert [rung.batches for rung in four] == [1, 1, 1]
    assert four[-1].steps > 2 * alone[-1].steps


def test_too_few_steps_to_rehearse_are_all_spent_on_the_update(photos, task):
    guess = sp.auto(budget=30)(observe(task, photos.take([0])), rng=sp.rng(1))
    assert guess.trace.steps == 30
    assert "too few to rehearse" in guess.trace.race.note


def test_without_public_inputs_they_are_made_up_and_the_race_says_so(photos, task):
    guess = Auto(SMALL)(observe(task, photos.take([0])), rng=sp.rng(1))
    assert guess.trace.race.made_up
    assert guess.trace.race.forecast is not None


@pytest.mark.parametrize(
    "domain",
    [sp.domains.Image((1, 33, 30)), sp.domains.Signal((2, 40), bounds=(-3.0, 1.0))],
    ids=["image", "signal"],
)
def test_made_up_inputs_are_valid_different_and_smooth(domain):
    made = make_up(domain, 6, rng=sp.rng(0))
    domain.check(made.inputs)
    assert len({one.numpy().tobytes() for one in made.inputs}) == 6
    rough = (made.inputs[..., 1:] - made.inputs[..., :-1]).square().mean()
    assert rough < made.inputs.var()


def test_a_domain_that_cannot_be_sampled_leaves_the_first_search(photos, task, monkeypatch):
    def refuse(*_, **__):
        raise NotApplicable("there is no public data, and it cannot be sampled")

    with pytest.raises(NotApplicable, match="cannot be sampled"):
        make_up(object(), 2, rng=sp.rng(0))
    monkeypatch.setattr("seepage.rehearsal._auto_attack.make_up", refuse)
    guess = Auto(SMALL)(observe(task, photos.take([0])), rng=sp.rng(1))
    assert "nothing could be rehearsed: there is no public data" in guess.trace.race.note
    assert guess.trace.steps > 0


def test_if_the_chosen_attack_fails_on_the_update_the_next_one_is_taken(
    photos, task, public, monkeypatch
):
    # It needs statistics of batch normalisation, which this network has not.
    unable, able = Contender("grad_inversion"), SEARCHES[0]
    rehearsed = SMALL.plan()[0][0].steps
    race = Race("psnr", (Trial(str(able), rehearsed, (10.0,)),), chosen=(str(unable),))
    chosen = rehearse.Chosen.of(race, (unable, able))
    assert chosen.spare == (able,)
    monkeypatch.setattr("seepage.rehearsal._auto_attack.rehearse", lambda *_, **__: chosen)
    guess = Auto(SMALL, public)(observe(task, photos.take([0])), rng=sp.rng(1))
    assert guess.trace.steps == SMALL.steps - rehearsed


def test_who_is_clearly_behind_leaves_the_race_and_the_update_gets_the_steps(
    photos, task, public, monkeypatch
):
    stuck = Contender("inverting_gradients", {"tv": 1e-2, "step_size": 1e-9})
    contenders = (SEARCHES[0], stuck)
    monkeypatch.setattr(auto_attack, "list_contenders", lambda *_: contenders)
    effort = Effort(1_920, (2, 2), (1, 1))
    (first, second), half = effort.plan()
    guess = Auto(effort, public)(observe(task, photos.take([0])), rng=sp.rng(1))
    raced = [(trial.attack, trial.steps) for trial in guess.trace.race.trials]
    assert raced == [
        *((str(one), first.steps) for one in contenders),
        (str(SEARCHES[0]), second.steps),
    ]
    assert guess.trace.steps == effort.steps - 2 * first.steps - second.steps > half


def test_several_share_the_steps_only_if_the_mean_of_their_guesses_is_nearer(photos, task, public):
    rehearsal = Rehearsal.of(observe(task, photos.take([0])), public, batches=1, size=1)
    (truth,) = rehearsal.people
    noise = sp.rng(5).normal(truth.inputs.shape, like=truth.inputs)
    near = [sp.Reconstruction(truth.inputs + sign * 0.1 * noise) for sign in (1, -1)]
    by_name = {str(one): [guess] for one, guess in zip(SEARCHES, near, strict=True)}
    level = tuple(Trial(str(SEARCHES[0]), steps, (20.0,)) for steps in (20, 40))
    team = rehearse._choose_ensemble(rehearsal, SEARCHES, by_name, level, 3.0)
    assert (team.members, team.rule, team.doublings) == (SEARCHES, "mean", 2.0)
    # One round does not tell what the steps are worth.
    assert (
        rehearse._choose_ensemble(rehearsal, SEARCHES, by_name, level[:1], 3.0).members
        == SEARCHES[:1]
    )
    # A search that gains much with every doubling needs the steps for itself.
    trials = tuple(
        Trial(str(SEARCHES[0]), steps, (score,)) for steps, score in ((20, 0), (40, 200))
    )
    assert (
        rehearse._choose_ensemble(rehearsal, SEARCHES, by_name, trials, 3.0).members == SEARCHES[:1]
    )


def test_behind_noise_the_rehearsed_updates_stand_out_from_it_as_the_observed_one_does(photos):
    # Without biases a black image has no gradient, and only the noise is left of its update.
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10, bias=False))
    task = sp.Task(network, sp.cross_entropy, replace(photos.domain, mean=(0.0,) * 3))
    bright, dark = photos.take(range(8)), torch.zeros(8, *photos.domain.shape)
    client, threat = sp.Client(sp.Gradient(), sp.AddGaussian(0.1)), sp.Threat(knows_labels=True)
    public = sp.PublicData(torch.cat([bright.inputs, dark]), bright.labels.repeat(2))

    def see(inputs, client=client):
        batch = sp.Batch(inputs[:1], bright.labels[:1])
        return threat.observe(client, task, batch, rng=sp.rng(3))

    for inputs, lost in ((bright.inputs, False), (dark, True)):
        seen = see(inputs)
        assert is_lost_in_noise(seen) is lost
        people = Rehearsal.of(seen, public, batches=3, size=1).people
        assert [not batch.inputs.any() for batch in people] == [lost] * 3
    # Without noise everything is information; and who has no like is rehearsed with others.
    assert not is_lost_in_noise(see(dark, sp.Client(sp.Gradient())))
    only_bright = sp.PublicData(bright.inputs, bright.labels)
    assert len(Rehearsal.of(see(dark), only_bright, batches=3, size=1).people) == 3


def test_clipping_is_no_reason_to_try_a_search_three_times(photos, task):
    def list_knowledge(defense):
        client = sp.Client(sp.Gradient(), defense)
        seen = sp.Threat().observe(client, task, photos.take([0]), rng=sp.rng(0))
        found = list_contenders(seen, check_applicability(seen))
        return {contender.knowledge for contender in found}

    assert list_knowledge(sp.Clip(1.0)) == {"adapts"}
    assert list_knowledge(sp.AddGaussian(0.1)) == {"adapts", "ignores", "simulates"}


def test_the_mean_of_starts_is_nearer_than_one_if_the_starts_err_apart(photos, task):
    batch = photos.take([0])
    truth, seen = batch.inputs, observe(task, batch)

    def guess(_, *, rng):
        return sp.Reconstruction(truth + 0.1 * rng.normal(truth.shape, like=truth), trace=TRACE)

    def fails_once(seen, *, rng):
        if rng == sp.rng(0).fork("start", 1):
            raise NotApplicable("this start")
        return guess(seen, rng=rng)

    def measure_error(attack):
        return (attack(seen, rng=sp.rng(0)).inputs - truth).square().mean().item()

    one, eight = (measure_error(MeanOfStarts(guess, starts)) for starts in (1, 8))
    # Clamping to the domain only brings a guess nearer.
    assert eight < one / 4
    assert MeanOfStarts(guess, 8)(seen, rng=sp.rng(0)).trace.restarts == 8
    assert MeanOfStarts(fails_once, 8)(seen, rng=sp.rng(0)).trace.restarts == 7


def test_starts_share_the_steps_and_none_is_shorter_than_was_rehearsed():
    contender = replace(SEARCHES[0], start_steps=100)
    assert [contender.count_starts(steps) for steps in (50, 150, 350, 5_000)] == [1, 1, 3, 8]
    assert SEARCHES[0].count_starts(5_000) == 1
    assert str(contender).endswith("mean of starts of 100 steps")
    assert contender.build(350) == MeanOfStarts(SEARCHES[0].build(116), 3)


def test_behind_much_noise_the_steps_go_into_more_starts(photos, task, public):
    seen = observe(task, photos.take([0]), defense=sp.AddGaussian(100.0))
    rungs = (Rung(1, 2, 20), Rung(1, 2, 40))
    chosen = rehearse.rehearse(seen, SEARCHES, public, rungs, chosen=1, steps=200)
    (contender,) = chosen.contenders
    assert contender.start_steps == 40
    *_, alone, mean = chosen.race.trials
    assert mean.attack == str(contender)
    assert mean.mean > alone.mean
    assert rehearse.count_steps(chosen.race, rungs) == 2 * (20 + 40 + 40)
    # Without noise every further step gains.
    bare = observe(task, photos.take([0]))
    (contender,) = rehearse.rehearse(bare, SEARCHES, public, rungs, chosen=1, steps=200).contenders
    assert contender is SEARCHES[0]


def test_a_search_that_starts_slowly_gets_into_the_second_round():
    strong = [Contender("inverting_gradients", {"tv": tv}) for tv in (1e-1, 1e-2, (1e-1, 1e-3))]
    unsigned = {"tv": (1e-1, 1e-5), "signed": False}
    weak = [Contender("inverting_gradients", given) for given in (unsigned, {"tv": 1e-6})]
    strong[1] = Contender("inverting_gradients", {"tv": (1e-1, 1e-5)})
    ranked = [*strong, *weak]
    assert rehearse._keep_slow_starter(ranked, strong[:2], 2) == [strong[0], weak[0]]
    assert rehearse._keep_slow_starter(ranked, strong[:1], 3) == [strong[0], weak[0]]
    # One that is there already needs no place, and the only place belongs to the best.
    assert rehearse._keep_slow_starter([*weak, *strong], weak, 2) == weak
    assert rehearse._keep_slow_starter(ranked, strong[:1], 1) == strong[:1]
    assert rehearse._keep_slow_starter(strong, strong[:2], 2) == strong[:2]


def test_of_searches_that_do_the_same_only_the_first_races_on():
    ways = [replace(SEARCHES[0], knowledge=way) for way in ("adapts", "simulates", "ignores")]
    scores = (10.0, 12.0), (10.0, 12.0), (9.0, 12.0)
    latest = {one: Trial(str(one), 100, each) for one, each in zip(ways, scores, strict=True)}
    assert rehearse._drop_equals(ways, latest) == [ways[0], ways[2]]


@pytest.mark.parametrize(("behind", "ahead"), [(0.7, True), (1.3, False)])
def test_a_search_that_whitens_wins_unless_it_is_clearly_behind(behind, ahead):
    options = {"tv": 1e-2}, {"tv": 1e-2, "distance": "whitened", "optimiser": "lbfgs"}
    plain, whitened = (Contender("inverting_gradients", one) for one in options)
    latest = {plain: Trial(str(plain), 300, (12.0,))}
    latest[whitened] = Trial(str(whitened), 300, (12.0 - behind,))
    expected = rehearse._expect_scores(latest, (), DECIBELS, more=0.5)
    assert (expected[whitened] > expected[plain]) is ahead


def test_a_closed_form_that_contradicts_the_update_gives_way_to_a_search(photos, public):
    inputs = photos.inputs[:3].clone()
    inputs[0] = (inputs[1] + inputs[2]) / 2
    batch = replace(photos.take(range(3)), inputs=inputs)
    seen = observe(sp.zoo.mlp(hidden=(64,), domain=photos.domain), batch)
    solved = sp.attacks.exact_batch()(seen, rng=sp.rng(1))
    assert solved.certificate.residual > 0.5
    guess = sp.auto(effort="quick", budget=600, public=public)(seen, rng=sp.rng(1))
    assert "exact_batch" not in guess.trace.race.chosen


@pytest.mark.slow
def test_behind_pruning_a_smooth_network_is_searched_with_a_fading_prior(photos, public):
    task = sp.zoo.cnn(variant="cnn3-v3", domain=photos.domain)
    seen = observe(task, photos.take([0]), defense=sp.Prune(0.9))
    guess = sp.auto(effort="quick", public=public)(seen, rng=sp.rng(1))
    assert guess.trace.race.chosen[0].startswith("inverting_gradients(tv=(0.1, 1e-05), spread=0.1")
    assert (
        float(sp.score(guess, photos.take([0]))["psnr"]) > 26
    )  # machines differ by more than 1 dB


@pytest.mark.parametrize("size", [1, 2])
def test_every_contender_searches(photos, task, size):
    seen = observe(task, photos.take(range(size)))
    listed = list_contenders(seen, check_applicability(seen))
    assert len({str(one) for one in listed}) == len(listed)
    for contender in listed:
        guess = contender.build(2)(seen, rng=sp.rng(1))
        assert guess.inputs.shape == (size, *task.domain.shape)
        assert guess.trace.steps > 0


def test_a_network_with_layer_norm_is_searched_by_a_whitened_distance_first(photos):
    layers = (nn.Conv2d(3, 8, 4, stride=4), nn.Flatten(2), nn.LayerNorm(16), nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(8 * 16, 10))
    task = sp.Task(model, sp.cross_entropy, photos.domain, name="normalised")
    bare, defended = (observe(task, photos.take([0]), defense=d) for d in (None, sp.Prune(0.9)))
    first, *rest = list_contenders(bare, check_applicability(bare))
    assert first.options["distance"] == "whitened"
    assert first.build(2)(bare, rng=sp.rng(1)).trace.steps > 0
    for one in (*rest, *list_contenders(defended, check_applicability(defended))):
        assert one.options.get("distance") != "whitened"


def test_the_search_that_leads_behind_pruning_races_without_a_defense_too(photos, task):
    def race(defense):
        seen = observe(task, photos.take([0]), defense=defense)
        listed = list_contenders(seen, check_applicability(seen))
        raced = listed[: EFFORTS["quick"].contenders[0]]
        assert any(one.starts_slowly for one in raced)
        return [one.options for one in raced if one.recipe == "inverting_gradients"]

    leads = {"tv": 1e-2, "spread": 0.1, "step_size": 0.2, "schedule": "cosine"}
    assert leads in race(sp.Prune(0.9))
    assert leads in race(None)


@pytest.mark.slow
def test_a_network_with_batch_normalisation_is_searched_with_a_prior_that_stays():
    photos = sp.data.load("photos")
    large = nn.functional.interpolate(photos.inputs, size=(64, 64), mode="bilinear")

    def convolve(before, after, stride):
        convolution = nn.Conv2d(before, after, 3, stride, 1)
        return convolution, nn.BatchNorm2d(after), nn.ReLU()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            *(*convolve(3, 16, 1), *convolve(16, 32, 2), *convolve(32, 32, 2)),
            *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)),
        )
    task = sp.Task(model, sp.cross_entropy, Image((3, 64, 64)), name="normalised")
    batch = Batch(large[3:4], photos.labels[3:4])
    public = sp.PublicData(large[8:], photos.labels[8:])
    guess = sp.auto(effort="quick", public=public)(observe(task, batch), rng=sp.rng(9).fork(3))
    assert float(sp.score(guess, batch)["psnr"]) > 22


def test_behind_a_defense_leaders_are_tried_in_all_three_ways(photos, task):
    seen = observe(task, photos.take([0]), defense=sp.Prune(0.9))
    listed = list_contenders(seen, check_applicability(seen))
    assert {one.knowledge for one in listed[:7]} == {"adapts", "ignores", "simulates"}
    bare = observe(task, photos.take([0]))
    assert {one.knowledge for one in list_contenders(bare, check_applicability(bare))} == {
        "simulates"
    }


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"effort": "heroic"}, UnknownName, "unknown effort 'heroic'"),
        ({"seconds": 0.0}, InvalidValue, "expected seconds > 0, got 0.0"),
        ({"effort": None}, UnknownName, "unknown effort 'None'"),
        ({"seconds": "3"}, InvalidValue, "expected seconds > 0, got '3'"),
        ({"budget": 0}, InvalidValue, "expected budget >= 1 whole steps, got 0"),
        ({"budget": 2.5}, InvalidValue, "whole steps, got 2.5"),
        ({"budget": "700"}, InvalidValue, "whole steps, got '700'"),
        ({"public": [[0.5]]}, InvalidValue, "a tensor or PublicData, got a list"),
        ({"public": torch.zeros(0, 3, 8, 8)}, InvalidValue, "at least one public input"),
    ],
)
def test_bad_options_are_one_sentence(options, error, said):
    with pytest.raises(error, match=said):
        sp.auto(**options)


def test_public_inputs_of_another_shape_are_refused_in_the_note(photos, task):
    seen = observe(task, photos.take([0]))
    guess = Auto(SMALL, sp.PublicData(torch.rand(4, 3, 8, 8)))(seen, rng=sp.rng(1))
    assert "nothing could be rehearsed" in guess.trace.race.note


def test_guesses_are_combined_without_the_truth(photos, task):
    batch = photos.take([0, 1])
    seen = observe(task, batch)
    right = sp.Reconstruction(batch.inputs, batch.labels)
    wrong = sp.Reconstruction(1 - batch.inputs, batch.labels)
    assert combine("residual", seen, [wrong, right]) is right
    assert combine("first", seen, [wrong, right]) is wrong
    noise = [0.1 * sp.rng(i).normal(batch.inputs.shape) for i in range(2)]
    swapped = sp.Reconstruction((batch.inputs + noise[1]).flip(0), batch.labels)
    noisy = sp.Reconstruction(batch.inputs + noise[0], batch.labels)
    mean = combine("mean", seen, [noisy, swapped])
    assert (psnr(mean, batch) > psnr(noisy, batch) + 1.5).all()
    # What explains far less of the update would only blur the rest.
    assert combine("mean", seen, [wrong, right]) is right


def test_what_a_closed_form_is_sure_of_stays_beside_a_search(photos):
    batch = photos.take([0, 1, 2])
    sure = torch.tensor([1.0, 0.0, 1.0])[:, None].expand(-1, 3 * 32 * 32)
    read = torch.stack([batch.inputs[2], torch.zeros_like(batch.inputs[0]), batch.inputs[0]])
    solved = sp.Reconstruction(read, confidence=sure)
    searched = sp.Reconstruction((batch.inputs + 0.1).flip(0), batch.labels.flip(0))
    both = keep_sure(searched, solved)
    found = psnr(both, batch)
    assert found[0] > 100
    assert found[2] > 100
    assert float(found[1]) == pytest.approx(float(psnr(searched, batch)[1]))
    assert keep_sure(searched, replace(solved, confidence=0.5 * sure)) is None


def observe_another_step(task, sent, batch):
    """What an adversary sees of `sent`, who simulates `task`: the names of layers are the same."""
    return replace(observe(task, batch), update=observe(sent, batch).update)


def test_what_a_layer_alone_shows_is_not_dropped_for_a_step_that_cannot_be_simulated(photos):
    """As of a client whose dropout silenced every other unit, or which weighted its people."""
    task = sp.zoo.mlp(hidden=(48,), domain=photos.domain, classes=photos.classes)
    dropped = copy.deepcopy(task.model)
    last = [module for module in dropped.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.weight[:, ::2] = 0
    one = photos.take([0])
    seen = observe_another_step(task, sp.Task(dropped, sp.cross_entropy, photos.domain), one)
    guess = Auto(SMALL)(seen, rng=sp.rng(1))
    assert "analytic_fc" in guess.trace.race.chosen
    assert float(psnr(guess, one)) > 60

    def weighted(outputs, labels):
        return (1 + 2 * (labels == labels[0])) * sp.cross_entropy(outputs, labels)

    two = photos.take([0, 1])
    seen = observe_another_step(task, sp.Task(task.model, weighted, photos.domain), two)
    guess = Auto(SMALL)(seen, rng=sp.rng(1))
    assert "exact_batch" in guess.trace.race.chosen
    assert (psnr(guess, two) > 60).all()


@pytest.mark.parametrize(
    "change", [torch.sign, lambda tensor: tensor * (tensor.abs() > tensor.abs().max() / 4)]
)
def test_a_closed_form_is_not_sure_of_an_update_that_is_no_gradient(photos, change):
    task = sp.zoo.mlp(hidden=(48,), domain=photos.domain, classes=photos.classes)
    seen = observe(task, photos.take([0]))
    assert sp.attacks.analytic_fc()(seen, rng=sp.rng(0)).confidence.min() == 1
    changed = replace(seen, update=seen.update.map(change))
    assert sp.attacks.analytic_fc()(changed, rng=sp.rng(0)).confidence is None


@pytest.mark.parametrize(("mean", "spread"), [(17, 2.0), (25, 3.0), (37, 4.5)])
@pytest.mark.parametrize("rehearsed", [1, 4])
def test_forecasts_cover_nine_in_ten(rehearsed, mean, spread):
    kept = []
    for trial in range(400):
        drawn = mean + spread * sp.rng(trial).normal((rehearsed + 1,))
        forecast = Forecast.of(drawn[:rehearsed].tolist(), DECIBELS)
        kept.append(forecast.covers(float(drawn[-1])))
    assert 0.85 < sum(kept) / len(kept) < 0.99


def test_a_forecast_of_what_is_right_up_to_rounding_has_no_upper_end():
    sure, shares = (
        Forecast.of((60.0, 60.0), DECIBELS),
        Forecast.of((0.9, 1.0), Scale(of="columns", telling=0.8)),
    )
    assert sure.covers(152.8)
    assert not sure.covers(40.0)
    assert shares.covers(1.0)
    assert (sure.is_open, shares.is_open) == (True, False)
    assert not Forecast.of((20.0,), DECIBELS).covers(60.0)


def test_labels_are_inferred_for_many_as_for_one(photos, task):
    attack = sp.attacks.inverting_gradients(steps=2, restarts=1)
    wrapped = sp.attacks.labels.InferLabels(attack)
    seen = [observe(task, photos.take([i]), knows_labels=False) for i in (0, 1)]
    keys = [sp.rng(3), sp.rng(4)]
    together = wrapped.many(seen, rngs=keys)
    for guess, one, key in zip(together, seen, keys, strict=True):
        assert torch.allclose(guess.inputs, wrapped(one, rng=key).inputs, atol=1e-4)


def test_time_cuts_the_steps_and_the_race_says_so(photos, task):
    seen = observe(task, photos.take([0]))
    short = sp.auto(effort="thorough", seconds=0.5)(seen, rng=sp.rng(1))
    assert short.trace.race.cut
    assert short.trace.steps < 10_000
    long = sp.auto(budget=30, seconds=600.0)(seen, rng=sp.rng(1))
    assert not long.trace.race.cut


@pytest.fixture
def clock(monkeypatch):
    """A clock that only searches move: 0.3 s for each, and 0.01 s for each of its steps."""
    now = [0.0]
    prepare, take = Runner._prepare, Runner._take

    def spend(seconds, work):
        def run(*args):
            now[0] += seconds
            return work(*args)

        return run

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(Runner, "_prepare", spend(0.3, prepare))
    monkeypatch.setattr(Runner, "_take", spend(0.01, take))
    auto_attack._measured.cache_clear()
    rehearse._stored_races.cache_clear()
    return now


@pytest.mark.parametrize("seconds", [3.0, 15.0])
def test_the_time_is_used_where_it_cuts_the_steps(photos, task, public, clock, seconds):
    guess = Auto(EFFORTS["quick"], public, seconds)(observe(task, photos.take([0])), rng=sp.rng(1))
    assert guess.trace.race.cut
    assert 0.8 * seconds < clock[0] < 1.05 * seconds


def test_all_steps_are_taken_where_they_fit(photos, task, public, clock):
    effort = Effort(1_500, (3, 2), (1, 1))
    seen, seconds = observe(task, photos.take([0])), 22.0
    timed = Auto(effort, public, seconds)(seen, rng=sp.rng(1))
    assert clock[0] < seconds
    assert not timed.trace.race.cut
    rehearse._stored_races.cache_clear()
    free = Auto(effort, public)(seen, rng=sp.rng(1))
    assert torch.equal(timed.inputs, free.inputs)


def test_steps_for_the_update_are_priced_by_what_the_chosen_search_took():
    effort = Effort(1_000, (2, 1), (1, 1))
    chosen = rehearse.Chosen((SEARCHES[0],), Race("psnr"), spent=5.0, each=0.05)
    assert Auto(effort, seconds=20.0)._fit_search(chosen, 500, 200) == int((19.0 - 5.0) / 0.05)
    assert Auto(effort, seconds=200.0)._fit_search(chosen, 500, 200) == 1_000 - 200
    assert Auto(effort)._fit_search(chosen, 500, 200) == 500 - 200


def test_closed_forms_are_rehearsed_once_for_the_same_people(photos, task, public, monkeypatch):
    batch, network = photos.take([0]), sp.zoo.mlp(hidden=(32,), domain=photos.domain)
    seen = observe(network, batch, defense=sp.AddGaussian(1e-4))
    attacked, attack = [], Rehearsal.attack
    monkeypatch.setattr(
        Rehearsal,
        "attack",
        lambda self, one, n, **start: attacked.append(one) or attack(self, one, n, **start),
    )
    rehearse._stored_races.cache_clear()
    contenders = (Contender("analytic_fc", searches=False), *SEARCHES)
    rungs = (Rung(2, 1, 5), Rung(1, 1, 10))
    race = rehearse.rehearse(seen, contenders, public, rungs, chosen=1, steps=20).race
    assert len(attacked) == 1 + 2 + 1
    assert [trial.attack for trial in race.trials].count("analytic_fc") == 2


def test_what_is_tried_is_told_to_a_display(photos, task, public):
    told = set()
    with listen(lambda *_: told.add(stage())):
        Auto(replace(SMALL, steps=648), public)(observe(task, photos.take([0])), rng=sp.rng(1))
    assert any(text.startswith("rehearsing inverting_gradients") for text in told)
    assert any(not text.startswith("rehearsing") for text in told)
    assert stage() == ""


def test_the_catalogue_of_specs_begins_with_auto():
    assert next(iter(ALL_ATTACKS)) == "auto"


def test_auto_keeps_the_laws_of_attacks(photos, task, public):
    check_attack(
        Auto(replace(SMALL, steps=660), public),
        client=sp.Client(sp.Gradient()),
        task=task,
        batch=photos.take([0]),
        at_least=12.0,
    )


def test_an_ellipse_is_drawn_the_same_inside_its_box_as_on_the_whole_image():
    """Each shape again on every pixel, by the formula alone."""
    domain = sp.domains.Image((3, 40, 56))
    key = sp.rng(5).fork(0)
    drawn, colours = key.uniform((_SHAPES, 6)), key.fork("colours").uniform((_SHAPES + 2, 3))
    colours = (0.7 * colours[:, :1] + 0.3 * colours).clamp(0, 1)
    rows, columns = torch.linspace(-1, 1, 40)[:, None], torch.linspace(-1, 1, 56)[None]
    fade = (rows + columns + 2) / 4
    image = colours[0, :, None, None] * fade + colours[1, :, None, None] * (1 - fade)
    for (x, y, size, shape, angle, shade), colour in zip(drawn, colours[2:], strict=True):
        radius, turned = 0.08 / (1 - 0.99 * size).sqrt(), angle * torch.pi
        down, right = rows - 2 * y + 1, columns - 2 * x + 1
        across = right * turned.cos() + down * turned.sin()
        along = down * turned.cos() - right * turned.sin()
        covered = (across / radius) ** 2 + (along / radius / (0.3 + 0.7 * shape)) ** 2 < 1
        shaded = (colour[:, None, None] + 0.3 * (shade - 0.5) * across).clamp(0, 1)
        image = torch.where(covered, shaded, image)
    ours = make_up(domain, 1, rng=sp.rng(5)).inputs[0]
    # On the rim of an ellipse rounding decides.
    assert float(((ours - image).abs() > 1e-5).any(0).float().mean()) < 0.01
