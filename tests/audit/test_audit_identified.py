"""Whole audits in which a guess may be exact and still identify nobody."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.audit import Audit, find_breaches
from seepage.audit._targets import select_targets
from seepage.audit.results import Results
from seepage.audit.results._controls import join_controls
from seepage.report import Level, verdict


@dataclass(frozen=True)
class Blank:
    """A guess of zeros, which looks at nothing."""

    def __call__(self, seen, *, rng):
        shape = (seen.batch_size, *seen.task.domain.shape)
        return sp.Reconstruction(torch.zeros(shape), seen.labels)


def run(data, attack, *defenses, people, hidden=(16,)):
    """The records of attacks on people, each with how its controls went."""
    audit = Audit(
        tasks=[sp.zoo.mlp(hidden=hidden, domain=data.domain, classes=data.classes)],
        attacks={"attack": attack},
        defenses=defenses or [sp.chain()],
        controls=True,
    )
    targets = select_targets(data, people=people, batch_size=1, start=0)
    return join_controls(outcome.record for outcome in audit.run(targets))


def make_table(count, **kinds):
    """A table of unrelated columns of categories, so many kinds in each."""
    columns = {
        name: [f"{name}{int(n)}" for n in kind * sp.rng(0).fork(name).uniform((count,)).square()]
        for name, kind in (kinds | {"label": 2}).items()
    }
    return sp.data.read_table(columns, label="label")


def levels_of(records):
    return {attempt.level for attempt in Results.of(records).strongest()}


@pytest.mark.slow
def test_nobody_is_identified_behind_much_noise_in_a_narrow_table():
    table = make_table(200, sex=2, school=3)
    found = run(table, sp.auto(effort="quick", budget=20), sp.AddGaussian(1e6), people=8)
    assert not any(level.identified for level in levels_of(found))
    assert not find_breaches(["identified=0"], found)


def test_rows_that_many_people_have_identify_nobody_and_a_row_of_ones_own_does():
    narrow = make_table(200, sex=2, school=3)
    found = run(narrow, sp.attacks.analytic_fc(), people=6)
    assert all(record.is_exact(0) for record in found)
    judged = verdict(found, noun="rows")
    assert "what came back is exact, but fits others as well" in judged.headline
    assert "others in the data too" in judged.details[0]
    assert not find_breaches(["identified=0"], found)
    wide = make_table(200, **{f"answer {n}": 6 for n in range(8)})
    found = run(wide, sp.attacks.analytic_fc(), people=6)
    assert levels_of(found) == {Level.reconstructed}
    assert verdict(found, noun="rows").headline.startswith("6 of 6 people were identified: 6 rows")
    assert len(find_breaches(["identified=0"], found)) == 6


def test_a_black_guess_is_no_leak_of_blank_scans_and_controls_agree():
    scans = 4e-4 * sp.rng(0).normal((60, 1, 8, 8)).abs()
    scans[13:] += sp.rng(1).uniform((47, 1, 8, 8)) * 0.99
    domain = sp.domains.Image((1, 8, 8))
    labels = torch.arange(60) % 2
    data = sp.data.Dataset("scans", scans, labels, domain, ("ill", "well"), "made up")
    found = run(data, Blank(), people=13)
    assert [record.is_exact(0) for record in found] == [True] * 13
    assert levels_of(found) == {Level.inconclusive}
    assert verdict(found).headline.startswith("Inconclusive: what came back is exact, but fits")
    assert not find_breaches(["identified=0"], found)


@pytest.mark.parametrize("shown", [False, True], ids=["zeros", "itself"])
def test_zeros_are_no_quiet_signal_in_the_default_range(shown):
    quiet = 0.025 * torch.sin(torch.linspace(0, 31.4, 64))[None, None]
    network = nn.Sequential(nn.Conv1d(1, 4, 5), nn.ReLU(), nn.Flatten(), nn.Linear(240, 2))

    @dataclass(frozen=True)
    class Told:
        def __call__(self, seen, *, rng):
            return sp.Reconstruction(quiet + 1e-6, seen.labels)

    result = sp.audit_step(
        network,
        nn.CrossEntropyLoss(),
        (quiet, torch.tensor([1])),
        attacks=[Told() if shown else Blank()],
    )
    [person] = result.people.values()
    assert person.level is (Level.reconstructed if shown else Level.inconclusive)
