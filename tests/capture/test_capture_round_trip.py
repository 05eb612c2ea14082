"""What is captured comes back bit for bit, and is attacked as if it had never left."""

import re
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as independent_load
from torch import nn

import seepage as sp
from seepage.capture import Capture, Setting
from seepage.core.errors import InvalidValue

LR = 0.1


@pytest.fixture(scope="module")
def batch():
    return sp.data.bundled("photos", size=1)


@pytest.fixture(scope="module")
def task():
    return sp.zoo.lenet(domain=sp.data.load("photos").domain)


def captured(update, form, task, **setting):
    return Capture.of(task.model, update, form=form, setting=Setting(**setting))


def same_tensors(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[n], other[n]) and one[n].dtype == other[n].dtype for n in one)


def one_step(task, batch, steps=1):
    """A difference and the weights after it, by torch's own optimiser."""
    model = torch.nn.Module.eval(sp.Task(task.model, task.loss, task.domain).model)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(steps):
        optimiser.zero_grad()
        outputs = model(task.domain.normalise(batch.inputs))
        nn.functional.cross_entropy(outputs, batch.labels).backward()
        optimiser.step()
    return before, {n: p.detach().clone() for n, p in model.named_parameters()}


def test_every_tensor_and_every_word_comes_back_as_it_went(tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(4))
    network(torch.rand(3, 3, 8, 8))
    update = {n: torch.randn_like(p) for n, p in network.named_parameters()}
    setting = Setting(
        steps=3, lr=0.1, momentum=0.5, mode="train", batch_size=8, local_batch_size=4,
        shape=(3, 8, 8), mean=(0.1, 0.2, 0.3), std=(0.5, 0.5, 0.5), bounds=(-1.0, 2.0),
        framework="by hand", round=5, client=sp.capture.hashed("ward 3"),
    )  # fmt: skip
    capture = Capture.of(network, update, form="difference", setting=setting)
    sp.capture.save(capture, tmp_path / "one.safetensors")
    loaded = sp.capture.load(tmp_path / "one.safetensors")
    for group in ("update", "parameters", "buffers"):
        same_tensors(getattr(capture, group), getattr(loaded, group))
    assert (loaded.form, loaded.setting, loaded.digest) == ("difference", setting, capture.digest)
    assert loaded.buffers["1.num_batches_tracked"].dtype == torch.int64
    assert [path.name for path in tmp_path.iterdir()] == ["one.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_another_reader_of_safetensors_finds_the_same_bits(dtype):
    update = {"weight": torch.randn(3, 2).to(dtype), "bias": torch.tensor(0.5, dtype=dtype)}
    data = sp.capture.dump(Capture(update, "gradient"))
    theirs = independent_load(data)
    same_tensors({f"update/{n}": t for n, t in sp.capture.parse(data).update.items()}, theirs)


def test_an_attack_from_the_file_is_the_attack_in_process_bit_for_bit(tmp_path, task, batch):
    attack = sp.attacks.inverting_gradients(steps=20, restarts=1)
    client = sp.Client(sp.Gradient())
    seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    setting = Setting(batch_size=1)
    capture = Capture.of(task.model, seen.update.tensors, form="gradient", setting=setting)
    sp.capture.save(capture, tmp_path / "wire.safetensors")
    # Whoever audits has the architecture, with other weights.
    stranger = sp.zoo.lenet(domain=task.domain, seed=7)
    later = sp.capture.load(tmp_path / "wire.safetensors").observation(
        stranger, labels=batch.labels
    )
    here, there = (attack(each, rng=sp.rng(1)) for each in (seen, later))
    assert torch.equal(here.inputs, there.inputs)
    assert here.trace.objective == there.trace.objective


def test_fedavg_from_the_file_is_fedavg_in_process_bit_for_bit(task, batch):
    attack = sp.attacks.inverting_gradients(steps=5, restarts=1)
    client = sp.Client(sp.FedAvg(lr=LR, steps=3))
    seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))
    capture = captured(seen.update.tensors, "difference", task, lr=LR, steps=3, batch_size=1)
    later = sp.capture.parse(sp.capture.dump(capture)).observation(task, labels=batch.labels)
    assert torch.equal(attack(seen, rng=sp.rng(1)).inputs, attack(later, rng=sp.rng(1)).inputs)


def test_the_three_forms_give_the_same_reconstruction(batch):
    # In double precision, where the rounding of weights does not drown what moved them.
    task = sp.zoo.mlp(hidden=(32,), domain=sp.data.load("photos").domain).to(dtype=torch.float64)
    batch = batch.to(dtype=torch.float64)
    before, after = one_step(task, batch)
    difference = {n: after[n] - before[n] for n in after}
    gradient = {n: difference[n] / -LR for n in after}
    forms = {"gradient": gradient, "difference": difference, "weights_after": after}
    found = {}
    for form, update in forms.items():
        capture = captured(update, form, task, lr=LR, batch_size=1)
        seen = sp.capture.parse(sp.capture.dump(capture)).observation(task, labels=batch.labels)
        found[form] = sp.attacks.analytic_fc()(seen, rng=sp.rng(0))
        assert float(sp.score(found[form], batch)["psnr"]) > 100
        assert found[form].certificate.residual < 1e-6
    assert torch.equal(found["difference"].inputs, found["weights_after"].inputs)
    torch.testing.assert_close(
        found["gradient"].inputs, found["difference"].inputs, rtol=0, atol=1e-7
    )


def test_the_three_forms_lead_a_search_to_the_same_place(task, batch):
    before, after = one_step(task, batch)
    forms = {
        "gradient": {n: (before[n] - after[n]) / LR for n in after},
        "difference": {n: after[n] - before[n] for n in after},
        "weights_after": after,
    }
    attack = sp.attacks.inverting_gradients(steps=25, restarts=1, tv=1e-4)
    guesses = {}
    for form, update in forms.items():
        seen = captured(update, form, task, lr=LR, batch_size=1).observation(
            task, labels=batch.labels
        )
        guesses[form] = attack(seen, rng=sp.rng(1))
    assert torch.equal(guesses["difference"].inputs, guesses["weights_after"].inputs)
    scores = [float(sp.score(guess, batch)["psnr"]) for guess in guesses.values()]
    assert max(scores) - min(scores) < 1


def test_several_steps_of_torchs_optimiser_are_what_the_simulation_takes_them_for(task, batch):
    _, after = one_step(task, batch, steps=4)
    seen = captured(after, "weights_after", task, lr=LR, steps=4, batch_size=1).observation(
        task, labels=batch.labels
    )
    simulated = seen.simulate(batch.inputs, batch.labels)
    torch.testing.assert_close(
        simulated.flat(), seen.update.flat(), rtol=1e-3, atol=1e-3 * float(seen.update.norm())
    )


def test_names_of_wrappers_and_whole_state_dicts_fit(batch):
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(1800, 4))
    task = sp.Task(network, sp.cross_entropy, sp.domains.Image((3, 32, 32)))
    state = {f"module.{n}": t.float() for n, t in network.state_dict().items()}
    capture = Capture.of(network, state, form="weights_after", setting=Setting(lr=1.0))
    seen = capture.observation(task)
    assert list(seen.update.tensors) == list(task.parameters)
    assert float(seen.update.norm()) == 0


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("form", ["difference", "weights_after"])
def test_state_dicts_of_a_step_with_batch_normalisation_are_captured_as_they_are(
    batch, tmp_path, form, prefix
):
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(1800, 4))
    before = {n: t.clone() for n, t in network.state_dict().items()}
    nn.functional.cross_entropy(network(batch.inputs), batch.labels % 4).backward()
    gradient = {n: p.grad.clone() for n, p in network.named_parameters()}
    torch.optim.SGD(network.parameters(), lr=0.5).step()
    after = {n: t.clone() for n, t in network.state_dict().items()}
    assert any(not t.is_floating_point() for t in after.values())
    network.load_state_dict(before)
    sent = after if form == "weights_after" else {n: t - before[n] for n, t in after.items()}
    sent = {f"{prefix}{n}": t for n, t in sent.items()}
    captured = Capture.of(network, sent, form=form, setting=Setting(lr=0.5))
    sp.capture.save(captured, tmp_path / "update.safetensors")
    task = sp.Task(network, sp.cross_entropy, sp.domains.Image((3, 32, 32)))
    seen = sp.capture.load(tmp_path / "update.safetensors").observation(task)
    for name, grad in gradient.items():
        torch.testing.assert_close(seen.update.tensors[name], -0.5 * grad, rtol=1e-3, atol=1e-6)


def test_a_network_that_does_not_fit_is_named_with_what_does_not(task):
    gradient = {n: torch.ones_like(p) for n, p in task.parameters.items()}
    short = dict(list(gradient.items())[1:])
    with pytest.raises(
        InvalidValue, match=r"capture does not fit lenet.*: in the update, .*is missing"
    ):
        captured(short, "gradient", task).observation(task)
    with pytest.raises(InvalidValue, match=r"stranger is not in the model"):
        captured({**gradient, "stranger": torch.ones(1)}, "gradient", task).observation(task)
    other = {**gradient, "head.bias": torch.ones(7)}
    with pytest.raises(InvalidValue, match=r"in the update, head.bias is \(7,\), not \("):
        captured(other, "gradient", task).observation(task)
    with pytest.raises(InvalidValue, match="give it the domain of the capture"):
        captured(gradient, "gradient", task, shape=(1, 8, 8)).observation(task)
    with pytest.raises(InvalidValue, match="expected 2 labels"):
        captured(gradient, "gradient", task, batch_size=2).observation(
            task, labels=torch.tensor([1])
        )


@pytest.mark.parametrize(
    ("form", "setting", "said"),
    [
        ("difference", {}, "needs the local learning rate"),
        ("weights", {}, "expected form 'gradient'"),
        ("gradient", {"steps": 0}, "steps as a whole number"),
        ("gradient", {"steps": 1, "epochs": 1}, "steps or epochs"),
        ("gradient", {"client": "Jane Doe"}, "must not name anybody"),
        ("gradient", {"shape": (3, 10**6, 10**6)}, "entries in all inputs"),
        ("gradient", {"lr": float("nan")}, "lr > 0"),
        ("gradient", {"mode": "test"}, "mode 'eval' or 'train'"),
    ],
)
def test_what_no_client_could_have_done_is_refused(form, setting, said):
    with pytest.raises(InvalidValue, match=said):
        Capture({"weight": torch.ones(2)}, form, setting=Setting(**setting))


def test_a_client_is_never_named_and_salted_hashes_tell_clients_apart():
    assert sp.capture.hashed("a", salt=b"bc") != sp.capture.hashed("ab", salt=b"c")
    assert "ward" not in repr(Setting(client=sp.capture.hashed("ward")))


def test_a_counter_that_the_network_does_not_keep_is_no_obstacle(batch):
    kept = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(1800, 4))
    bare = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(1800, 4))
    named = {"0.weight", "0.bias", "2.weight", "2.bias"}
    weights = {n: p.detach() for n, p in bare.named_parameters()}
    assert set(weights) == named
    counter = {"1.num_batches_tracked": kept.state_dict()["1.num_batches_tracked"]}
    held = Capture(weights, "gradient", weights, counter)
    task = sp.Task(bare, sp.cross_entropy, sp.data.load("photos").domain)
    assert held.observation(task).update.tensors.keys() == named


def test_whole_state_dicts_are_captured_where_only_tensors_are_given(batch):
    network = nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(1800, 4))
    before = {n: t.clone() for n, t in network.state_dict().items()}
    nn.functional.cross_entropy(network(batch.inputs), batch.labels % 4).backward()
    torch.optim.SGD(network.parameters(), lr=0.5).step()
    held = Capture(network.state_dict(), "weights_after", before, setting=Setting(lr=0.5))
    seen = held.observation(sp.Task(network, sp.cross_entropy, sp.domains.Image((3, 32, 32))))
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(
            seen.update.tensors[name], -0.5 * parameter.grad, rtol=1e-3, atol=1e-6
        )


def test_the_capture_on_the_page_about_flower_is_right_with_batch_normalisation(
    tmp_path, monkeypatch
):
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "flower.md").read_text()
    [code] = re.findall(r"^```python\n([^`]*?^save\(.*?)```$", page, re.M | re.S)
    [shown] = re.findall(r"^network = .*$", code, re.M)
    normalised = "nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten())"
    monkeypatch.chdir(tmp_path)
    names = {"nn": nn, "torch": torch, "sp": sp, "Setting": Setting}
    exec(
        code.replace(shown, f"network = {normalised}.append(nn.Linear(4 * 26 * 26, 10))"),
        names,
    )
    task = sp.Task(names["sent"], sp.cross_entropy, sp.domains.Image((1, 28, 28)))
    seen = sp.capture.load("update.safetensors").observation(task, labels=names["batch"].labels)
    again = seen.simulate(names["batch"].inputs, names["batch"].labels)
    for name, tensor in seen.update.tensors.items():
        torch.testing.assert_close(again.tensors[name], tensor, rtol=1e-3, atol=1e-6)


def test_labels_that_are_no_class_numbers_are_refused(task, batch):
    gradient = {n: torch.ones_like(p) for n, p in task.parameters.items()}
    with pytest.raises(InvalidValue, match="label probabilities"):
        captured(gradient, "gradient", task).observation(task, labels=torch.rand(2, 10))


@pytest.mark.parametrize(
    ("update", "said"),
    [([torch.ones(1)], "mapping of names to tensors"), ({"weight": None}, "a tensor at 'weight'")],
)
def test_an_update_of_another_kind_is_refused_in_one_sentence(update, said):
    with pytest.raises(InvalidValue, match=said):
        Capture.of(nn.Linear(2, 2), update, form="gradient")


def test_a_captured_step_in_bfloat16_of_a_compiled_part_is_attacked_in_float32():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    network.bfloat16()
    # Compiles when it is first run, and not here.
    part = nn.Sequential(network[0], torch.compile(network[1:], backend="eager"))
    inputs, labels = torch.linspace(0, 1, 12).reshape(1, 3, 2, 2), torch.tensor([1])
    nn.functional.cross_entropy(network(inputs.bfloat16()), labels).backward()
    gradient = {n: p.grad for n, p in part.named_parameters()}
    assert "1._orig_mod.1.weight" in gradient
    capture = Capture.of(part, gradient, form="gradient", setting=Setting(batch_size=1))
    seen = capture.observation(sp.Task(part, sp.cross_entropy, sp.domains.Image((3, 2, 2))))
    assert torch.equal(seen.update.tensors["1.1.weight"], network[1].weight.grad.float())
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(0))
    torch.testing.assert_close(guess.inputs, inputs, rtol=0, atol=0.05)


def test_a_saved_capture_is_for_its_owner_alone(tmp_path):
    capture = Capture({"weight": torch.ones(2)}, "gradient")
    path = tmp_path / "update.safetensors"
    path.write_bytes(b"an older one, for everybody")
    path.chmod(0o644)
    sp.capture.save(capture, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["update.safetensors"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    (tmp_path / ".other.safetensors.partial").symlink_to(elsewhere)
    sp.capture.save(capture, tmp_path / "other.safetensors")
    assert elsewhere.read_bytes() == b"mine"


@pytest.mark.parametrize("key", ["a/b", "a:b", "a\tb", "x" * 600])
def test_a_name_that_could_not_be_read_again_is_refused_when_it_is_saved(tmp_path, key):
    with pytest.raises(InvalidValue, match="this update cannot be captured: expected names"):
        sp.capture.save(Capture({f"{key}.weight": torch.ones(2)}, "gradient"), tmp_path / "one")
    assert not [*tmp_path.iterdir()]


def test_buffers_without_entries_are_left_out_and_the_rest_is_read_again(tmp_path):
    buffers = {"empty": torch.zeros(0), "full": torch.ones(1)}
    update = {"weight": torch.ones(2)}
    sp.capture.save(Capture(update, "gradient", buffers=buffers), tmp_path / "one")
    assert list(sp.capture.load(tmp_path / "one").buffers) == ["full"]
