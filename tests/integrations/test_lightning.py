"""Lightning: the callback audits the gradient that the trainer computed, and changes nothing."""

import warnings

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.capture import load
from seepage.core.errors import InvalidValue
from seepage.integrations.lightning import step_callback
from seepage.step._training_steps import AuditSteps, RecordSteps

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
# What Lightning warns of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

DIGITS = sp.data.bundled("digits", size=4, pixels=28)


class Classifier(pl.LightningModule):
    def __init__(self, optimizers=1):
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(28 * 28, 16), nn.ReLU(), nn.Linear(16, 10)
        self.network = nn.Sequential(nn.Flatten(), *layers)
        self.optimizers_made = optimizers
        self.automatic_optimization = optimizers == 1

    def forward(self, inputs):
        return self.network(inputs)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        made = [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(self.optimizers_made)]
        return made if self.optimizers_made > 1 else made[0]


def fit(*listeners, module=None, **options):
    module = module or Classifier()
    data = torch.utils.data.TensorDataset(DIGITS.inputs, DIGITS.labels)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[step_callback(listener) for listener in listeners],
        **options,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=1))
    return module


def test_the_step_is_audited_bit_for_bit_and_training_is_unchanged(tmp_path):
    audit = AuditSteps(tmp_path, at=(2,), domain=(0, 1), steps=20)
    audited, plain = fit(audit), fit()
    assert audit.results[2].recognisable
    assert audit.results[2].difference == ""
    pairs = zip(audited.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_accumulated_batches_are_one_step_before_clipping(tmp_path):
    audit = AuditSteps(tmp_path / "audits", at=(1,), domain=(0, 1), steps=20)
    keep = RecordSteps(tmp_path / "captures", at=(0,))
    fit(audit, keep, accumulate_grad_batches=2, gradient_clip_val=1e-3)
    assert len(audit.results[1].people) == 2
    assert audit.results[1].difference == ""
    capture = load(tmp_path / "captures" / "step-000000.safetensors")
    assert capture.setting.batch_size == 2
    assert max(float(t.norm()) for t in capture.update.values()) > 1e-2


def test_a_module_with_several_optimisers_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(InvalidValue, match=r"one optimiser, got 2 \(SGD, SGD\).*sp.audit_step"):
        fit(AuditSteps(tmp_path), module=Classifier(optimizers=2))
