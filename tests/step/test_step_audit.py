"""One step of anybody's training loop: what comes back, and that nothing else happens."""

import copy
import random
import warnings
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import seepage as sp
from seepage.attacks.feature_recovery import NotToldApartWarning
from seepage.audit import load_audit
from seepage.core._progress import listen
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.report import Level
from seepage.step._step_attacks import FindRange, choose_domain, list_attacks
from seepage.step._step_loss import _unreduce_loss

CHEAP = {"seconds": 600.0, "steps": 15}


@pytest.fixture(scope="module")
def photo():
    """One photograph at 12 pixels, with its label."""
    batch = sp.data.bundled("photos", size=1)
    return functional.interpolate(batch.inputs, size=12, mode="area"), batch.labels


@pytest.fixture(autouse=True)
def seeded():
    """Networks that are the same in every order of tests."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Beats(nn.Module):
    """A recurrent network on signals `(B, 1, L)`."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(1, 12, batch_first=True)
        self.head = nn.Linear(12, 5)

    def forward(self, signal):
        return self.head(self.recurrent(signal.transpose(1, 2))[0][:, -1])


class Sentences(nn.Module):
    """A transformer on embeddings `(B, T, D)`, which returns an object."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 5)

    def forward(self, embeddings):
        return SimpleNamespace(logits=self.head(self.encoder(embeddings).mean(1)))


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(16 * 144, 10),
    )


def vision_transformer():
    transformers = pytest.importorskip("transformers", reason="pip install 'seepage[huggingface]'")
    config = transformers.ViTConfig(
        image_size=12, patch_size=4, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, num_labels=10,
    )  # fmt: skip
    return transformers.ViTForImageClassification(config)


def modern_convolutional():
    transformers = pytest.importorskip("transformers", reason="pip install 'seepage[huggingface]'")
    config = transformers.ConvNextConfig(
        num_channels=3, patch_size=2, hidden_sizes=[8, 8], depths=[1, 1], num_stages=2,
        num_labels=10,
    )  # fmt: skip
    return transformers.ConvNextForImageClassification(config)


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


ARCHITECTURES = {
    "recurrent network": (Beats, lambda: (numbers(1, 1, 8), torch.tensor([2]))),
    "transformer on embeddings": (Sentences, lambda: (numbers(1, 4, 8), torch.tensor([3]))),
    "convolutions with batch normalisation": (convolutional, None),
    "vision transformer of transformers": (vision_transformer, None),
    "ConvNeXt of transformers": (modern_convolutional, None),
}


def everything(model, optimizer, batch):
    """All that a training loop owns and an audit might change."""
    return copy.deepcopy(
        {
            "state": model.state_dict(),
            "gradients": [p.grad for p in model.parameters()],
            "modes": [module.training for module in model.modules()],
            "optimizer": optimizer.state_dict(),
            "batch": batch,
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state()[1],
            "kernels": torch.backends.cuda.flash_sdp_enabled(),
            "grad": torch.is_grad_enabled(),
        }
    )


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_any_architecture_is_audited_and_left_as_it_was(name, photo):
    make, data = ARCHITECTURES[name]
    model = make().train()
    batch = photo if data is None else data()
    optimizer = torch.optim.AdamW(model.parameters())
    outputs = model(batch[0])
    nn.functional.cross_entropy(getattr(outputs, "logits", outputs), batch[1]).backward()
    before = everything(model, optimizer, batch)
    result = sp.audit_step(model, nn.CrossEntropyLoss(), batch, optimizer, **CHEAP)
    assert same(before, everything(model, optimizer, batch))
    assert result.worst == 0
    assert torch.isfinite(result.scores["psnr"]).all()
    assert result.guess.shape == batch[0].shape
    # A closed form found it, or the search got somewhere: it knows no more than the update.
    searched = result.outcomes[0].objective
    assert min(searched) < 0.95 * searched[0] if searched else result.scores["psnr"].min() > 40
    assert "gradient behind the step of AdamW" in str(result)
    assert "analytic_fc" in result.refused


def test_what_is_audited_is_the_gradient_that_training_computes(photo):
    model = convolutional().eval()
    for p in model.parameters():
        p.grad = None
    nn.functional.cross_entropy(model(photo[0]), photo[1]).backward()
    result = sp.audit_step(model, nn.CrossEntropyLoss(), photo, **CHEAP)
    shared = result.cases[0].observe().update.tensors
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(shared[f"model.{name}"], parameter.grad, rtol=1e-4, atol=1e-6)


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 32), nn.ReLU(), nn.Linear(32, 10))


def plain_convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(128, 10),
    )  # fmt: skip


@pytest.mark.parametrize("make", [dense, plain_convolutional])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_what_is_audited_has_the_bits_of_the_gradient_that_training_computes(make, dtype):
    model = make().to(dtype)
    inputs, labels = torch.rand(3, 3, 12, 12, dtype=torch.float64).to(dtype), torch.arange(3)
    try:
        functional.cross_entropy(model(inputs), labels).backward()
    except RuntimeError as error:
        pytest.skip(f"this CPU does not compute in {dtype}: {error}")
    result = sp.audit_step(model, nn.CrossEntropyLoss(), (inputs, labels), **CHEAP)
    shared = result.cases[0].observe().update.tensors
    for name, parameter in model.named_parameters():
        assert torch.equal(shared[f"model.{name}"], parameter.grad.to(shared[f"model.{name}"]))


def test_a_step_in_bfloat16_gives_away_no_more_digits_than_it_has(photo):
    model = dense().to(torch.bfloat16)
    result = sp.audit_step(model, nn.CrossEntropyLoss(), photo, **CHEAP)
    # Inputs with eight bits of mantissa: float32 would bring back 140 dB.
    assert 40 < float(result.scores["psnr"]) < 80
    assert not any(r.certificate and r.certificate["unique"] for r in result.records)
    assert "computed in bfloat16" in str(result)


def test_a_step_of_sgd_in_bfloat16_is_how_far_its_parameters_move(photo):
    model = dense().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = sp.audit_step(model, nn.CrossEntropyLoss(), photo, optimizer, **CHEAP)
    before = copy.deepcopy(model)
    functional.cross_entropy(model(photo[0].bfloat16()), photo[1]).backward()
    optimizer.step()
    shared = result.cases[0].observe().update.tensors
    for (name, after), start in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(shared[f"model.{name}"], (after - start).float())


@pytest.mark.parametrize("given", [False, True], ids=["computed", "given"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("still", ["left out", "rate of zero"])
def test_what_the_optimizer_does_not_move_is_not_shared(photo, kind, still, given):
    model = dense()
    first, *_, last = (layer for layer in model if isinstance(layer, nn.Linear))
    groups = [{"params": last.parameters(), "lr": 0.1}]
    groups += [{"params": first.parameters(), "lr": 0.0}] if still == "rate of zero" else []
    optimizer = kind(groups)
    functional.cross_entropy(model(photo[0]), photo[1]).backward()
    sent = {name: p.grad for name, p in model.named_parameters()} if given else None
    loss = nn.CrossEntropyLoss()
    result = sp.audit_step(model, loss, photo, optimizer, gradients=sent, **CHEAP)
    assert not result.recognisable
    assert result.difference == ""
    assert "2 of 4 trainable parameters are not moved by the optimizer" in str(result)
    shared = result.cases[0].observe().update.tensors
    assert [tuple(t.shape) for t in shared.values()] == [last.weight.shape, last.bias.shape]
    whole = sp.audit_step(model, loss, photo, **CHEAP)
    assert whole.recognisable


class Scaled(nn.Module):
    """A network that may read a second tensor of the batch."""

    def __init__(self):
        super().__init__()
        self.network = dense()

    def forward(self, inputs, scale=None):
        outputs = self.network(inputs)
        return outputs if scale is None else outputs * scale[:, None]


def test_what_the_network_reads_besides_the_inputs_is_said_to_be_left_out(photo):
    inputs, labels = photo
    batch = {"inputs": inputs, "labels": labels, "count": torch.tensor(1), "path": ["a.png"]}

    def audit(**more):
        return sp.audit_step(Scaled(), nn.CrossEntropyLoss(), {**batch, **more}, **CHEAP)

    plain, same, other = audit(), audit(scale=torch.ones(1)), audit(scale=torch.tensor([3.0]))
    assert plain.difference == same.difference == ""
    assert not any("of the batch" in note for note in (*plain.notes, *same.notes))
    assert other.difference.startswith("the network also reads scale of the batch, which is left")
    assert all(record.effort["foreign"] for record in other.records)
    weighted = audit(weights=torch.ones(1))
    assert weighted.difference == ""
    assert any(note.startswith("weights of the batch is not read") for note in weighted.notes)


def test_an_optimizer_of_other_parameters_is_said_to_be_one(photo):
    optimizer = torch.optim.SGD(dense().parameters(), lr=0.1)
    result = sp.audit_step(dense(), nn.CrossEntropyLoss(), photo, optimizer, **CHEAP)
    assert result.recognisable
    assert "holds none of the network's parameters" in str(result)


def no_compiler(*_):
    raise AssertionError("an audit compiled something")


def compiled_part(model):
    return nn.Sequential(model[0], torch.compile(model[1:], backend=no_compiler))


@pytest.mark.parametrize(
    "wrap",
    [lambda model: torch.compile(model, backend=no_compiler), compiled_part, nn.DataParallel],
    ids=["compiled", "compiled in part", "data-parallel"],
)
def test_a_wrapped_network_is_audited_as_the_network_itself(wrap):
    model = dense()
    batch = torch.rand(2, 3, 12, 12), torch.tensor([3, 7])
    plain = sp.audit_step(model, nn.CrossEntropyLoss(), batch, **CHEAP)
    wrapped = sp.audit_step(wrap(model), nn.CrossEntropyLoss(), batch, **CHEAP)
    assert float(plain.scores["psnr"].min()) > 60
    torch.testing.assert_close(wrapped.guess, plain.guess, rtol=0, atol=1e-4)
    names = " ".join(wrapped.cases[0].task.parameters)
    assert "_orig_mod" not in names
    assert "module" not in names


@pytest.mark.slow
def test_a_network_that_was_compiled_and_run_gives_its_people_away_all_the_same():
    batch = torch.rand(2, 3, 12, 12), torch.tensor([3, 7])
    model = torch.compile(dense(), backend="eager")
    functional.cross_entropy(model(batch[0]), batch[1]).backward()
    result = sp.audit_step(model, nn.CrossEntropyLoss(), batch, **CHEAP)
    assert float(result.scores["psnr"].min()) > 60


def test_convolutions_by_the_batch_are_recognisable_after_a_short_search(photo):
    model = convolutional()
    budget = {"seconds": 600.0, "steps": 150}
    result = sp.audit_step(model, nn.CrossEntropyLoss(), photo, domain=(0, 1), **budget)
    attempt = result.people[0]
    assert attempt.psnr > attempt.baseline + 3
    assert any("Dropout is left out" in note for note in result.notes)
    assert any("batchnorm='exact'" in note for note in result.notes)


def test_a_layer_that_does_not_train_while_the_others_do_is_not_said_to_drop_units():
    model = nn.Sequential(dense(), nn.Dropout(0.5).eval())
    batch = {"inputs": torch.rand(1, 3, 12, 12), "labels": torch.tensor([3])}
    result = sp.audit_step(model, nn.CrossEntropyLoss(), batch, **CHEAP)
    assert not any("Dropout" in note for note in result.notes)


def test_two_people_behind_a_wide_layer_come_back_exactly_and_the_report_shows_them(tmp_path):
    batch = sp.data.bundled("photos", size=2)
    inputs = functional.interpolate(batch.inputs, size=8, mode="area")
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    heard = []
    with listen(lambda *said: heard.append(said)):
        result = sp.audit_step(model, functional.cross_entropy, (inputs, batch.labels), optimizer)
    assert result.recognisable
    assert float(result.scores["psnr"].min()) > 40
    assert "proved that what came back is right" in result.refused["inverting_gradients"]
    assert "moves the parameters, with lr=0.5" in str(result)
    page = result.report(tmp_path / "out")
    assert "2 of 2 people" in page.read_text(encoding="utf-8")
    found = load_audit(tmp_path / "out")
    assert found.complete
    assert torch.equal(found.guess(found.records[0]), result.outcomes[0].guess)
    with pytest.raises(InvalidValue, match="already holds an audit"):
        result.report(tmp_path / "out")


def test_nothing_is_called_proved_where_rounding_hides_the_layer_that_read_the_input(photo):
    layers = [layer for _ in range(7) for layer in (nn.Linear(64, 64), nn.Sigmoid())]
    first = nn.Flatten(), nn.Linear(432, 64), nn.Sigmoid()
    model = nn.Sequential(*first, *layers, nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = sp.audit_step(model, nn.CrossEntropyLoss(), photo, optimizer, domain=(0, 1), **CHEAP)
    assert float(result.scores["psnr"]) < 30
    assert not any("proved" in reason for reason in result.refused.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_nothing_is_called_proved_below_float32(photo, dtype):
    inputs, labels = photo
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 64), nn.ReLU(), nn.Linear(64, 10))
    batch = inputs.to(dtype), labels
    loss = nn.CrossEntropyLoss()
    result = sp.audit_step(model.to(dtype), loss, batch, domain=(0, 1), **CHEAP)
    assert "inverting_gradients" not in result.refused
    assert not any("proved" in reason for reason in result.refused.values())


def test_a_domain_takes_natural_units_and_a_defense_hides(photo):
    domain = sp.domains.Image((3, 12, 12), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 32), nn.ReLU(), nn.Linear(32, 10))
    bare = sp.audit_step(model, nn.CrossEntropyLoss(), photo, domain=domain, **CHEAP)
    hidden = sp.audit_step(
        model, nn.CrossEntropyLoss(), photo, domain=domain, defense=sp.AddGaussian(1.0), **CHEAP
    )
    assert float(bare.scores["psnr"]) > 60
    assert float(hidden.scores["psnr"]) < 20


def test_inputs_of_any_rank_are_numbers_in_a_row():
    model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 3))
    flat = sp.audit_step(model, nn.CrossEntropyLoss(), (numbers(1, 10), torch.tensor([1])), **CHEAP)
    assert float(flat.scores["psnr"]) > 60
    volume = nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(16, 3))
    batch = {"inputs": numbers(1, 1, 3, 3, 3), "labels": torch.tensor([[1]])}
    assert sp.audit_step(volume, nn.CrossEntropyLoss(), batch, **CHEAP).guess.shape == (1, 1, 27)


def test_a_series_of_one_number_is_a_signal_and_not_channels_of_one_shade():
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3))
    people = numbers(40, 20, 1)
    batch = people[:1], torch.tensor([1])
    found = sp.audit_step(model, nn.CrossEntropyLoss(), batch, others=people[1:], **CHEAP)
    assert found.guess.shape == (1, 1, 20)
    assert found.people[0].identification.gallery == "any label"


def contrastive(outputs, labels):
    """Compares every example with every other."""
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(labels)))


def triplet(outputs, labels):
    """Raises if it is given one example alone."""
    near, far = (outputs[0] - outputs[1]).norm(), (outputs[0] - outputs[2]).norm()
    return functional.relu(near - far + 1)


@pytest.mark.parametrize(
    ("model", "loss", "batch", "error", "said"),
    [
        (nn.Embedding(9, 3), nn.CrossEntropyLoss(), (torch.ones(2, 4).long(), torch.ones(2).long()),
         InvalidValue, "expected"),
        (nn.Linear(4, 1), nn.MSELoss(), (torch.rand(2, 4), torch.rand(2)), InvalidValue,
         "a target for each output"),
        (nn.Linear(4, 3), nn.CrossEntropyLoss(), (torch.rand(2, 5), torch.ones(2).long()),
         InvalidValue, "cannot be run on this batch"),
        (nn.Linear(4, 3), contrastive, (torch.rand(3, 4), torch.tensor([0, 2, 1])), InvalidValue,
         "a contrastive loss"),
        (nn.Linear(4, 3), triplet, (torch.rand(3, 4), torch.tensor([0, 2, 1])), InvalidValue,
         "a contrastive loss"),
        (nn.Linear(4, 3), nn.CrossEntropyLoss(), (torch.rand(2, 4), [{"boxes": torch.ones(1, 4)}]),
         InvalidValue, "such as boxes, cannot be audited"),
        (nn.Linear(4, 3), lambda outputs, labels: 3.0, (torch.rand(2, 4), torch.ones(2).long()),
         InvalidValue, "a loss that is a tensor"),
        (nn.Linear(4, 3), lambda outputs, labels: (outputs.sum(), outputs),
         (torch.rand(2, 4), torch.ones(2).long()), InvalidValue, "got tuple; return it alone"),
        (nn.Linear(4, 3), lambda outputs, labels: outputs.sum().detach(),
         (torch.rand(2, 4), torch.ones(2).long()), InvalidValue, "detached"),
        (nn.Linear(4, 3), lambda outputs, labels: (outputs.argmax(1) == labels).sum(),
         (torch.rand(2, 4), torch.ones(2).long()), InvalidValue, "of floats, got torch.int64"),
        (nn.Linear(4, 3), lambda outputs, labels: outputs.sum() * torch.nan,
         (torch.rand(2, 4), torch.ones(2).long()), InvalidValue, "a finite loss"),
        (nn.LSTM(4, 3), lambda outputs, labels: outputs[0].sum() + outputs[1][0].missing,
         (torch.rand(2, 2, 4), torch.ones(2).long()), InvalidValue, "the loss gets the first"),
        (nn.Linear(4, 3), nn.MSELoss(), torch.rand(2, 4), InvalidValue, "a target for each output"),
        ("resnet18", nn.CrossEntropyLoss(), (torch.rand(2, 4), torch.ones(2).long()),
         InvalidValue, "expected a torch.nn.Module, got str"),
        (nn.LSTM(4, 3), nn.CrossEntropyLoss(), (torch.rand(2, 2, 4), torch.ones(2).long()),
         InvalidValue, "expected a loss of outputs"),
        (nn.Linear(4, 3).requires_grad_(False), nn.CrossEntropyLoss(),
         (torch.rand(2, 4), torch.ones(2).long()), InvalidValue, "no trainable parameter"),
        (nn.Linear(4, 3), nn.CrossEntropyLoss(), (torch.full((1, 4), torch.nan), torch.tensor([0])),
         InvalidValue, "NaN or infinity"),
        (nn.Linear(4, 3), nn.CrossEntropyLoss(), (np.ones((2, 4), "f4"), np.ones(2)),
         InvalidValue, r"all of them tensors, got \(ndarray, ndarray\)"),
        (nn.Linear(4, 3), nn.CrossEntropyLoss(), (torch.eye(4).to_sparse(), torch.ones(4).long()),
         InvalidValue, "dense tensor of real numbers, got torch.sparse_coo"),
    ],
    ids=["tokens", "spread targets", "shape", "contrastive", "triplet", "boxes", "float loss",
         "two losses", "detached loss", "whole loss", "NaN loss", "two outputs", "no labels",
         "a name", "states", "frozen", "NaN", "arrays", "sparse"],
)  # fmt: skip
def test_what_cannot_be_audited_is_said_in_one_sentence(model, loss, batch, error, said):
    with pytest.raises(error, match=said):
        sp.audit_step(model, loss, batch, **CHEAP)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"defense": "Prune"}, "expected a defense such as"),
        ({"defense": sp.Prune}, "expected a defense such as"),
        ({"others": torch.rand(8, 2)}, r"like those of the batch, \(4,\) each, got \(8, 2\)"),
        ({"others": torch.full((4, 4), torch.nan), "domain": (0, 1)}, "got NaN or infinity"),
        ({"public": torch.rand(8, 2)}, "expected others and public inputs like those"),
        ({"others": torch.rand(8, 4).numpy()}, "expected others as a tensor, or with labels as"),
        ({"others": (torch.rand(8, 4), torch.ones(8).long())}, "PublicData.*, got tuple"),
        ({"public": [0.5]}, "expected public as a tensor"),
        ({"attacks": []}, "expected at least one attack"),
        ({"domain": True}, r"expected domain=\(low, high\) or a domain, got True"),
        ({"domain": [0, 1, 2]}, r"expected domain=\(low, high\) or a domain, got \[0, 1, 2\]"),
        ({"threat": "strongest"}, "expected a threat such as"),
        ({"steps": "5"}, r"whole steps >= 1, got 600.0 and '5'"),
        ({"steps": 2.5}, "whole steps >= 1, got 600.0 and 2.5"),
        ({"seed": 2**63}, r"expected a seed between -2\*\*63 and 2\*\*63, got a larger one"),
        ({"seed": True}, "expected seed to be a whole number, got True"),
        ({"seconds": "5"}, r"expected seconds > 0 .*, got '5'"),
        ({"optimizer": "sgd"}, "expected an optimizer of torch, or none, got 'sgd'"),
        ({"loss": nn.CrossEntropyLoss}, "expected a loss to call .*, got <class"),
        ({"batch": {"inputs": torch.rand(2, 4)}}, "the batch holds no labels, so that the loss is"),
        ({"domain": sp.domains.Image((1, 2, 3))}, r"of shape \(4,\), got one of \(1, 2, 3\)"),
    ],
)
def test_options_of_another_kind_are_refused_in_one_sentence(option, said):
    batch = torch.rand(2, 4), torch.tensor([0, 2])
    given = {"loss": nn.CrossEntropyLoss(), "batch": batch, **CHEAP, **option}
    with pytest.raises(InvalidValue, match=said):
        sp.audit_step(nn.Linear(4, 3), **given)


def test_a_range_may_come_as_a_list_as_files_have_it():
    step = nn.Linear(4, 3), nn.CrossEntropyLoss(), (torch.rand(1, 4), torch.tensor([2]))
    found = sp.audit_step(*step, domain=[0, 1], **CHEAP)
    assert found.cases[0].task.domain.bounds == (0, 1)


def test_one_attack_may_be_named_without_a_list():
    batch = torch.rand(1, 4), torch.tensor([2])
    found = sp.audit_step(
        nn.Linear(4, 3), nn.CrossEntropyLoss(), batch, attacks="analytic_fc", **CHEAP
    )
    assert [record.attack.name for record in found.records] == ["analytic_fc"]


class Severed(nn.Linear):
    """Cuts its own graph, so that no update depends on the input."""

    def forward(self, inputs):
        return super().forward(torch.zeros_like(inputs))


def test_a_network_that_leads_no_search_gets_words_instead_of_a_score():
    batch = torch.rand(2, 4), torch.tensor([0, 2])
    known = sp.Threat(knows_labels=True)
    result = sp.audit_step(Severed(4, 3), nn.CrossEntropyLoss(), batch, threat=known, **CHEAP)
    assert result.worst is None
    assert "does not change with the inputs" in result.refused["inverting_gradients"]
    assert str(result).startswith("No attack applies to this step, for the reasons below.")


def test_a_search_without_a_gradient_to_follow_does_not_apply_and_has_not_failed():
    step = Severed(4, 3), nn.CrossEntropyLoss(), (torch.rand(2, 4), torch.tensor([0, 2]))
    result = sp.audit_step(*step, attacks=[sp.attacks.inverting_gradients(steps=2)], **CHEAP)
    assert "no gradient to follow" in result.refused["inverting_gradients"]
    assert not result.records


@dataclass(frozen=True)
class Broken:
    """An attack with a mistake in it."""

    def __call__(self, observation, *, rng):
        raise RuntimeError("the mistake")


def test_an_attack_that_breaks_is_told_apart_from_one_that_does_not_apply(tmp_path):
    step = nn.Linear(4, 3), nn.CrossEntropyLoss(), (torch.rand(1, 4), torch.tensor([2]))
    alone = sp.audit_step(*step, attacks=[Broken()], others=torch.rand(40, 4), **CHEAP)
    assert [record.status for record in alone.records] == ["failed"]
    assert "Broken" not in alone.refused
    assert not alone.controls
    assert str(alone).startswith("Every case failed: RuntimeError: what it says is not stored")
    assert alone.worst is None
    both = sp.audit_step(*step, attacks=[Broken(), "analytic_fc"], **CHEAP)
    assert both.recognisable
    assert "tried: Broken: RuntimeError: what it says" in str(both)
    assert "raised: RuntimeError: the mistake" in str(both)
    assert "RuntimeError: what it says" in both.report(tmp_path / "page").read_text()
    files = [path for path in (tmp_path / "page").rglob("*") if path.is_file()]
    assert not [path for path in files if b"the mistake" in path.read_bytes()]


@pytest.mark.parametrize("seed", [-3, 2**63 - 1, np.int64(7)])
def test_any_seed_that_tables_can_hold_is_recorded_as_it_is(seed):
    step = nn.Linear(4, 3), nn.CrossEntropyLoss(), (torch.rand(1, 4), torch.tensor([2]))
    found = sp.audit_step(*step, attacks=["analytic_fc"], seed=seed, **CHEAP)
    assert [record.seed for record in found.records] == [seed]
    assert type(found.records[0].seed) is int


def test_inside_no_grad_the_audit_is_the_same(photo):
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 16), nn.ReLU(), nn.Linear(16, 10))
    plain = sp.audit_step(model, nn.CrossEntropyLoss(), photo, **CHEAP)
    with torch.no_grad():
        inside = sp.audit_step(model, nn.CrossEntropyLoss(), photo, **CHEAP)
    assert torch.equal(plain.guess, inside.guess)


@pytest.mark.parametrize(
    ("loss", "reduction"),
    [
        (nn.CrossEntropyLoss(), "mean"),
        (nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1), "sum"),
        (functional.cross_entropy, "mean"),
        (lambda returned, labels: functional.cross_entropy(returned.logits, labels), "mean"),
        (sp.cross_entropy, "mean"),
    ],
)
def test_a_loss_is_taken_apart_as_it_was_put_together(loss, reduction):
    outputs, labels = numbers(4, 3), torch.tensor([0, 1, 2, 2])
    unreduced, found = _unreduce_loss(loss, outputs, labels)
    assert found == reduction
    smoothing = getattr(loss, "label_smoothing", 0.0)
    expected = functional.cross_entropy(
        outputs, labels, reduction="none", label_smoothing=smoothing
    )
    torch.testing.assert_close(unreduced(outputs, labels), expected)


@pytest.mark.parametrize("others", [None, "as many", "fewer"])
def test_a_large_batch_is_compared_with_people_who_are_not_in_it(others):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 96), nn.ReLU(), nn.Linear(96, 4))
    batch = torch.rand(40, 1, 4, 4), torch.arange(40) % 4
    if others == "fewer":
        with pytest.raises(InvalidValue, match="at least as many as the batch"):
            sp.audit_step(model, nn.CrossEntropyLoss(), batch, others=torch.rand(39, 1, 4, 4))
        return
    strangers = None if others is None else torch.full((40, 1, 4, 4), 0.25)
    found = sp.audit_step(model, nn.CrossEntropyLoss(), batch, others=strangers, steps=2)
    assert found.records, found.refused
    for case in found.cases:
        pool = case.target.pool
        assert len(pool) >= len(case.target.people)
        assert strangers is None or torch.equal(pool, strangers)


def audited_range(batch, **options):
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 4))
    return sp.audit_step(model, nn.CrossEntropyLoss(), batch, **options, **CHEAP)


def test_the_assumed_range_does_not_depend_on_the_private_batch():
    inputs, labels = torch.rand(1, 3, 4, 4), torch.tensor([1])
    ranges = []
    for brightest in (0.9, 1.1, 1.99, 2.01):
        inputs[0, 0, 0, 0] = brightest
        result = audited_range((inputs, labels))
        ranges.append(result.cases[0].task.domain.bounds)
        assert any("assumed to lie in [-3, 3]" in note for note in result.notes)
    assert set(ranges) == {(-3.0, 3.0)}


def test_a_batch_outside_the_assumed_range_is_refused_until_its_range_is_declared():
    batch = torch.rand(1, 3, 4, 4) * 4, torch.tensor([1])
    with pytest.raises(InvalidValue, match=r"give domain=\(low, high\)"):
        audited_range(batch)
    with pytest.raises(InvalidValue, match=r"expected domain=\(low, high\) or a domain"):
        audited_range(batch, domain=(0, 1, 2))
    declared = audited_range(batch, domain=(0, 4))
    assert declared.cases[0].task.domain.bounds == (0, 4)
    assert not any("assumed to lie" in note for note in declared.notes)


def test_public_inputs_tell_the_range():
    batch = torch.rand(1, 3, 4, 4), torch.tensor([1])
    for public, bounds in [(torch.rand(8, 3, 4, 4), (0, 1)), (torch.randn(8, 3, 4, 4), (-4, 4))]:
        result = audited_range(batch, others=public)
        assert result.cases[0].task.domain.bounds == bounds
        assert any("as others= does" in note for note in result.notes)
    with pytest.raises(InvalidValue, match=r"expected inputs in \[0, 1\]"):
        audited_range((batch[0] + 1, batch[1]), others=torch.rand(8, 3, 4, 4))


def test_a_search_that_time_cuts_short_says_how_many_steps_it_ran(photo):
    model, wanted = plain_convolutional(), 100_000
    loss = nn.CrossEntropyLoss()
    cut = sp.audit_step(model, loss, photo, domain=(0, 1), seconds=0.5, steps=wanted)
    searched = list(cut.records)
    assert [r.effort["cut"] for r in searched] == [1]
    assert searched[0].effort["steps"] < wanted / 10
    assert any(f"of {wanted} steps, as many as fit into the time" in note for note in cut.notes)
    whole = sp.audit_step(model, loss, photo, domain=(0, 1), **CHEAP)
    assert not any("cut" in r.effort for r in whole.records)
    assert not any("fit into the time" in note for note in whole.notes)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0)])
def test_a_search_finds_the_range_of_inputs_that_nobody_declared(photo, low, high):
    truth, wide = low + (high - low) * photo[0], (-3.0, 3.0)
    domain = sp.domains.Image((3, 12, 12), bounds=wide)
    task = sp.Task(plain_convolutional(), sp.cross_entropy, domain, name="small")
    client, batch = sp.Client(sp.Gradient()), sp.Batch(truth, photo[1])
    seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    search = sp.attacks.inverting_gradients(steps=100, restarts=1, tv=1e-4)
    _, ranges, _ = choose_domain((3, 12, 12), declared=None, others=None)
    assert ranges[0] == wide
    found = FindRange(search, ranges)(seen, rng=sp.rng(1))
    alone = search(seen, rng=sp.rng(1))
    # The noise of the start that a wide range lets through is most of the error.
    assert (found.inputs - truth).norm() < 0.8 * (alone.inputs - truth).norm()


def test_what_is_computed_needs_no_range_of_inputs():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    normalised = 3 * torch.rand(2, 1, 8, 8) - 1, torch.tensor([2, 7])
    found = sp.audit_step(model, nn.CrossEntropyLoss(), normalised, steps=30)
    assert found.scores["psnr"].min() > 100


def test_whoever_is_in_the_batch_is_no_stranger_and_not_rehearsed_on():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 4))
    everybody, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 4
    step = model, nn.CrossEntropyLoss(), (everybody[:4], labels[:4])
    options = {"steps": 40, "domain": (0, 1)}
    apart = sp.audit_step(*step, others=everybody[4:], **options)
    mixed = sp.audit_step(*step, others=everybody, **options)
    for one, other in zip(apart.records, mixed.records, strict=True):
        assert one.identification == other.identification
    assert torch.equal(apart.scores["psnr"], mixed.scores["psnr"])
    assert "4 of the others or public inputs are in the batch and were left out" in mixed.notes
    with pytest.raises(InvalidValue, match="got 0 who are not in it"):
        sp.audit_step(*step, others=everybody[:4], **options)
    with pytest.raises(InvalidValue, match=r"must be like the batch: expected inputs in \[0, 1\]"):
        sp.audit_step(*step, others=3 * everybody - 1, **options)


def test_searches_try_several_ranges_only_if_none_is_known(photo):
    model, known = plain_convolutional(), sp.Threat(knows_labels=True)
    batch = torch.cat([photo[0], 1 - photo[0]]), torch.tensor([0, 1])
    cases = [({}, 3), ({"domain": (0, 1)}, 1), ({"others": torch.rand(8, 3, 12, 12)}, 1)]
    for options, runs in cases:
        step = (model, nn.CrossEntropyLoss(), batch)
        asked = {"threat": known, "steps": 3, "attacks": ["inverting_gradients"], **options}
        for chosen in (asked, {"threat": known, "steps": 3, **options}):
            (case,) = sp.audit_step(*step, **chosen).cases
            assert isinstance(case.attack, FindRange) == (runs > 1)


def test_attacks_are_asked_for_by_name_or_as_values(photo):
    model = plain_convolutional()
    search = sp.attacks.inverting_gradients(steps=3, restarts=1)
    step = (model, nn.CrossEntropyLoss(), photo)
    known = sp.Threat(knows_labels=True)
    options = {"domain": (0, 1), "threat": known, "steps": 4}
    found = sp.audit_step(*step, attacks=["inverting_gradients", search], **options)
    assert [record.effort["steps"] for record in found.records] == [4, 3]
    with pytest.raises(UnknownName, match="unknown attack 'dig'"):
        sp.audit_step(*step, attacks=["dig"], **options)
    for made, named in ((7, "7"), (sp.attacks.dlg, "<function dlg")):
        with pytest.raises(InvalidValue, match=f"expected attacks such as .*, got {named}"):
            sp.audit_step(*step, attacks=[made], **options)
    with pytest.raises(UnknownName, match="unknown effort 'heroic'"):
        sp.audit_step(*step, effort="heroic", **options)


@pytest.mark.slow
def test_an_ordinary_network_gives_its_person_away_at_the_defaults():
    people = sp.data.load("cifar10", split="test")
    block = [
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    ]  # fmt: skip
    torch.manual_seed(3)
    model = nn.Sequential(*block, nn.Flatten(), nn.Linear(32 * 64, 10)).eval()
    person, others = people.take([7]), people.inputs[500:700]
    batch = (person.inputs, person.labels)
    found = sp.audit_step(model, nn.CrossEntropyLoss(), batch, others=others)
    assert found.identified, str(found)


def test_without_others_nobody_is_said_to_be_safe_and_with_them_a_control_is_run():
    torch.manual_seed(0)
    images = torch.rand(40, 1, 8, 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    step = (model, nn.CrossEntropyLoss(), (images[:1], torch.tensor([2])))
    hidden = sp.AddGaussian(1e6)
    options = {"defense": hidden, "domain": (0, 1), "steps": 5, "seconds": 20.0}
    alone = sp.audit_step(*step, **options)
    levels = {attempt.level for attempt in alone.people.values()}
    assert not levels & {Level.not_shown, Level.reconstructed, Level.recognisable}
    assert alone.controls == ()
    weak = sp.audit_step(*step, **options, others=images[1:])
    # Five steps without a rehearsal show nothing, whatever the control says.
    assert {a.level for a in weak.people.values()} <= {Level.inconclusive, Level.partly}
    assert len(weak.controls) < 3 or weak.identified
    assert "of too few people" not in str(weak), "more of them would clear nobody either"
    known = sp.audit_step(*step, **options, others=images[1:], attacks=["analytic_fc"])
    assert known.controls
    assert any(record.control.able for record in known.records)
    assert "Positive control: without a defense the attack found 3 of 3 people" in str(known)
    levels = {attempt.level for attempt in known.people.values()}
    assert levels <= {Level.not_shown, Level.singled_out, Level.partly}


def test_a_layer_that_computes_otherwise_in_training_is_not_said_to_draw_at_random():
    torch.manual_seed(0)
    # Its estimate of the norm goes on in training.
    first = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 32), n_power_iterations=1)
    first.parametrizations.weight[0]._u.copy_(functional.normalize(torch.rand(32), dim=0))
    model = nn.Sequential(first, nn.Tanh(), nn.Linear(32, 3))
    batch = (torch.rand(1, 64), torch.tensor([1]))
    found = sp.audit_step(model, nn.CrossEntropyLoss(), batch, **CHEAP)
    assert "what the network does in training alone, such as" in found.difference


def test_nobody_is_said_to_be_safe_after_a_control_of_fewer_than_three_people():
    torch.manual_seed(0)
    images = torch.rand(40, 1, 8, 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    step = (model, nn.CrossEntropyLoss(), (images[:1], torch.tensor([2])))
    options = {"defense": sp.AddGaussian(1e6), "domain": (0, 1), "attacks": ["analytic_fc"]}
    found = sp.audit_step(*step, **options, others=images[1:])
    assert [case.target.people for case, _ in found.controls] == [(39,), (38,), (37,)]
    assert {attempt.level for attempt in found.people.values()} <= {Level.not_shown, Level.partly}
    # Others who would leave too few strangers are no canaries, and time is not overdrawn.
    for less in ({"others": images[1:12]}, {"others": images[1:], "seconds": 1e-6}):
        weak = sp.audit_step(*step, **{**options, **less})
        assert 1 <= len(weak.controls) <= 2
        assert not any(attempt.conclusive for attempt in weak.people.values())
        assert "the control found somebody, but was of too few people" in str(weak)
    # What an adversary who does not know the defense misses says little of one who does.
    unaware = sp.audit_step(*step, **options, threat=sp.Threat(knows_defense=False))
    secret = "the adversary is taken not to know the defense"
    assert (secret in str(unaware), secret in str(found)) == (True, False)
    # Whoever is identified needs no further control.
    shown = sp.audit_step(*step, **{**options, "defense": sp.AddGaussian(1e-3)}, others=images[1:])
    assert shown.identified
    assert len(shown.controls) == 1


def test_canaries_have_the_labels_of_the_batch_and_what_is_rehearsed_on_does_not_tell_them(
    monkeypatch,
):
    images, labels = torch.rand(60, 1, 8, 8), torch.arange(60) % 4
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    given = []

    def listen_in(*args, **options):
        given.append(options["public"].inputs)
        return list_attacks(*args, **options)

    monkeypatch.setitem(sp.audit_step.__globals__, "list_attacks", listen_in)
    for label in (0, 3):
        private = (images[:1], torch.tensor([label]))
        options = {"defense": sp.AddGaussian(1e6), "domain": (0, 1), "attacks": ["analytic_fc"]}
        others = sp.PublicData(images[1:], labels[1:])
        found = sp.audit_step(model, nn.CrossEntropyLoss(), private, **options, others=others)
        canaries = [case.target.require_batch() for case, _ in found.controls]
        assert [int(canary.labels) for canary in canaries] == [label] * 3
        # Nobody rehearses on a canary.
        assert not any((given[-1] == canary.inputs).all((1, 2, 3)).any() for canary in canaries)
    assert torch.equal(*given)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_behind_signs_the_control_of_a_step_is_of_the_search_alone():
    torch.manual_seed(0)
    images = torch.rand(40, 1, 8, 8)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    step = (model, nn.CrossEntropyLoss(), (images[:1], torch.tensor([2])))
    options = {"domain": (0, 1), "others": images[1:], "steps": 640, "seconds": 300}
    for defense, kinds in ((sp.Sign(), ["canary", "search"]), (sp.AddGaussian(10.0), ["canary"])):
        found = sp.audit_step(*step, **options, defense=defense)
        assert [case.control for case, _ in found.controls] == kinds
        assert found.records[0].control.searched == ("search" in kinds)
    assert not found.identified


def test_others_with_labels_hide_a_person_among_those_of_the_same_label():
    torch.manual_seed(0)
    kinds = torch.arange(60) % 3
    images = (0.7 * torch.rand(3, 1, 8, 8)[kinds] + 0.3 * torch.rand(60, 1, 8, 8)).clamp(0, 1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))
    step = (model, nn.CrossEntropyLoss(), (images[:1], kinds[:1]))
    options = {"domain": (0, 1), "attacks": ["analytic_fc"], "defense": sp.AddGaussian(1e6)}
    blind = sp.audit_step(*step, **options, others=images[1:])
    assert "others came without labels" in str(blind)
    told = sp.audit_step(*step, **options, others=sp.PublicData(images[1:], kinds[1:]))
    assert "others came without labels" not in str(told)
    [place] = told.records[0].identification
    assert (place.gallery, place.strangers) == ("same label", 19)
    # Canaries are people who have the labels of the batch.
    control, _ = told.controls[0]
    assert torch.equal(control.target.batch.inputs, images[57:58])
    assert control.target.batch.labels.tolist() == kinds[57:58].tolist() == kinds[:1].tolist()


@dataclass(frozen=True)
class Doubting:
    """A user's own attack, which warns."""

    def __call__(self, observation, *, rng):
        warnings.warn("two people look alike", NotToldApartWarning, stacklevel=1)
        return sp.attacks.analytic_fc()(observation, rng=rng)


def test_what_an_attack_warns_of_is_a_note(photo):
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 10))
    step = (model, nn.CrossEntropyLoss(), photo)
    options = {"domain": (0, 1), "attacks": [Doubting()], "defense": sp.Prune(0.5)}
    said = str(sp.audit_step(*step, **options, **CHEAP))
    assert said.count("two people look alike") == 1
    assert "note: Doubting: two people look alike" in said


def test_a_closed_form_is_said_to_compute_and_not_to_take_no_steps(photo):
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 16), nn.ReLU(), nn.Linear(16, 10))
    result = sp.audit_step(model, nn.CrossEntropyLoss(), photo, domain=(0, 1), **CHEAP)
    assert "which chose analytic_fc: at best" in str(result)
    assert "(computed, " in str(result)
    assert "0 steps" not in str(result)


class Waves(nn.Module):
    """A network with complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(432, 10, dtype=torch.cfloat))

    def forward(self, images):
        return (images.flatten(1).to(torch.cfloat) @ self.weight).abs()


def test_complex_weights_are_refused_as_such(photo):
    with pytest.raises(NotApplicable, match=r"^Waves has complex parameters, which no attack here"):
        sp.audit_step(Waves(), nn.CrossEntropyLoss(), photo, domain=(0, 1), **CHEAP)


def test_a_loss_that_fails_does_not_blame_outputs_that_are_not_there(photo):
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 10))
    with pytest.raises(
        InvalidValue, match=r"IndexError.*; if the network returns several tensors,"
    ):
        sp.audit_step(model, lambda outputs, labels: outputs[:, 12], photo, domain=(0, 1), **CHEAP)
