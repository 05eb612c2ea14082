"""What is audited of a training step is what the training loop itself computes, bit for bit."""

import contextlib
import multiprocessing
import os
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import seepage as sp
from seepage.core.errors import InvalidValue

CHEAP = {"seconds": 600.0, "steps": 5, "domain": (0, 1)}
loss = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def batch(size=2):
    drawn = torch.rand(size, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    return drawn, torch.arange(size) % 5


def dense():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 5))


class Checkpointed(nn.Module):
    """A network whose middle is computed twice to save memory."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(48, 32), nn.Linear(32, 32), nn.Linear(32, 5)
        self.reentrant = reentrant

    def forward(self, inputs):
        inputs = self.first(inputs.flatten(1)).relu()
        inputs = checkpoint(lambda x: self.middle(x).relu(), inputs, use_reentrant=self.reentrant)
        return self.last(inputs)


class Tied(nn.Module):
    """Two layers that share their weight."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(48, 32), nn.Linear(32, 5)
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)
        self.two.weight = self.one.weight

    def forward(self, inputs):
        hidden = self.one(self.first(inputs.flatten(1)).relu()).relu()
        return self.last(self.two(hidden).relu())


def frozen():
    model = dense()
    model[1].weight.requires_grad_(False)
    return model


def with_parameter_hook():
    model = dense()
    model[1].weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return model


def with_layer_hook():
    model = dense()
    model[2].register_full_backward_hook(lambda _, given, __: (given[0] * 0.5,))
    return model


def normalised():
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(128, 5)).train()


def attention():
    layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True, dropout=0.0)
    return nn.Sequential(nn.Flatten(2), nn.Linear(16, 12), layer, nn.Flatten(), nn.Linear(36, 5))


BFLOAT16 = {"device_type": "cpu", "dtype": torch.bfloat16}
FLOAT16 = {"device_type": "cpu", "dtype": torch.float16}
LOOPS = {
    "plain": (dense, None),
    "tied": (Tied, None),
    "frozen": (frozen, None),
    "checkpointed": (lambda: Checkpointed(False), None),
    "checkpointed, reentrant": (lambda: Checkpointed(True), None),
    "hook on a parameter": (with_parameter_hook, None),
    "hook on a layer": (with_layer_hook, None),
    "batch normalisation": (normalised, None),
    "attention": (attention, None),
    "autocast to bfloat16": (dense, BFLOAT16),
    "autocast to float16": (dense, FLOAT16),
    "autocast, batch normalisation": (normalised, BFLOAT16),
    "autocast, checkpointed": (lambda: Checkpointed(False), BFLOAT16),
    "autocast, hook": (with_parameter_hook, BFLOAT16),
}


@dataclass(frozen=True)
class Listen:
    """An attack that keeps what it sees, and guesses grey."""

    heard: list = field(default_factory=list, repr=False)

    def __call__(self, observation, *, rng):
        self.heard.append(observation)
        shape = observation.task.domain.shape
        return sp.Reconstruction(torch.full((observation.batch_size, *shape), 0.5))


def audit(model, data, optimizer=None, loss=loss, **options):
    """Audit a step; return the result, and the update that the adversary saw."""
    listener = Listen()
    result = sp.audit_step(model, loss, data, optimizer, attacks=[listener], **CHEAP, **options)
    assert not result.refused.keys() & {"Listen"}, result.refused
    seen = listener.heard[0].update.tensors
    return result, {name.removeprefix("model."): tensor for name, tensor in seen.items()}


def same_bits(seen, sent):
    return seen.keys() == sent.keys() and all(torch.equal(seen[n], sent[n]) for n in sent)


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("optimizer", [False, True], ids=["gradient", "moved by SGD"])
@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_the_audited_update_has_the_bits_of_the_loop(name, optimizer):
    make, cast = LOOPS[name]
    model, (inputs, labels) = make(), batch()
    inside = (lambda: torch.autocast(**cast)) if cast else contextlib.nullcontext
    sgd = torch.optim.SGD(model.parameters(), lr=0.25) if optimizer else None
    with inside():
        result, seen = audit(model, (inputs, labels), sgd)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    assert not gradients(model)
    with inside():
        value = loss(model(inputs), labels)
    value.backward()
    if sgd is None:
        sent = gradients(model)
    else:
        sgd.step()
        trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
        sent = {n: p.detach() - before[n] for n, p in trained.items()}
    assert same_bits(seen, sent)
    assert result.difference == ""
    # Rounding alone is not worth a sentence; autocast and hooks are.
    assert ("differs by" in str(result)) == (cast is not None or "hook" in name)


def test_a_step_under_autocast_gives_away_no_more_digits_than_it_has():
    model, data = dense(), batch(1)
    plain = sp.audit_step(model, loss, data, **CHEAP)
    with torch.autocast(**BFLOAT16):
        cast = sp.audit_step(model, loss, data, **CHEAP)
    assert float(plain.scores["psnr"]) > 100
    assert 30 < float(cast.scores["psnr"]) < 80
    assert any(r.certificate and r.certificate["unique"] for r in plain.records)
    assert not any(r.certificate and r.certificate["unique"] for r in cast.records)
    assert "autocast to bfloat16 rounds them" in str(cast)


def test_the_network_its_hooks_and_gradients_are_left_as_they_were():
    model, called = with_layer_hook(), []
    model[1].weight.register_hook(lambda gradient: called.append(model[1].weight.grad))
    model[1].weight.grad = torch.ones(32, 48)
    audit(model, batch())
    assert torch.equal(model[1].weight.grad, torch.ones(32, 48))
    assert len(model[2]._backward_hooks) == 1
    assert model[3].weight.grad is None


class Centres(nn.Module):
    """A loss with a trainable centre for each class, as face recognition has them."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.eye(5))

    def forward(self, outputs, labels):
        return nn.functional.cross_entropy(outputs @ self.centres.T, labels)


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", ["penalty", "centres"])
def test_parameters_that_the_loss_reads_get_no_gradient_and_are_said_to_be_left_out(kind, given):
    model, data = dense(), batch()

    def penalised(outputs, labels):
        return loss(outputs, labels) + 1e-4 * sum(p.square().sum() for p in model.parameters())

    trained = Centres() if kind == "centres" else penalised
    every = [*model.parameters(), *(trained.parameters() if kind == "centres" else ())]
    trained(model(data[0]), data[1]).backward()
    before = [p.grad.clone() for p in every]
    sent = {"gradients": gradients(model)} if given else {}
    others = torch.rand(80, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    result = sp.audit_step(model, trained, data, others=others, **sent, **CHEAP)
    assert all(torch.equal(p.grad, kept) for p, kept in zip(every, before, strict=True))
    assert "the loss reads trainable parameters itself" in result.difference
    assert all(record.effort["foreign"] for record in result.records)


def test_gradients_accumulated_over_micro_batches_are_audited_as_they_are():
    model, (inputs, labels) = dense(), batch(4)
    for part in range(2):
        rows = slice(2 * part, 2 * part + 2)
        (loss(model(inputs[rows]), labels[rows]) / 2).backward()
    sent = gradients(model)
    result, seen = audit(model, (inputs, labels), gradients=sent)
    assert same_bits(seen, sent)
    assert result.difference == ""


@pytest.mark.parametrize("unscaled", [False, True])
def test_gradients_of_a_scaled_loss_are_audited_as_they_are(unscaled):
    model, (inputs, labels) = dense(), batch()
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast(**FLOAT16):
        value = loss(model(inputs), labels)
    scaler.scale(value).backward()
    scaled = gradients(model)
    scaler.unscale_(optimizer)
    sent = gradients(model)
    result, seen = audit(model, (inputs, labels), optimizer, gradients=sent if unscaled else scaled)
    assert same_bits(seen, sent)
    assert ("scaled by 65536" in result.difference) == (not unscaled)
    assert str(result).startswith("Not exactly your step") == (not unscaled)


def test_gradients_of_another_step_are_said_to_be_so_and_nobody_is_called_safe():
    model, data = dense(), batch()
    others = torch.rand(80, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    loss(model(others[:2]), data[1]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    sent = gradients(model)
    result, seen = audit(model, data, gradients=sent, others=others)
    assert same_bits(seen, sent)
    first, second, *_ = str(result).splitlines()
    assert first.startswith("Not exactly your step: the gradients are not those of this network")
    assert second.startswith("Inconclusive: what was simulated is not the step")


def test_a_loss_scaled_by_another_factor_is_not_called_a_power_of_two():
    model, data = dense(), batch()
    (1000 * loss(model(data[0]), data[1])).backward()
    result, _ = audit(model, data, gradients=gradients(model))
    told = "the gradients are those of a loss scaled by 1000, and are divided by 1024, the nearest"
    assert result.difference.startswith(told)


def test_a_closed_form_that_needs_one_layer_reads_a_step_that_cannot_be_simulated():
    model, data = nn.Sequential(*dense(), nn.Dropout(0.5)).train(), batch(1)
    loss(model(data[0]), data[1]).backward()
    result = sp.audit_step(model, loss, data, gradients=gradients(model), **CHEAP)
    assert result.difference.startswith("the gradients are not those of this network")
    [person] = result.people.values()
    assert person.level.name == "reconstructed"
    assert "tried: analytic_fc" in str(result)
    assert any(note.startswith("Dropout draws at random in your loop") for note in result.notes)


def test_names_of_wrapped_networks_are_understood():
    model, data = dense(), batch()
    loss(model(data[0]), data[1]).backward()
    sent = gradients(model)
    for prefix in ("module.", "_orig_mod.", "module._orig_mod."):
        _, seen = audit(model, data, gradients={prefix + name: g for name, g in sent.items()})
        assert same_bits(seen, sent)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda g: list(g.values()), "as a mapping of parameter names to tensors"),
        (lambda g: {**g, "9.weight": torch.zeros(2)}, "another for '9.weight'"),
        (lambda g: {**g, "1.bias": torch.zeros(7)}, "another for '1.bias'"),
        (lambda g: dict.fromkeys(g), "got none"),
        (lambda g: {**g, "1.bias": torch.full((32,), torch.inf)}, "NaN or infinity"),
    ],
)
def test_gradients_that_do_not_fit_are_refused_in_one_sentence(change, said):
    model, data = dense(), batch()
    loss(model(data[0]), data[1]).backward()
    with pytest.raises(InvalidValue, match=said) as caught:
        audit(model, data, gradients=change(gradients(model)))
    assert "\n" not in str(caught.value)


def test_a_parameter_without_a_gradient_is_not_shared():
    model, data = dense(), batch()
    loss(model(data[0]), data[1]).backward()
    model[3].bias.grad = None
    given = {n: p.grad for n, p in model.named_parameters()}
    result, seen = audit(model, data, gradients=given)
    assert same_bits(seen, gradients(model))
    assert result.difference == ""
    assert any(note.startswith("no gradient reaches 1 of 4") for note in result.notes)


class CheckpointedFirst(nn.Module):
    """Computes its first layer twice by reentrant checkpointing, so that it gets no gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(48, 32), nn.Linear(32, 5)

    def forward(self, inputs):
        return self.last(checkpoint(self.first, inputs.flatten(1), use_reentrant=True).relu())


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_what_reentrant_checkpointing_gives_no_gradient_is_not_attacked(given):
    model, data = CheckpointedFirst(), batch(1)
    loss(model(data[0]), data[1]).backward()
    assert model.first.weight.grad is None
    sent = {n: p.grad for n, p in model.named_parameters()}
    result, seen = audit(model, data, **({"gradients": sent} if given else {}))
    assert same_bits(seen, gradients(model))
    assert set(seen) == {"last.weight", "last.bias"}
    assert result.difference == ""
    assert not any("foreign" in record.effort for record in result.records)
    assert any(note.startswith("no gradient reaches 2 of 4") for note in result.notes)


class Noisy(nn.Module):
    """Adds noise to what its last layer reads, in evaluation too."""

    def __init__(self, draw=torch.randn_like):
        super().__init__()
        self.first, self.last, self.draw = nn.Linear(48, 32), nn.Linear(32, 5), draw

    def forward(self, inputs):
        hidden = self.first(inputs.flatten(1)).relu()
        return self.last(hidden + 0.3 * self.draw(hidden))


def draw_by_numpy(like):
    return torch.from_numpy(np.random.standard_normal(like.shape)).to(like)


@pytest.mark.parametrize("draw", [torch.randn_like, draw_by_numpy], ids=["torch", "numpy"])
@pytest.mark.parametrize("given", [False, True])
def test_a_network_that_draws_whenever_it_runs_is_not_said_to_be_audited_as_it_is(given, draw):
    model, data = Noisy(draw), batch()
    steps = []
    for _ in range(2):
        model.zero_grad()
        loss(model(data[0]), data[1]).backward()
        steps.append(torch.cat([g.flatten() for g in gradients(model).values()]))
    apart = float((steps[0] - steps[1]).norm() / steps[0].norm())
    result, _ = audit(model, data, **({"gradients": gradients(model)} if given else {}))
    assert result.difference.startswith("the network or the loss draws at random whenever it runs")
    told = float(result.difference.split(" changes the gradient by ")[1].split(" %")[0]) / 100
    assert apart / 3 < told < apart * 3
    assert all(record.effort["foreign"] for record in result.records)


def test_the_audited_draw_is_that_of_the_next_step():
    model, data = Noisy(), batch()
    _, seen = audit(model, data)
    loss(model(data[0]), data[1]).backward()
    assert same_bits(seen, gradients(model))


class Rising(nn.Module):
    """A loss that weighs each step more than the one before."""

    def __init__(self):
        super().__init__()
        self.calls = 1

    def forward(self, outputs, labels):
        self.calls += 1
        return self.calls * nn.functional.cross_entropy(outputs, labels)


class Averaging(nn.Module):
    """A loss that divides by its own running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.ones(()))

    def forward(self, outputs, labels):
        value = nn.functional.cross_entropy(outputs, labels)
        self.mean.mul_(0.5).add_(0.5 * value.detach())
        return value / self.mean


@pytest.mark.parametrize("kind", [Rising, Averaging])
def test_a_loss_with_state_is_audited_as_it_is_now_and_left_so(kind):
    model, data, held, twin = dense(), batch(1), kind(), kind()
    result, seen = audit(model, data, loss=held)
    assert result.difference == ""
    value = twin(model(data[0]), data[1])
    value.backward()
    again = twin(model(data[0]), data[1]).detach()
    assert same_bits(seen, gradients(model))
    assert held.state_dict() == kind().state_dict()
    assert getattr(held, "calls", 1) == 1
    changes = round(100 * abs(float(again / value.detach()) - 1))
    [note] = [note for note in result.notes if note.startswith("the loss keeps state")]
    assert abs(float(note.split(" changes by ")[1].split(" %")[0]) - changes) <= 1


def counting():
    called = []

    def call(outputs, labels):
        called.append(1)
        return len(called) * nn.functional.cross_entropy(outputs, labels)

    return call


def drawing(outputs, labels):
    return nn.functional.cross_entropy(outputs + torch.randn_like(outputs), labels)


@pytest.mark.parametrize(
    ("made", "said"), [(counting(), "changes by 100 % when"), (drawing, "with another draw")]
)
def test_a_loss_that_cannot_be_repeated_is_refused_with_the_reason(made, said):
    with pytest.raises(InvalidValue, match=said):
        audit(dense(), batch(), loss=made)


def test_dropout_is_left_out_and_that_is_said_first():
    model = nn.Sequential(*dense(), nn.Dropout(0.5)).train()
    result, seen = audit(model, batch())
    first = str(result).splitlines()[0]
    assert first.startswith("Not exactly your step: what the network does in training alone")
    loss(model.eval()(batch()[0]), batch()[1]).backward()
    assert same_bits(seen, gradients(model))
    calm, _ = audit(model, batch())
    assert calm.difference == ""


def test_one_person_is_not_cleared_by_a_step_that_is_not_the_one_in_training():
    """Statistics of each image in training, and running ones in evaluation."""
    normalise = nn.InstanceNorm2d(3, affine=True, track_running_stats=True)
    dropped = nn.Sequential(nn.Dropout(0.5), *dense())
    others = torch.rand(80, 3, 4, 4, generator=torch.Generator().manual_seed(3))
    for model, foreign in ((nn.Sequential(normalise, *dense()), True), (dropped, False)):
        with torch.no_grad():
            normalise.running_mean.fill_(3.0)
        result = sp.audit_step(model, loss, batch(1), others=others, **CHEAP)
        assert "what the network does in training alone" in result.difference
        assert all(bool(record.effort.get("foreign")) is foreign for record in result.records)


def test_dropout_can_show_people_alone_so_a_batch_without_it_reassures_nobody():
    model = nn.Sequential(*list(dense())[:2], nn.Sigmoid(), nn.Dropout(0.5), nn.Linear(32, 5))
    data = batch()
    loss(model.train()(data[0]), data[1]).backward()
    alone = model[1].weight.grad / model[1].bias.grad[:, None]
    apart = (alone[:, None] - data[0].flatten(1)).abs().amax(-1).nan_to_num(1.0)
    assert apart.amin(0).max() < 1e-4
    result, _ = audit(model, data)
    assert all(record.effort["foreign"] for record in result.records)
    assert any("may give away more" in note for note in result.notes)
    single, _ = audit(model, (data[0][:1], data[1][:1]))
    assert not any("foreign" in record.effort for record in single.records)


def test_what_cannot_be_run_on_a_copy_is_said_first():
    compiled = torch.compile(dense(), backend=lambda *_: pytest.fail("compiled"))
    result, _ = audit(compiled, batch())
    assert str(result).startswith("Not exactly your step: the step is computed without torch.comp")
    model = dense()
    model[1].weight.register_post_accumulate_grad_hook(lambda _: pytest.fail("ran"))
    result, _ = audit(model, batch())
    assert "hooks that run after a gradient is accumulated" in result.difference
    model = dense()
    model[1].weight.register_hook(lambda _: 1 / 0)
    result, _ = audit(model, batch())
    assert "raised ZeroDivisionError" in result.difference


def test_a_defense_of_the_update_takes_the_gradients_of_the_loop():
    model, data = dense(), batch()
    with torch.autocast(**BFLOAT16):
        value = loss(model(data[0]), data[1])
        _, seen = audit(model, data, defense=sp.chain(sp.Clip(0.1)))
        each, _ = audit(model, data, defense=sp.chain(sp.ClipEach(0.1), sp.Mean()))
    value.backward()
    sent = gradients(model)
    norm = torch.cat([g.flatten() for g in sent.values()]).norm()
    for name, gradient in sent.items():
        torch.testing.assert_close(seen[name], gradient * (0.1 / norm), rtol=1e-5, atol=1e-8)
    assert "from each example alone" in each.difference


def _audit_distributed_training(store):
    distributed = torch.distributed
    kept = distributed.FileStore(str(store), 1)
    distributed.init_process_group("gloo", store=kept, rank=0, world_size=1)
    model, (inputs, labels) = nn.parallel.DistributedDataParallel(dense()), batch()
    result, seen = audit(model, (inputs, labels))
    loss(model(inputs), labels).backward()
    assert same_bits(seen, gradients(model.module))
    assert result.difference == ""
    # torch waits for Gloo's threads with the interpreter locked, and they may need it to end.
    os._exit(0)


@pytest.mark.slow
def test_one_process_of_distributed_training_is_audited_bit_for_bit(tmp_path):
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=_audit_distributed_training, args=(tmp_path / "store",))
    process.start()
    process.join(300)
    process.kill()
    assert process.exitcode == 0


@pytest.mark.slow
def test_gradients_of_a_compiled_network_are_audited_bit_for_bit():
    model, (inputs, labels) = torch.compile(dense(), backend="aot_eager"), batch()
    loss(model(inputs), labels).backward()
    sent = gradients(model._orig_mod)
    result, seen = audit(model, (inputs, labels), gradients=sent)
    assert same_bits(seen, sent)
    assert result.difference == ""
    # Computed anew, without the compiler: the same, up to the order of additions.
    result, seen = audit(model, (inputs, labels))
    assert "without torch.compile" in result.difference
    for name, gradient in sent.items():
        torch.testing.assert_close(seen[name], gradient, rtol=1e-5, atol=1e-7)


def train_one_of_two(rank, folder):
    distributed = torch.distributed
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(dense())
    inputs, labels = (tensor[2 * rank : 2 * rank + 2] for tensor in batch(4))
    with model.no_sync():
        loss(model(inputs), labels).backward()
    own = gradients(model.module)
    model.zero_grad()
    loss(model(inputs), labels).backward()
    mean = gradients(model.module)
    alone, seen = audit(model, (inputs, labels))
    assert same_bits(seen, own)
    assert "before it is averaged with others" in alone.difference
    both, seen = audit(model, (inputs, labels), gradients=mean)
    assert same_bits(seen, mean)
    assert not same_bits(seen, own)
    assert str(both).startswith("Not exactly your step")
    distributed.destroy_process_group()
    (folder / f"done {rank}").touch()


@pytest.mark.slow
def test_of_two_processes_each_is_audited_by_its_own_gradient_and_their_mean_is_told_apart(
    tmp_path,
):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch has no gloo")
    torch.multiprocessing.spawn(train_one_of_two, (tmp_path,), nprocs=2)
    assert {path.name for path in tmp_path.iterdir()} >= {"done 0", "done 1"}
