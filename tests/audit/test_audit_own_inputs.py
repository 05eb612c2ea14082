"""Input defenses of one's own that do something else than they tell who simulates them."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.audit import Audit, select_targets
from seepage.audit._captured_data import CapturedUpdate
from seepage.audit._record import Control
from seepage.audit._run_case import run_case
from seepage.audit.results import Results
from seepage.core import Batch
from seepage.core._chain import OnInputs
from seepage.report import Level, verdict


@dataclass(frozen=True, repr=False)
class Changed(OnInputs):
    """Changes inputs, and tells those who simulate it so or not."""

    stage: ClassVar[str] = "data"

    by: str
    honest: bool = False

    def prepare(self, prepared, *, rng):
        inputs = prepared.batch.inputs
        if self.by == "noise":
            inputs = (inputs + 0.3 * rng.normal(tuple(inputs.shape))).clamp(0, 1)
        # With "mirror the dark" what comes back is bright, and would be left as it is.
        elif (
            self.by == "mirror"
            or (self.by == "coin" and float(rng.uniform(())) < 0.5)
            or (self.by == "mirror the dark" and float(inputs.mean()) < 0.5)
        ):
            inputs = 1 - inputs
        return replace(prepared, batch=Batch(inputs, prepared.batch.labels))

    def prepare_expected(self, prepared):
        return self.prepare(prepared, rng=sp.rng(0)) if self.honest else prepared


@pytest.fixture(scope="module")
def digits():
    return sp.data.load("digits", pixels=8)


def observe(digits, defense):
    """What is seen of the first digit behind a defense, and the digit."""
    task, batch = sp.zoo.mlp(hidden=(16,), domain=digits.domain), digits.batch(1)
    seen = sp.Threat().observe(sp.Client(sp.Gradient(), defense), task, batch, rng=sp.rng(3))
    return seen, batch


@pytest.mark.parametrize("by", ["mirror", "noise", "coin"])
def test_no_guess_is_unique_behind_a_defense_that_prepares_what_it_does_not_tell(digits, by):
    seen, _ = observe(digits, Changed(by))
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(1))
    for certificate in (guess.certificate, sp.certify(seen, guess)):
        assert certificate.residual < 1e-6, "it explains the update all the same"
        assert certificate.unique is None
        assert certificate.error is None


@pytest.mark.parametrize(
    "defense",
    [Changed("mirror", honest=True), sp.defenses.Oasis(rotations=False, flips=True), sp.chain()],
    ids=str,
)
def test_a_guess_is_as_unique_as_ever_behind_a_defense_that_tells_what_it_prepares(digits, defense):
    seen, batch = observe(digits, defense)
    certificate = sp.certify(seen, sp.Reconstruction(batch.inputs, batch.labels))
    assert certificate.residual < 1e-6
    assert certificate.locally_unique is True


def audit(digits, defense, *, attack=None, threat=None):
    """The record of one attack on one person behind a defense."""
    grid = Audit(
        tasks=[sp.zoo.mlp(hidden=(16,), domain=digits.domain)],
        attacks={"attack": attack or sp.attacks.analytic_fc()},
        defenses=[defense],
        threats=[threat or sp.Threat()],
        controls=False,
    )
    [case] = grid.cases(select_targets(digits, people=1, batch_size=1, start=0))
    return run_case(case).record


@pytest.mark.parametrize("by", ["mirror", "noise", "coin", "mirror the dark"])
def test_the_truth_takes_away_a_proof_that_it_contradicts(digits, by):
    assert float(digits.inputs[0].mean()) < 0.4, "so that it is mirrored"
    told = audit(digits, Changed(by))
    assert not told.certificate["unique"]
    assert told.effort["unsimulated"]
    # The same search as without controls, but taken to find everybody without the defense.
    able = replace(told, control=Control((8, 8, 0.01)))
    honest = replace(able, effort={k: v for k, v in able.effort.items() if k != "unsimulated"})
    hidden = [
        replace(r, identification=tuple(replace(i, rank=9) for i in r.identification))
        for r in (able, honest)
    ]
    assert [a.level for a in Results.of(hidden[:1])] == [Level.inconclusive]
    assert [a.level for a in Results.of(hidden[1:])] == [Level.not_shown]
    assert "the defense could not be simulated" in verdict(hidden[:1]).headline
    found = replace(able, identification=tuple(replace(i, rank=1) for i in able.identification))
    assert "the defense could not be simulated" in verdict([found]).headline
    assert "What Changed" in " ".join(verdict([found]).details)


def test_an_adversary_who_does_not_know_the_defense_proves_nothing_either(digits):
    told = audit(digits, Changed("mirror", honest=True), threat=sp.Threat(knows_defense=False))
    assert told.residual < 1e-6
    assert not told.certificate["unique"]
    assert "unsimulated" not in told.effort


def test_a_defense_that_tells_what_it_does_is_simulated(digits):
    for defense in (Changed("mirror", honest=True), sp.Precode(4), sp.MixUp(2)):
        told = audit(digits, defense, attack=sp.attacks.inverting_gradients(steps=1, restarts=1))
        assert "unsimulated" not in told.effort


def test_a_captured_update_behind_such_a_defense_proves_nothing(digits):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    batch = digits.batch(1)
    nn.functional.cross_entropy(model(1 - batch.inputs), batch.labels).backward()
    sent = {name: parameter.grad for name, parameter in model.named_parameters()}
    setting = sp.capture.Setting(batch_size=1, shape=(1, 8, 8))
    held = sp.capture.Capture.of(model, sent, form="gradient", setting=setting)
    task = sp.Task(model.eval(), sp.cross_entropy, sp.domains.Image((1, 8, 8)))
    grid = Audit(
        tasks=[task],
        attacks={"attack": sp.attacks.analytic_fc()},
        defenses=[sp.chain(), Changed("mirror")],
    )
    cases = grid.cases([CapturedUpdate(held).make_target("captured")])
    plain, told = [run_case(case).record for case in cases if not case.control]
    assert plain.certificate["unique"]
    assert not told.certificate["unique"]
    assert "the defense could not be simulated" in verdict([told], noun="images").headline


def test_a_step_behind_such_a_defense_has_its_control(digits):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    batch, others = digits.batch(1), digits.batch(80, start=10)
    options = {"others": sp.PublicData(others.inputs, others.labels), "domain": digits.domain}
    audits = [
        sp.audit_step(
            model, nn.CrossEntropyLoss(), (batch.inputs, batch.labels), steps=15, defense=defense,
            **options,
        )
        for defense in (sp.chain(), Changed("mirror"))
    ]  # fmt: skip
    assert [bool(audited.controls) for audited in audits] == [False, True]
    assert "could not be simulated" in str(audits[1]).splitlines()[0]
    assert "proved" not in str(audits[1]).replace("none is proved", "")
