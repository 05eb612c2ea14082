"""Bounds as cases: planned, run by every executor, stored, resumed, and told beside attacks."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from typer.testing import CliRunner

import seepage as sp
from seepage.audit import (
    Audit,
    AuditStore,
    BoundCase,
    Pool,
    SpecSource,
    build_spec,
    environment,
    estimate,
    load_audit,
    load_spec,
    run_case,
    select_targets,
    serial,
    side_by_side,
)
from seepage.audit._captured_data import CapturedUpdate
from seepage.audit._case import client_key
from seepage.audit._record import Record
from seepage.audit.results import Results
from seepage.cli import app
from seepage.core import BoundValue
from seepage.core.errors import line_to_store
from seepage.report import contradictions, headrooms

SPEC = """controls = false
seeds = [0, 1]
metrics = ["psnr"]
[[scenario]]
data = { name = "digits", people = 2, start = 0, pixels = 8 }
models = { name = "mlp", hidden = [8] }
threats = { knows_labels = true }
attacks = { name = "analytic_fc" }
bounds = [{ name = "CramerRao" }, { name = "CramerRaoRelaxed", std = 0.5 }]
defenses = [[], { name = "AddGaussian", std = 0.001 }]
"""
BOUNDS = {"CramerRao": sp.bounds.CramerRao(), "VanTrees": sp.bounds.VanTrees(points=1)}


@dataclass(frozen=True)
class Boast:
    """A bound that promises what is not so."""

    name: ClassVar[str] = "boast"

    rmse: float = 0.1

    def __call__(self, client, task, batch, *, rng):
        return BoundValue(torch.full((len(batch),), self.rmse), "lower", "rmse", ("nothing",))


@dataclass(frozen=True)
class Broken:
    """A bound with a bug."""

    name: ClassVar[str] = "broken"

    def __call__(self, client, task, batch, *, rng):
        raise RuntimeError("singular")


def audit(**changed):
    digits = sp.data.load("digits", pixels=8)
    parts = {
        # Van Trees' inequality refuses ReLU.
        "tasks": [sp.zoo.mlp(hidden=(8,), activation="sigmoid", domain=digits.domain)],
        "attacks": {"analytic_fc": sp.attacks.analytic_fc()},
        "defenses": [sp.AddGaussian(0.001)],
        "bounds": BOUNDS,
    }
    return Audit(**{**parts, **changed}), select_targets(digits, people=2, batch_size=1, start=0)


def timeless(record):
    return replace(record, effort={k: v for k, v in record.effort.items() if k != "seconds"})


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(SPEC)
    return SpecSource.read(path)


def test_a_bound_is_asked_once_per_batch_and_client_whatever_the_seeds_and_attacks():
    grid, batches = audit(seeds=[0, 1], defenses=[sp.chain(), sp.AddGaussian(0.1)])
    bounds = [case for case in grid.cases(batches) if isinstance(case, BoundCase)]
    assert len(bounds) == 2 * 2 * len(BOUNDS)
    assert len({case.id for case in bounds}) == len(bounds)


def test_a_bound_is_of_the_network_in_the_mode_the_threat_has_it_run():
    threats = [sp.Threat(knows_labels=True), sp.Threat(knows_labels=True, batchnorm="unknown")]
    grid, batches = audit(threats=threats)
    bounds = [case for case in grid.cases(batches) if isinstance(case, BoundCase)]
    assert {case.task.mode for case in bounds} == {"eval", "train"}
    assert {run_case(case).record.bound.mode for case in bounds[:1]} == {"eval"}


def test_what_a_case_says_is_what_the_bound_says():
    grid, batches = audit()
    outcomes = [o for o in grid.run(batches) if o.record.bound is not None]
    client, task = sp.Client(sp.Gradient(), sp.AddGaussian(0.001)), grid.tasks[0]
    for outcome in outcomes:
        record = outcome.record
        who = batches[record.people[0]]
        key = client_key(0, client, who).fork("bound")
        exact = BOUNDS[record.attack.name](client, task, who.batch, rng=key)
        assert record.bound.values == tuple(exact.value.tolist())
        assert record.bound.assumptions == exact.assumptions
        assert record.bound.entries == 64
        assert record.effort["seconds"] > 0
        assert Record.from_plain(record.plain()) == record


def test_a_closed_form_never_beats_the_bound_on_a_real_network():
    grid, batches = audit()
    records = [outcome.record for outcome in grid.run(batches)]
    attacks = [record for record in records if record.bound is None]
    rooms = headrooms(Results.of(attacks), [record for record in records if record.bound])
    assert len(rooms) == len(BOUNDS)
    assert all(room.people and room.people[0].tried for room in rooms)
    assert not contradictions(rooms)


def test_a_bound_that_breaks_is_a_record_and_the_rest_goes_on():
    grid, batches = audit(bounds={"broken": Broken(), **BOUNDS})
    records = [outcome.record for outcome in grid.run(batches)]
    broken = [record for record in records if record.error]
    assert [record.error for record in broken] == [line_to_store(RuntimeError())] * 2
    assert all(record.bound is not None and not record.bound.values for record in broken)
    assert len(records) == 2 * 4


@pytest.mark.slow
def test_every_executor_gives_the_same_records(source, tmp_path):
    cases = build_spec(source).cases
    expected = [timeless(outcome.record) for outcome in serial(cases)]
    assert sum(record.bound is not None for record in expected) == 2 * 2 * 2
    together = {o.record.case: timeless(o.record) for o in side_by_side(cases)}
    pool = Pool(source, 1, tmp_path / "checkpoints")
    workers = {o.record.case: timeless(o.record) for o in pool(cases)}
    for record in expected:
        assert together[record.case] == record
        assert workers[record.case] == record


def test_a_resumed_audit_computes_only_the_bounds_it_lacks(source, tmp_path):
    cases = build_spec(source).cases
    out = tmp_path / "out"
    with AuditStore.create(
        out, title="t", spec=source.text, environment=environment("cpu"), cases=cases
    ) as store:
        done = next(case for case in cases if isinstance(case, BoundCase))
        store.add(done, run_case(done))
    with AuditStore.resume(out, cases=cases) as store:
        assert [record.case for record in store.records()] == [done.id]
    found = load_audit(out)
    assert (len(found.records), len(found.bounds), found.complete) == (0, 1, False)
    assert found.bounds[0].bound.metric == "rmse"
    shown = CliRunner().invoke(app, ["audit", "--out", str(out), "--resume", "--plain"])
    assert shown.exit_code == 0, shown.output
    assert "1 case is done, 15 to run" in shown.output
    assert "What theory allows" in shown.output
    assert "=0.001: at most" in shown.output
    assert "CramerRao says nothing behind no defense" in shown.output
    finished = load_audit(out)
    assert finished.complete
    assert (len(finished.records), len(finished.bounds)) == (8, 8)
    page = (out / "report.html").read_text()
    assert 'id="bounds"' in page


def test_a_dry_run_counts_and_times_bounds(source, tmp_path):
    path = tmp_path / "spec.toml"
    shown = CliRunner().invoke(app, ["audit", str(path), "--out", str(tmp_path / "o"), "--dry-run"])
    assert "16 cases to run" in shown.output
    assert "bound CramerRao for digits" in shown.output
    cases = [case for case in load_spec(path).cases if isinstance(case, BoundCase)]
    assert all(seconds > 0 for seconds in estimate(cases))


def test_another_bound_is_another_audit(source, tmp_path):
    cases = build_spec(source).cases
    out = tmp_path / "out"
    AuditStore.create(out, title="t", spec="", environment={}, cases=cases).close()
    other = build_spec(replace(source, text=SPEC.replace("std = 0.5", "std = 0.4"))).cases
    with pytest.raises(
        sp.SeepageError, match=r"bound was 'CramerRaoRelaxed\(std=0.5\)' and is now"
    ):
        AuditStore.resume(out, cases=other)


def test_an_attack_beyond_a_bound_is_shouted_in_the_verdict_of_the_audit(tmp_path):
    grid, batches = audit(bounds={"boast": Boast()}, defenses=[sp.chain()])
    cases = grid.cases(batches)
    out = tmp_path / "out"
    with AuditStore.create(out, title="t", spec="", environment={}, cases=cases) as store:
        for case in cases:
            store.add(case, run_case(case))
    shown = CliRunner().invoke(app, ["report", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "CONTRADICTION: analytic_fc came" in " ".join(shown.output.split())
    assert 'class="alarm" role="alert"' in (out / "report.html").read_text()


def test_a_bound_needs_the_private_inputs():
    task = sp.zoo.mlp(hidden=(8,))
    held = sp.capture.Capture.of(
        task.model,
        {name: torch.zeros_like(p) for name, p in task.model.named_parameters()},
        form="gradient",
        setting=sp.capture.Setting(batch_size=1, shape=(3, 32, 32)),
    )
    strangers = CapturedUpdate(held).make_target("captured")
    grid = Audit(tasks=[task], attacks={}, bounds=BOUNDS)
    with pytest.raises(sp.SeepageError, match="which nobody has for captured; leave bounds out"):
        grid.cases([strangers])
