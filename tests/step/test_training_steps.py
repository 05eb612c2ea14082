"""Chosen steps of a loop: audited or recorded, and the training goes on whatever happens."""

import logging

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.capture import load
from seepage.integrations.gathered_step import GatheredStep, _join_batches
from seepage.step._training_steps import AuditSteps, RecordSteps

DIGITS = sp.data.bundled("digits", size=2, pixels=28)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10))


def train(listener, *, steps=3, model=None, batch=(DIGITS.inputs, DIGITS.labels)):
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        nn.functional.cross_entropy(model(batch[0]), DIGITS.labels).backward()
        listener(number, model, batch)
        optimizer.step()
        optimizer.zero_grad()
    return model


def test_an_audited_training_ends_with_the_same_weights(tmp_path):
    audited = train(AuditSteps(tmp_path, at=(1,), domain=(0, 1), steps=20))
    plain = train(lambda *_: None)
    pairs = zip(audited.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_only_chosen_steps_are_audited_each_with_a_page(tmp_path):
    audit = AuditSteps(tmp_path, at=(0, 2, 50), domain=(0, 1), steps=20)
    train(audit)
    assert list(audit.results) == [0, 2]
    assert all(result.recognisable and not result.difference for result in audit.results.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000", "step-000002"]
    assert (audit.path(2) / "report.html").is_file()


def test_a_step_that_was_audited_before_is_left_out_and_that_is_said(tmp_path, caplog):
    train(AuditSteps(tmp_path, domain=(0, 1), steps=20))
    assert "already" not in caplog.text
    again = AuditSteps(tmp_path, at=(0, 7), domain=(0, 1), steps=20)
    assert not again.wants(0)
    assert "1 of the steps, the first of them 0, have a folder in" in caplog.text


def test_a_batch_of_a_model_with_its_own_loss_is_told_of_it(tmp_path, caplog):
    batch = {"input_ids": torch.tensor([[1, 2, 3]]), "labels": torch.tensor([[1, 2, 3]])}
    assert AuditSteps(tmp_path)(0, nn.Linear(3, 2), batch, {}) is None
    assert "loss=None takes the loss of a Hugging Face model itself" in caplog.text


def test_a_step_that_cannot_be_audited_is_a_line_in_the_log(tmp_path, caplog):
    audit = AuditSteps(tmp_path, domain=(0, 0.5))
    with caplog.at_level(logging.WARNING, logger="seepage.steps"):
        train(audit, steps=1)
    assert not audit.results
    assert "step 0 was not audited" in caplog.text


def test_what_is_called_then_may_fail_and_the_result_is_kept(tmp_path, caplog):
    def fail(number, result):
        raise ConnectionError("the tracker is away")

    audit = AuditSteps(tmp_path, domain=(0, 1), steps=20, then=fail)
    with caplog.at_level(logging.WARNING, logger="seepage.steps"):
        train(audit, steps=1)
    assert audit.results[0].recognisable
    assert "the tracker is away" in caplog.text


def test_where_a_network_drops_at_random_the_step_is_computed_without_that(tmp_path):
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), *list(network())[1:])
    audit = AuditSteps(tmp_path, domain=(0, 1), steps=20)
    train(audit, steps=1, model=model)
    assert any("Dropout is left out" in note for note in audit.results[0].notes)
    assert audit.results[0].recognisable


def test_a_recorded_step_holds_the_gradient_and_nothing_of_the_batch(tmp_path):
    keep = RecordSteps(tmp_path, at=(1,))
    seen = []

    def listen(number, model, batch):
        if keep(number, model, batch):
            seen.append({n: p.grad.clone() for n, p in model.named_parameters()})

    train(listen)
    capture = load(tmp_path / "step-000001.safetensors")
    assert capture.form == "gradient"
    assert capture.setting.batch_size == 2
    assert capture.setting.shape == (1, 28, 28)
    assert capture.setting.round == 1
    assert set(capture.update) == set(seen[0])
    assert all(torch.equal(capture.update[name], seen[0][name]) for name in seen[0])


def test_an_attack_on_a_recorded_step_recovers_the_digit(tmp_path):
    one = DIGITS.inputs[:1]
    model = network()
    nn.functional.cross_entropy(model(one), DIGITS.labels[:1]).backward()
    path = RecordSteps(tmp_path)(0, model, (one, DIGITS.labels[:1]))
    task = sp.Task(network(), sp.cross_entropy, sp.domains.Image((1, 28, 28)))
    seen = load(path).observation(task)
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(0))
    assert float(sp.score(guess, sp.Batch(one, DIGITS.labels[:1]))["psnr"][0]) > 60


def test_a_gradient_that_is_not_finite_is_not_recorded(tmp_path, caplog):
    model = network()
    model(DIGITS.inputs).sum().backward()
    next(model.parameters()).grad.fill_(float("nan"))
    with caplog.at_level(logging.WARNING, logger="seepage.steps"):
        assert RecordSteps(tmp_path)(0, model, (DIGITS.inputs, DIGITS.labels)) is None
    assert "step 0 was not recorded: " in caplog.text


@pytest.mark.parametrize(
    ("batches", "joined"),
    [
        ([torch.zeros(1), torch.ones(2)], torch.tensor([0.0, 1.0, 1.0])),
        ([torch.tensor(3), torch.tensor(3)], torch.tensor(3)),
    ],
    ids=["batches", "numbers"],
)
def test_accumulated_batches_are_joined(batches, joined):
    assert torch.equal(_join_batches(batches), joined)
    assert torch.equal(_join_batches([{"x": b} for b in batches])["x"], joined)
    assert torch.equal(_join_batches([[b, "kept"] for b in batches])[0], joined)


def test_accumulated_batches_that_do_not_fit_are_said(tmp_path, caplog):
    step = GatheredStep(RecordSteps(tmp_path))
    for length in (4, 5):
        step.add(0, {"input_ids": torch.zeros(1, length)})
    with caplog.at_level(logging.WARNING, logger="seepage.steps"):
        step.finish(0, network())
    assert "2 accumulated batches cannot be joined" in caplog.text


def test_a_network_whose_lazy_layers_have_not_run_is_refused_in_one_sentence():
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
    with pytest.raises(sp.SeepageError, match="lazy layers that have not run"):
        sp.audit_step(lazy, nn.CrossEntropyLoss(), (DIGITS.inputs, DIGITS.labels))
