"""Knowing the defense never lowers the leakage that an audit reports: by construction."""

from dataclasses import replace

import pytest

import seepage as sp
from seepage.attacks import adaptive
from seepage.attacks._adaptive import without_adaptation
from seepage.attacks.labels import InferLabels
from seepage.audit import Audit, select_targets, strongest
from seepage.audit._captured_data import CapturedUpdate
from seepage.audit._grid import _list_adversaries
from seepage.core._construct import Component
from seepage.defenses import DEFENSES, Chain

# Every defense, with as many people to a batch as it needs.
BEHIND = [
    (sp.AddGaussian(0.2), 1),
    (sp.AddLaplace(0.15), 1),
    (sp.Clip(0.1), 1),
    (sp.chain(sp.ClipEach(0.1), sp.Mean()), 2),
    (sp.Dropout(0.7), 1),
    (sp.InstaHide(2), 2),
    (sp.chain(sp.InstaHide(2), sp.Prune(0.5)), 2),
    (sp.MixUp(2), 2),
    (sp.Oasis(), 1),
    (sp.Precode(16), 1),
    (sp.Prune(0.9), 1),
    (sp.Quantize(4), 1),
    (sp.SecureAggregation(2), 2),
    (sp.Sign(), 1),
    (sp.Soteria(0.8), 1),
    (sp.TopK(1_000), 1),
    (sp.dp_sgd(max_norm=1.0, noise_multiplier=0.05, batch_size=1), 1),
]
# Those that `make test` tries: noise, what is left out, another network, and several people.
QUICK = (sp.AddGaussian(0.2), sp.Prune(0.9), sp.Precode(16), sp.MixUp(2))
SEARCH = sp.attacks.inverting_gradients(steps=12, restarts=1, tv=1e-4)
UNAWARE_A = Component("unaware a")
KNOWING = sp.Threat(knows_labels=True, knows_mixing=True)
PRUNING = sp.Client(sp.Gradient(), sp.Prune(0.9))


@pytest.fixture(scope="module")
def data():
    return sp.data.load("photos", pixels=16)


@pytest.fixture(scope="module")
def records(data):
    """What an audit records of two people behind a defense."""
    task = sp.zoo.cnn(variant="cnn2-v2", domain=data.domain)

    def run(attack, threat, defense, together):
        audit = Audit(tasks=[task], attacks={"s": attack}, defenses=[defense], threats=[threat])
        outcomes = list(audit.run(select_targets(data, people=2, batch_size=together, start=0)))
        assert all(outcome.record.error is None for outcome in outcomes)
        return [outcome.record for outcome in outcomes]

    return run


def leaks(records, metric):
    return {leak.person: leak.value for leak in strongest(records, metric)}


def test_every_defense_has_a_row():
    links = [d.links if isinstance(d, Chain) else (d,) for d, _ in BEHIND]
    assert {type(link).__name__ for row in links for link in row} | {"dp_sgd"} == set(DEFENSES)


@pytest.mark.parametrize(
    ("defense", "together"),
    [row if row[0] in QUICK else pytest.param(*row, marks=pytest.mark.slow) for row in BEHIND],
    ids=repr,
)
def test_of_nobody_less_is_reported_for_knowing_the_defense(defense, together, records):
    """Person by person and to the last digit, though single guesses are worse for it."""
    known = records(adaptive(SEARCH), KNOWING, defense, together)
    ignored = records(SEARCH, KNOWING.forget_defense(), defense, together)
    for metric, sign in (("psnr", 1), ("ssim", 1), ("mse", -1)):
        with_it, without = leaks(known, metric), leaks(ignored, metric)
        assert with_it.keys() == without.keys() == {0, 1}
        assert all(sign * with_it[who] >= sign * without[who] for who in without)


def test_the_adapted_attack_alone_would_report_less_of_somebody(records):
    """Were it not so, the law would be no more than luck, and the test above would prove little."""
    every = records(adaptive(SEARCH), KNOWING, sp.MixUp(2), 2)
    alone = leaks([record for record in every if record.attack.name == "s"], "psnr")
    reported = leaks(every, "psnr")
    assert any(alone[who] < reported[who] for who in reported)
    assert {record.attack.name for record in every} == {"s", "unaware s"}


def test_only_who_knows_a_defense_and_adapts_to_it_is_run_unaware_as_well():
    plain, knowing = {"s": SEARCH}, {"a": adaptive(SEARCH)}
    unaware, bare = KNOWING.forget_defense(), sp.Client(sp.Gradient())
    assert _list_adversaries([KNOWING], plain, PRUNING) == [(KNOWING, "s", SEARCH)]
    assert _list_adversaries([KNOWING], knowing, bare) == [(KNOWING, "a", adaptive(SEARCH))]
    assert _list_adversaries([unaware], knowing, PRUNING) == [(unaware, "a", adaptive(SEARCH))]
    assert _list_adversaries([KNOWING], knowing, PRUNING)[1:] == [(unaware, UNAWARE_A, SEARCH)]


def test_what_is_in_the_grid_already_is_not_run_twice():
    both = {"s": SEARCH, "a": adaptive(SEARCH)}
    unaware = KNOWING.forget_defense()
    assert _list_adversaries([KNOWING], both, PRUNING)[2:] == [(unaware, "s", SEARCH)]
    assert len(_list_adversaries([KNOWING, unaware], both, PRUNING)) == 4
    again = {"a": adaptive(SEARCH), "b": adaptive(SEARCH, sp.Prune(0.9))}
    called = [name for _, name, _ in _list_adversaries([KNOWING], again, PRUNING)]
    assert called == ["a", "b", UNAWARE_A]


def test_an_attack_that_refuses_without_its_defense_is_run_as_it_was_before_it_was_adapted():
    pinned, unaware = {"p": adaptive(SEARCH, sp.Prune(0.9))}, KNOWING.forget_defense()
    assert (unaware, Component("unaware p"), SEARCH) in _list_adversaries(
        [KNOWING, unaware], pinned, PRUNING
    )


def test_an_attack_is_found_unadapted_however_deep_it_was_adapted():
    labelled = InferLabels(SEARCH)
    assert without_adaptation(InferLabels(adaptive(SEARCH, sp.Prune(0.9)))) == labelled
    assert without_adaptation(sp.attacks.Unmixed(adaptive(labelled))) == sp.attacks.Unmixed(
        labelled
    )
    assert without_adaptation(labelled) is labelled
    planted = sp.attacks.label_flip(attack=adaptive(SEARCH))
    assert without_adaptation(planted) == replace(planted, attack=SEARCH)


def test_a_captured_update_is_attacked_unaware_as_well(data):
    """Its threat is written in the file; what the client is said to have done is left out."""
    task, batch = sp.zoo.mlp(hidden=(8,), domain=data.domain), data.batch(1)
    shared = PRUNING(task, batch, rng=sp.rng(0))
    setting = sp.capture.Setting(batch_size=1, shape=task.domain.shape)
    held = sp.capture.Capture.of(task.model, shared.tensors, form="gradient", setting=setting)
    grid = Audit(tasks=[task], attacks={"a": adaptive(SEARCH)}, defenses=[PRUNING.defense])
    cases = grid.cases([CapturedUpdate(held, batch.labels).make_target("captured")])
    known = {case.attack_name: case.observe().simulate.client.chain.links for case in cases}
    assert known == {"a": (sp.Prune(0.9),), UNAWARE_A: ()}
