"""Accelerate: one call after the backward pass audits the step that the loop will take."""

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.integrations.accelerate import AcceleratedSteps
from seepage.integrations.gathered_step import copy_prepared
from seepage.step._training_steps import AuditSteps

pytest.importorskip("accelerate", reason="accelerate is not installed")
# What accelerate warns of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

DIGITS = sp.data.bundled("digits", size=4, pixels=28)


@pytest.fixture(params=["no"])
def accelerator(request):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    # Accelerate keeps one state for the whole process.
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(gradient_accumulation_steps=2, cpu=True, mixed_precision=request.param)
    AcceleratorState._reset_state(reset_partial_state=True)


def prepare(accelerator):
    torch.manual_seed(0)
    layers = nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10)
    model = nn.Sequential(nn.Flatten(), *layers)
    data = torch.utils.data.TensorDataset(DIGITS.inputs, DIGITS.labels)
    loader = torch.utils.data.DataLoader(data, batch_size=1)
    return accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)


def test_accumulated_batches_are_one_step(accelerator, tmp_path):
    audit = AuditSteps(tmp_path, at=(1,), domain=(0, 1), steps=20)
    steps = AcceleratedSteps(accelerator, audit)
    model, optimizer, loader = prepare(accelerator)
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.cross_entropy(model(inputs), labels))
            steps.after_backward(model, (inputs, labels))
            optimizer.step()
            optimizer.zero_grad()
    assert len(audit.results[1].people) == 2
    assert audit.results[1].recognisable
    assert audit.results[1].difference == ""


@pytest.mark.parametrize("accelerator", ["bf16"], indirect=True)
def test_a_copy_is_free_of_autocast_and_the_model_keeps_it(accelerator):
    model, *_ = prepare(accelerator)
    plain = copy_prepared(model)
    with torch.no_grad():
        exact = nn.Sequential(*plain)(DIGITS.inputs)
        assert torch.equal(plain(DIGITS.inputs), exact)
        assert not torch.equal(model(DIGITS.inputs), exact)
