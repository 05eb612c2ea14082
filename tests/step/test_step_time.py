"""One limit of time over a whole audit, on a clock that moves when it is read."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.audit import _targets
from seepage.core import _progress as progress
from seepage.core._progress import limited, report, time_left
from seepage.core.errors import NotApplicable
from seepage.probing import _heads as heads
from seepage.scoring import baseline_scores
from seepage.step import _step_people

TICK = 0.01
# Whatever begins after the end takes a step, and reads the clock a few times.
LATE = 60 * TICK


class Clock:
    """Stands still between readings, so that time is the number of steps, on any machine."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        self.now += TICK
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=made))
    return made


def network():
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.Sigmoid(), nn.Conv2d(4, 4, 3, padding=1)
    return nn.Sequential(*layers, nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 4))


def audit(people=2, **options):
    drawn = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    batch = drawn[:people], torch.arange(people)
    options = {"others": drawn[people:], "domain": (0, 1), **options}
    return sp.audit_step(network(), nn.CrossEntropyLoss(), batch, **options)


@pytest.mark.parametrize("seconds", [0.5, 2.0, pytest.param(8.0, marks=pytest.mark.slow)])
def test_rehearsals_searches_and_controls_end_with_the_time_of_the_whole_call(clock, seconds):
    result = audit(seconds=seconds)
    assert clock.now <= seconds + LATE
    [record] = result.records
    assert record.effort["cut"] == 1
    assert record.effort["steps"] >= 1
    assert not any(attempt.conclusive for attempt in result.people.values())
    assert any("give more seconds" in note for note in result.notes)
    assert time_left() == torch.inf


def test_ranges_that_nobody_declared_are_looked_for_in_the_same_time(clock):
    audit(seconds=2.0, domain=None, others=None)
    assert clock.now <= 2.0 + LATE


def test_searches_that_are_named_end_too_and_those_after_them_are_not_begun(clock):
    search = sp.attacks.inverting_gradients
    wanted = [search(steps=10_000), search(steps=9_000, restarts=3)]
    result = audit(seconds=2.0, attacks=wanted, threat=sp.Threat(knows_labels=True))
    assert clock.now <= 2.0 + LATE
    [record] = result.records
    assert record.effort["cut"] == 1
    assert 1 <= record.effort["steps"] < 10_000
    assert any("no time was left" in reason for reason in result.refused.values())


def test_a_search_that_has_time_takes_all_its_steps(clock):
    search = sp.attacks.inverting_gradients(steps=30, restarts=2)
    result = audit(seconds=600.0, attacks=[search], threat=sp.Threat(knows_labels=True))
    [record] = result.records
    assert (record.effort["steps"], record.effort["restarts"]) == (30, 2)
    assert "cut" not in record.effort


@pytest.mark.slow
def test_a_race_that_time_cut_short_is_not_taken_for_one_that_was_run(clock):
    seen = observe()
    whole = sp.auto(budget=600)
    with limited(1.0):
        short = whole(seen, rng=sp.rng(1)).trace.race
    long = whole(seen, rng=sp.rng(1)).trace.race
    assert short.cut
    assert not long.cut
    assert sum(t.steps for t in long.trials) > sum(t.steps for t in short.trials)


def observe():
    task = sp.Task(network(), nn.CrossEntropyLoss(), sp.domains.Image((1, 6, 6)))
    batch = sp.Batch(torch.rand(2, 1, 6, 6), torch.tensor([2, 3]))
    return sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))


def test_the_nearest_limit_counts_and_work_that_reports_after_it_ends(clock):
    with limited(5.0):
        with limited(50.0):
            assert time_left() <= 5.0
        with limited(None):
            assert time_left() <= 5.0
        report(1, 2, 0.0)
        clock.now += 5.0
        with pytest.raises(NotApplicable, match="give more seconds"):
            report(2, 2, 0.0)
    report(2, 2, 0.0)


def test_a_step_probes_its_network_once_however_many_attacks_ask():
    read = []

    class Counting(nn.Flatten):
        def forward(self, inputs):
            read.append(len(inputs))
            return super().forward(inputs)

    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), Counting(), nn.Linear(400, 4))
    batch = torch.rand(1, 1, 12, 12), torch.tensor([2])
    sp.audit_step(model, nn.CrossEntropyLoss(), batch, domain=(0, 1), steps=1)
    assert read.count(heads.PROBES) == 1


def test_guesses_that_need_no_update_are_scored_once_for_all_attacks(monkeypatch):
    scored = []

    def listen_in(batch, **options):
        scored.append(batch)
        return baseline_scores(batch, **options)

    monkeypatch.setattr(_targets, "baseline_scores", listen_in)
    searches = [sp.attacks.inverting_gradients(steps=n) for n in (1, 2)]
    result = audit(attacks=searches, threat=sp.Threat(knows_labels=True), others=None)
    first, second = result.records
    assert len(scored) == 1
    assert first.baselines == second.baselines
    assert first.baselines


def test_large_images_are_probed_and_compared_with_fewer(monkeypatch):
    monkeypatch.setattr(heads, "_ENTRIES", 100)
    monkeypatch.setattr(_step_people, "_ENTRIES", 100)
    result = audit(people=1, others=None, steps=1)
    [found] = result.records[0].identification
    assert found.strangers == 24
    pool = _step_people._make_up(sp.domains.Image((1, 6, 6)), 2)
    assert len(pool.unique(dim=0)) == 24
