"""The grid, one case of it, and whose data it attacks."""

import json
import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import seepage as sp
from seepage.audit import Audit, run_case, select_targets
from seepage.audit import _grid as grid_module
from seepage.audit._case import client_key, describe_threat
from seepage.audit.results import Results
from seepage.core.errors import InvalidValue
from seepage.data import Dataset
from seepage.domains import Signal
from seepage.report import Level
from seepage.scoring import METRICS

PHOTOS = sp.data.load("photos")


def constant(value):
    """An attack that always guesses the same, so that its scores have a closed form."""

    def attack(seen, *, rng):
        shape = (seen.batch_size, *seen.task.domain.shape)
        return sp.Reconstruction(torch.full(shape, value), trace=sp.Trace(seconds=0.5))

    return attack


def mlp(seed=0):
    return sp.zoo.mlp(hidden=(8,), domain=PHOTOS.domain, seed=seed)


def test_what_only_the_first_case_prepares_is_not_estimated_for_all(monkeypatch):
    spent, now = iter([5.0, 0.25]), [0.0]

    def run(case):
        now[0] += next(spent)

    monkeypatch.setattr(grid_module, "run_case", run)
    monkeypatch.setattr(grid_module, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    audit = Audit(tasks=[mlp()], attacks={"constant": constant(0.5)})
    cases = list(audit.cases(select_targets(PHOTOS, people=3, batch_size=1)))
    assert grid_module.estimate(cases) == [0.25] * len(cases)


def test_victims_are_consecutive_batches_and_everybody_else_is_the_pool():
    cut = select_targets(PHOTOS, people=6, batch_size=2, start=3)
    assert [who.people for who in cut] == [(3, 4), (5, 6), (7, 8)]
    for who in cut:
        assert torch.equal(who.batch.inputs, PHOTOS.inputs[list(who.people)])
        assert torch.equal(who.batch.labels, PHOTOS.labels[list(who.people)])
        others = [i for i in range(len(PHOTOS)) if i not in who.people]
        assert torch.equal(who.pool, PHOTOS.inputs[others])
        assert who.data == "photos"


def test_people_are_a_random_sample_that_grows_with_their_number_and_changes_with_the_seed():
    def draw(people, **options):
        cut = select_targets(PHOTOS, people=people, batch_size=2, **options)
        return [number for who in cut for number in who.people]

    few, many = draw(4), draw(12)
    assert few == draw(4) == many[:4], "more people include the fewer"
    assert few != draw(4, sample_seed=1)
    assert len(set(many)) == 12
    everybody = [draw(8, sample_seed=seed) for seed in range(60)]
    counts = np.bincount(np.ravel(everybody), minlength=24)
    # Each has a chance of one in three: 20 of 60, with a deviation of 3.7.
    assert counts.min() > 5
    assert counts.max() < 36


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"people": 3, "batch_size": 2}, "multiple of batch_size, got 3 people in batches of 2"),
        ({"people": 1, "batch_size": 2}, "multiple of batch_size"),
        ({"people": 0, "batch_size": 1}, "people >= 1, or a list of their numbers, got 0"),
        ({"people": -3, "batch_size": 1}, "people >= 1, or a list of their numbers, got -3"),
        ({"people": 2, "batch_size": 0}, "batch_size >= 1, got 0"),
        ({"people": 4, "batch_size": 1, "start": 22}, "24 of photos, got 4 from number 22"),
        ({"people": 1, "batch_size": 1, "start": -1}, "got 1 from number -1"),
        ({"people": 25, "batch_size": 1}, "at most the 24 people of photos, got 25"),
        ({"people": [1, 2], "batch_size": 1, "start": 0}, "people by number or a start"),
        ({"people": 24, "batch_size": 24}, "too few to compare 24 people with others"),
    ],
)
def test_victims_who_do_not_exist_are_refused_at_once(options, said):
    with pytest.raises(InvalidValue, match=said):
        select_targets(PHOTOS, **options)


@pytest.fixture
def grid():
    return Audit(
        tasks=[mlp(0), mlp(1)],
        attacks={"black": constant(0.0), "white": constant(1.0)},
        locals=[sp.Gradient(), sp.FedAvg(lr=0.1, steps=1)],
        defenses=[sp.chain(), sp.Prune(0.5), sp.Clip(1.0)],
        threats=[sp.Threat(), sp.Threat(knows_labels=True)],
        seeds=[0, 7],
    )


def test_the_grid_is_the_product_of_its_axes_with_seeds_turning_fastest(grid):
    who = select_targets(PHOTOS, people=2, batch_size=1, start=0)
    cases = grid.cases(who)
    axes = (
        [t.name for t in grid.tasks],
        [repr(local) for local in grid.locals],
        [repr(d) for d in grid.defenses],
        grid.threats,
        list(grid.attacks),
        [(0,), (1,)],
        grid.seeds,
    )
    assert [
        (
            case.task.name,
            repr(case.client.local),
            repr(case.client.defense),
            case.threat,
            case.attack_name,
            case.target.people,
            case.seed,
        )
        for case in cases
    ] == list(product(*axes))
    assert len(cases) == 2 * 2 * 3 * 2 * 2 * 2 * 2


def test_an_impossible_client_is_refused_before_anything_runs(grid):
    with pytest.raises(InvalidValue, match="FedAvg"):
        replace(grid, defenses=[sp.chain(sp.ClipEach(1.0), sp.Mean())]).cases([])


def test_outcomes_come_one_by_one_through_the_executor_that_is_passed_in(grid):
    ran = []

    def backwards(cases, started):
        for case in reversed(cases):
            ran.append(case.seed)
            yield run_case(case)

    small = replace(grid, tasks=grid.tasks[:1], defenses=[sp.chain()], locals=[sp.Gradient()])
    outcomes = small.run(
        select_targets(PHOTOS, people=1, batch_size=1, start=0), executor=backwards
    )
    assert ran == []
    assert next(outcomes).record.attack.name == "white"
    assert ran == [7]
    assert [o.record.seed for o in outcomes] == [0, 7, 0] + [7, 0] * 2
    plain = small.run(select_targets(PHOTOS, people=1, batch_size=1, start=0))
    assert [o.record.seed for o in plain] == [0, 7] * 4


def one_case(attack, *, dataset=PHOTOS, defense=None, size=1, seed=0, task=None, **threat):
    audit = Audit(
        tasks=[task or sp.zoo.mlp(hidden=(8,), domain=dataset.domain, classes=dataset.classes)],
        attacks={"it": attack},
        defenses=[defense or sp.chain()],
        threats=[sp.Threat(**{"knows_labels": True, **threat})],
        seeds=[seed],
    )
    [case] = audit.cases(select_targets(dataset, people=size, batch_size=size, start=0))
    return case


def timeless(record):
    return replace(record, effort={k: v for k, v in record.effort.items() if k != "seconds"})


def test_the_same_seed_gives_the_same_record_and_another_does_not():
    attack = sp.attacks.inverting_gradients(steps=3, restarts=2)
    noisy = {"defense": sp.AddGaussian(0.01), "size": 2}
    first, again, other = (
        timeless(run_case(one_case(attack, seed=seed, **noisy)).record) for seed in (4, 4, 5)
    )
    assert first == again
    assert first.scores != other.scores
    assert first.effort["steps"] == 3
    assert first.effort["restarts"] == 2


def test_the_client_and_the_adversary_draw_from_different_keys():
    seen = []

    def watch(observation, *, rng):
        seen.append((observation.update.flat().clone(), rng))
        return constant(0.5)(observation, rng=rng)

    run_case(one_case(watch, defense=sp.AddGaussian(1.0)))
    [(update, key)] = seen
    clean = sp.Gradient()(one_case(watch).task, *batch_of(1)).flat()
    assert key == sp.rng(0).fork("adversary")
    case = one_case(watch, defense=sp.AddGaussian(1.0))
    drawn = client_key(0, case.client, case.target).normal(update.shape)
    assert torch.allclose(update - clean, drawn, atol=1e-5)


def batch_of(size):
    batch = PHOTOS.batch(size)
    return batch.inputs, batch.labels


def test_scores_are_one_number_per_person_with_a_closed_form():
    outcome = run_case(one_case(constant(0.25), size=3))
    errors = (PHOTOS.inputs[:3] - 0.25).double().square().flatten(1).mean(1)
    assert outcome.record.people == (0, 1, 2)
    assert outcome.record.scores["psnr"] == pytest.approx((-10 * errors.log10()).tolist())
    assert torch.equal(outcome.truth, PHOTOS.inputs[:3])
    assert torch.equal(outcome.guess, torch.full((3, 3, 32, 32), 0.25))


def test_every_person_has_baselines_of_every_metric():
    record = run_case(one_case(constant(0.25), size=3)).record
    assert set(record.baselines) == {"mean", "draw", "label"}
    for scores in record.baselines.values():
        assert set(scores) == set(record.scores)
        assert all(len(values) == 3 for values in scores.values())
    pool_mean = PHOTOS.inputs[3:].mean(0)
    errors = (PHOTOS.inputs[:3] - pool_mean).double().square().flatten(1).mean(1)
    assert record.baselines["mean"]["psnr"] == pytest.approx((-10 * errors.log10()).tolist())


def test_the_bounds_of_the_domain_are_the_peak_of_the_scores():
    beats = 4 * sp.rng(0).uniform((6, 1, 20)) - 2
    domain = Signal((1, 20), bounds=(-2.0, 2.0))
    signals = Dataset("beats", beats, torch.zeros(6).long(), domain, ("a", "b"), "made up")
    record = run_case(one_case(constant(0.0), dataset=signals, size=2)).record
    errors = beats[:2].double().square().flatten(1).mean(1)
    assert record.scores["psnr"] == pytest.approx((10 * (16 / errors).log10()).tolist())
    mean = (beats[:2] - beats[2:].mean(0)).double().square().flatten(1).mean(1)
    assert record.baselines["mean"]["psnr"] == pytest.approx((10 * (16 / mean).log10()).tolist())
    assert "ssim" not in record.scores


def test_the_metrics_that_were_asked_for_are_measured_and_those_that_verdicts_read():
    asked = (METRICS["psnr"], METRICS["l1"])
    record = run_case(replace(one_case(constant(0.0)), metrics=asked)).record
    assert list(record.scores) == ["psnr", "l1", "label_accuracy", "exact"]


@pytest.mark.parametrize("asked", [("ssim",), ("l1",), ("label_accuracy",), ("mse", "psnr")])
def test_no_list_of_metrics_changes_what_is_said_of_a_person(asked):
    case = one_case(sp.attacks.analytic_fc(), knows_labels=False)
    everything = run_case(case).record
    shown = run_case(replace(case, metrics=tuple(METRICS[name] for name in asked))).record
    judged, again = Results.of([everything]), Results.of([shown])
    assert [one.level for one in judged] == [Level.reconstructed]
    assert [(a.level, a.label, a.parts, a.psnr) for a in again] == [
        (a.level, a.label, a.parts, a.psnr) for a in judged
    ]


def test_a_guess_without_labels_has_no_label_accuracy_rather_than_none_right():
    record = run_case(one_case(constant(0.0), size=2)).record
    assert record.scores["label_accuracy"] == (None, None)


def test_a_certificate_is_kept_where_the_attack_gave_one():
    record = run_case(one_case(sp.attacks.analytic_fc())).record
    assert record.certificate["residual"] < 1e-3
    assert record.certificate["unique"] is True
    assert run_case(one_case(constant(0.0))).record.certificate is None


def broken(observation, *, rng):
    raise TypeError("unsupported operand\nand much more")


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            one_case(sp.attacks.analytic_fc(), task=sp.zoo.cnn(variant="cnn2-v2")),
            "has no fully connected layer",
        ),
        (one_case(sp.attacks.inverting_gradients(steps=1), knows_labels=False), "needs the labels"),
        (one_case(sp.attacks.analytic_fc(), defense=sp.Prune(1.0)), "update is zero everywhere"),
        (one_case(broken), "TypeError: what it says is not stored"),
    ],
    ids=["not applicable", "missing knowledge", "nothing left", "broken attack"],
)
def test_a_case_that_fails_is_a_record_with_its_reason_in_one_line(case, said):
    outcome = run_case(case)
    assert said in outcome.record.error
    assert "\n" not in outcome.record.error
    assert outcome.guess is None
    assert outcome.record.scores == {}
    assert outcome.record.attack.name == "it"


def test_a_key_press_is_not_a_failure():
    def interrupted(observation, *, rng):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_case(one_case(interrupted))


def test_a_record_is_strict_json_even_where_the_guess_is_perfect():
    def oracle(observation, *, rng):
        return sp.Reconstruction(PHOTOS.inputs[:1].clone())

    record = run_case(one_case(oracle)).record
    assert record.scores["psnr"] == (math.inf,)
    plain = json.loads(json.dumps(record.plain(), allow_nan=False))
    assert plain["scores"]["psnr"] == ["inf"]
    assert plain["scores"]["label_accuracy"] == [None]
    assert plain["people"] == [0]


def test_a_case_says_what_it_is_in_one_line():
    case = one_case(constant(0.0), size=2, defense=sp.Clip(1.0))
    assert str(case) == "it on photos #0, 1 behind Clip(1.0)"


def test_the_old_names_of_targets_still_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match="victims is now select_targets"):
        assert sp.audit.victims is select_targets
    with pytest.raises(AttributeError, match="no attribute 'villains'"):
        _ = sp.audit.villains


def test_one_round_is_not_named_so_that_audits_of_before_are_resumed():
    alone, several = describe_threat(sp.Threat()), describe_threat(sp.Threat(rounds=3))
    assert "rounds" not in alone.arguments
    assert several.arguments["rounds"] == 3
