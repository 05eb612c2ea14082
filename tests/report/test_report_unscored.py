"""What is said of guesses that no truth judges."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import seepage as sp
from seepage.audit import Audit, Record
from seepage.audit._captured_data import CapturedUpdate
from seepage.audit._run_case import run_case
from seepage.report import verdict
from seepage.report._exports import result_rows


def audit_dropout(*, mixed=False):
    """Attack a captured step with dropout, and return the record and the guess."""
    photos = sp.data.load("photos", pixels=8)
    inputs, labels = photos.inputs[:3], photos.labels[:3]
    if mixed:
        inputs = 0.6 * inputs + 0.4 * inputs.roll(1, 0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        first, head = nn.Linear(192, 256), nn.Linear(256, 10)
        model = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Dropout(0.4), head)
        functional.cross_entropy(model.train()(inputs), labels).backward()
    sent = {name: parameter.grad for name, parameter in model.named_parameters()}
    setting = sp.capture.Setting(batch_size=3, shape=(3, 8, 8))
    held = sp.capture.Capture.of(model, sent, form="gradient", setting=setting)
    task = sp.Task(model.eval(), sp.cross_entropy, sp.domains.Image((3, 8, 8)))
    grid = Audit(tasks=[task], attacks={"exact_batch": sp.attacks.exact_batch()})
    [case] = grid.cases([CapturedUpdate(held).make_target("captured")])
    return run_case(case), inputs


@pytest.mark.parametrize("mixed", [False, True])
def test_what_a_layer_read_behind_dropout_is_told_but_not_proved_to_be_the_inputs(mixed):
    outcome, read = audit_dropout(mixed=mixed)
    near = torch.cdist(outcome.guess.flatten(1), read.flatten(1)).amin(0)
    assert near.max() < 1e-4, "it is what the layer read, mixed or not"
    assert outcome.record.residual > 0.1
    assert not outcome.record.certificate["unique"]
    judged = verdict([outcome.record], noun="images")
    assert judged.headline == "What the first layer read of 3 of 3 people came back"
    assert judged.level is None
    assert "if the client mixed its inputs, these are mixtures" in " ".join(judged.details)


@dataclass(frozen=True)
class GuessAndCertify:
    """An attack of one's own, which certifies its guess by the public function."""

    guess: torch.Tensor
    labels: torch.Tensor

    def __call__(self, observation, *, rng):
        del rng
        found = sp.Reconstruction(self.guess, self.labels)
        return replace(found, certificate=sp.certify(observation, found))


def test_a_guess_that_is_only_locally_unique_is_not_told_as_proved():
    photos = sp.data.load("photos", pixels=8)
    batch = photos.batch(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(512, 10)
        model = nn.Sequential(*layers)
    functional.cross_entropy(model(batch.inputs), batch.labels).backward()
    sent = {name: parameter.grad for name, parameter in model.named_parameters()}
    setting = sp.capture.Setting(batch_size=1, shape=(3, 8, 8))
    held = sp.capture.Capture.of(model, sent, form="gradient", setting=setting)
    task = sp.Task(model.eval(), sp.cross_entropy, sp.domains.Image((3, 8, 8)))
    attack = GuessAndCertify(batch.inputs, batch.labels)
    grid = Audit(tasks=[task], attacks={"own": attack}, controls=False)
    [case] = grid.cases([CapturedUpdate(held).make_target("captured")])
    record = run_case(case).record
    assert record.certificate["locally_unique"] is True
    assert record.certificate["unique"] is None
    assert Record.from_plain(json.loads(json.dumps(record.plain()))) == record
    judged = verdict([record], noun="images")
    assert judged.headline == "What came back explains the update of 1 person; others might as well"
    assert judged.level is None
    [row] = result_rows([record])
    assert (row["unique"], row["locally_unique"]) == (None, True)
