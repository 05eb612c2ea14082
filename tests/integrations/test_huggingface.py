"""Hugging Face: the callback hears what the network reads and its gradient before clipping."""

import warnings

import pytest
import torch

import seepage as sp
from seepage.capture import load
from seepage.integrations.huggingface import step_callback
from seepage.step._training_steps import AuditSteps, RecordSteps

pytest.importorskip("accelerate", reason="accelerate is not installed, which the trainer needs")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
# What the trainer warns of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

PHOTOS = sp.data.bundled("photos", size=4)


def network():
    torch.manual_seed(0)
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=32,
            patch_size=8,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            num_labels=10,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def train(folder, *listeners, model=None, rows=None, **options):
    model = model or network()
    rows = rows or [
        {"pixel_values": inputs, "labels": int(label)}
        for inputs, label in zip(PHOTOS.inputs, PHOTOS.labels, strict=True)
    ]
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=1,
        num_train_epochs=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        **options,
    )
    callbacks = [step_callback(listener) for listener in listeners]
    transformers.Trainer(model, arguments, train_dataset=rows, callbacks=callbacks).train()
    return model


def test_the_step_is_audited_and_training_is_unchanged(tmp_path):
    audit = AuditSteps(tmp_path / "audits", at=(1,), domain=(0, 1), attacks=["dlg"], steps=2)
    audited, plain = train(tmp_path, audit), train(tmp_path)
    assert audit.results[1].difference == ""
    assert len(audit.results[1].people) == 1
    pairs = zip(audited.parameters(), plain.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert not any(p._post_accumulate_grad_hooks for p in audited.parameters())
    assert not audited._forward_pre_hooks


def test_accumulated_batches_are_recorded_as_one_gradient_before_clipping(tmp_path):
    keep = RecordSteps(tmp_path / "captures", at=(0,))
    train(tmp_path, keep, gradient_accumulation_steps=2, max_grad_norm=1e-3)
    capture = load(tmp_path / "captures" / "step-000000.safetensors")
    assert capture.setting.batch_size == 2
    model = network()
    order = [
        index
        for index in torch.cartesian_prod(torch.arange(4), torch.arange(4)).tolist()
        if index[0] < index[1]
    ]
    # The trainer shuffles: the gradient is that of some two of the four photos.
    apart = []
    for pair in order:
        model.zero_grad()
        model(PHOTOS.inputs[pair], labels=PHOTOS.labels[pair]).loss.backward()
        own = {name: p.grad for name, p in model.named_parameters()}
        apart.append(max(float((own[n] - capture.update[n]).abs().max()) for n in own))
    assert min(apart) < 1e-6
    assert max(apart) > 1e-3


def test_mixed_precision_is_audited_without_the_wrapper_of_the_trainer(tmp_path):
    audit = AuditSteps(tmp_path / "audits", domain=(0, 1), attacks=["dlg"], steps=2)
    train(tmp_path, audit, bf16=True)
    assert any("bit for bit" in note for note in audit.results[0].notes)
    assert "dlg" not in audit.results[0].refused


@pytest.mark.parametrize("smoothing", [0.0, 0.1], ids=["plain", "smoothed"])
def test_the_words_of_a_step_on_texts_come_back(tmp_path, smoothing):
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 300}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **dropout))
    text = torch.tensor([12, 7, 81, 40, 5, 3])
    row = {"input_ids": text, "attention_mask": torch.ones_like(text), "labels": text}
    audit = AuditSteps(tmp_path / "audits", at=(0,), loss=None, attacks=["dager"])
    train(tmp_path, audit, model=model, rows=[row], label_smoothing_factor=smoothing)
    assert audit.results[0].difference == ""
    assert torch.equal(audit.results[0].guess[0], text)


def test_smoothed_labels_of_images_reach_the_audit(tmp_path):
    audit = AuditSteps(tmp_path / "audits", loss=None, domain=(0, 1), attacks=["dlg"], steps=2)
    train(tmp_path, audit, label_smoothing_factor=0.2)
    assert audit.results[0].difference == ""
    assert len(audit.results[0].people) == 1
