"""Flower: what is kept is what crossed the wire, and a defense as a mod is that defense."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import seepage as sp
from seepage.capture import Setting, load
from seepage.core.errors import InvalidValue

pytest.importorskip("flwr", reason="flwr is not installed")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from seepage.integrations.flower import Recorder, as_mod, capture_mod, recorded

LR = 0.1


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(3 * 32 * 32, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 10),
    )


def step(state, batch):
    """One step of SGD, as a Flower client writes it."""
    model = network()
    model.load_state_dict(state)
    model.eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    torch.nn.functional.cross_entropy(model(batch.inputs), batch.labels).backward()
    optimizer.step()
    return model.state_dict()


def app(*mods, batch):
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message, context):
        after = step(message.content["arrays"].to_torch_state_dict(), batch)
        content = RecordDict(
            {"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": len(batch)})}
        )
        return Message(content=content, reply_to=message)

    return made


def ask(client, *, number=1, partition=0):
    """Send a client the network, as the server of a federation would."""
    content = RecordDict(
        {
            "arrays": ArrayRecord(network().state_dict()),
            "config": ConfigRecord({"server-round": number}),
        }
    )
    message = Message(content=content, dst_node_id=5, message_type="train")
    context = Context(1, 5, {"partition-id": partition}, RecordDict(), {})
    return client(message, context)


def arrived(reply):
    return reply.content["arrays"].to_torch_state_dict()


@pytest.fixture(autouse=True)
def run(monkeypatch):
    """Messages belong to a run; outside of one Flower refuses to make them."""
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def batch():
    return sp.data.bundled("photos", size=1)


@pytest.fixture
def recorder(tmp_path):
    setting = Setting(lr=LR, shape=(3, 32, 32))
    return Recorder(tmp_path / "captures", setting, rounds=(1, 5), clients=(0,))


def test_the_capture_holds_what_came_back_bit_for_bit(batch, recorder):
    reply = ask(app(capture_mod(recorder), batch=batch))
    capture = load(recorder.path(1, 0))
    after, before = arrived(reply), network().state_dict()
    assert capture.form == "weights_after"
    assert set(capture.update) == {name for name, _ in network().named_parameters()}
    assert all(torch.equal(tensor, after[name]) for name, tensor in capture.update.items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in capture.parameters.items())
    assert set(capture.buffers) == {n for n in before if "running" in n or "tracked" in n}
    assert (capture.setting.round, capture.setting.batch_size) == (1, 1)
    assert capture.setting.framework.startswith("flower ")


def test_an_attack_on_the_capture_recovers_the_photograph(batch, recorder):
    ask(app(capture_mod(recorder), batch=batch))
    domain = sp.domains.Image((3, 32, 32))
    task = sp.Task(network(), sp.cross_entropy, domain)
    seen = load(recorder.path(1, 0)).observation(task)
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(0))
    assert float(sp.score(guess, batch)["psnr"]) > 60


def test_only_the_rounds_and_clients_asked_for_are_kept(batch, recorder):
    client = app(capture_mod(recorder), batch=batch)
    for number, partition in ((1, 0), (2, 0), (5, 0), (5, 1)):
        ask(client, number=number, partition=partition)
    kept = sorted(recorder.folder.iterdir())
    assert kept == [recorder.path(1, 0), recorder.path(5, 0)]


def test_no_file_tells_who_the_client_is(batch, recorder, tmp_path):
    ask(app(capture_mod(recorder), batch=batch))
    other = Recorder(tmp_path / "again", recorder.setting)
    assert recorder.path(1, 0).name != other.path(1, 0).name
    assert b"partition" not in recorder.path(1, 0).read_bytes()


def test_a_defense_as_a_mod_is_that_defense_on_how_far_the_parameters_moved(batch):
    defense = sp.chain(sp.Clip(0.05), sp.Prune(0.5))
    plain, defended = (
        arrived(ask(app(*mods, batch=batch))) for mods in ((), (as_mod(defense, seed=0),))
    )
    before = network().state_dict()
    names = [name for name, _ in network().named_parameters()]
    moved = sp.Update({n: plain[n] - before[n] for n in names}, kind="difference")
    expected = defense(moved, rng=sp.rng(0)).tensors
    for name in names:
        torch.testing.assert_close(defended[name] - before[name], expected[name])
    assert torch.equal(defended["2.running_mean"], plain["2.running_mean"])


def test_noise_is_fresh_unless_it_is_seeded(batch):
    noisy, seeded = as_mod(sp.AddGaussian(0.1)), as_mod(sp.AddGaussian(0.1), seed=3)
    first, second = (arrived(ask(app(noisy, batch=batch)))["1.weight"] for _ in range(2))
    third, fourth = (arrived(ask(app(seeded, batch=batch)))["1.weight"] for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(third, fourth)


def test_a_mod_before_a_defense_keeps_what_the_defense_lets_out(batch, recorder):
    reply = ask(app(capture_mod(recorder), as_mod(sp.Sign()), batch=batch))
    capture = load(recorder.path(1, 0))
    assert torch.equal(capture.update["1.weight"], arrived(reply)["1.weight"])
    moved = capture.update["1.weight"] - capture.parameters["1.weight"]
    assert len(torch.unique((moved * 1e4).round())) <= 3


def test_a_defense_lowers_what_comes_back(batch, recorder):
    noise = as_mod(sp.AddGaussian(0.01), seed=0)
    ask(app(capture_mod(recorder), noise, batch=batch))
    task = sp.Task(network(), sp.cross_entropy, sp.domains.Image((3, 32, 32)))
    seen = load(recorder.path(1, 0)).observation(task)
    guess = sp.attacks.analytic_fc()(seen, rng=sp.rng(0))
    assert float(sp.score(guess, batch)["psnr"]) < 25


@pytest.mark.parametrize(
    "defense",
    [sp.ClipEach(1.0), sp.MixUp(4), sp.SecureAggregation(clients=2)],
    ids=repr,
)
def test_a_defense_that_needs_more_than_the_update_is_refused(defense):
    with pytest.raises(InvalidValue, match="needs more than the update"):
        as_mod(defense)


def test_flowers_own_differential_privacy_can_be_audited(batch, recorder):
    from flwr.clientapp.mod import LocalDpMod

    private = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=1.0, delta=1e-5)
    ask(app(capture_mod(recorder), private, batch=batch))
    capture = load(recorder.path(1, 0))
    moved = capture.update["1.weight"] - capture.parameters["1.weight"]
    # The Gaussian mechanism at epsilon = 1, delta = 1e-5 has a deviation of 4.84.
    assert float(moved.std()) == pytest.approx(4.84, rel=0.02)


def test_the_strategy_keeps_what_every_client_sent(batch, tmp_path):
    from flwr.serverapp.strategy import FedAvg

    recorder = Recorder(tmp_path, Setting(lr=LR))
    strategy = recorded(FedAvg(fraction_evaluate=0.0), recorder)
    reply = ask(app(batch=batch))
    before = ArrayRecord(network().state_dict())

    class Grid:
        def get_node_ids(self):
            return [5, 6]

    list(strategy.configure_train(1, before, ConfigRecord(), Grid()))
    mean, _ = strategy.aggregate_train(1, [reply])
    capture = load(recorder.path(1, 5))
    assert torch.equal(capture.update["4.bias"], arrived(reply)["4.bias"])
    torch.testing.assert_close(mean.to_torch_state_dict()["4.bias"], capture.update["4.bias"])


def test_an_update_that_is_not_finite_is_said_and_does_not_stop_the_training(
    batch, recorder, caplog, monkeypatch
):
    monkeypatch.setitem(globals(), "LR", float("inf"))
    with caplog.at_level(logging.WARNING, logger="seepage.recorder"):
        assert not ask(app(capture_mod(recorder), batch=batch)).has_error()
    assert "got NaN or infinity" in caplog.text
    assert not recorder.path(1, 0).exists()


def ask_with_control(*mods, batch, broadcast=1):
    """Ask a client that sends a second record of arrays, as SCAFFOLD does."""
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message, context):
        after = ArrayRecord(step(message.content["arrays 0"].to_torch_state_dict(), batch))
        return Message(RecordDict({"arrays": after, "control": after}), reply_to=message)

    arrays = {f"arrays {i}": ArrayRecord(network().state_dict()) for i in range(broadcast)}
    content = RecordDict({**arrays, "config": ConfigRecord({"server-round": 1})})
    message = Message(content=content, dst_node_id=5, message_type="train")
    return made(message, Context(1, 5, {"partition-id": 0}, RecordDict(), {}))


def test_a_reply_that_cannot_be_read_is_said_and_does_not_stop_the_training(
    batch, recorder, caplog
):
    with caplog.at_level(logging.WARNING, logger="seepage.recorder"):
        assert not ask_with_control(capture_mod(recorder), batch=batch).has_error()
    assert "round 1 was not kept: expected one record of arrays" in caplog.text


@pytest.mark.parametrize("broadcast", [1, 2])
def test_nothing_is_sent_that_a_defense_could_not_reach(batch, broadcast):
    with pytest.raises(InvalidValue, match="expected one record of arrays to defend"):
        ask_with_control(as_mod(sp.Prune(0.9)), batch=batch, broadcast=broadcast)


@pytest.mark.parametrize(
    ("name", "got"), [("new", "got none of that name"), ("1.weight", r"got \(\d+, \d+\) there")]
)
def test_an_array_that_was_not_broadcast_is_not_sent(batch, name, got):
    def add(message, context, call_next):
        reply = call_next(message, context)
        arrays = reply.content["arrays"].to_torch_state_dict()
        reply.content["arrays"] = ArrayRecord({**arrays, name: torch.ones(1, 1)})
        return reply

    with pytest.raises(InvalidValue, match=got):
        ask(app(as_mod(sp.Clip(1.0)), add, batch=batch))


SECAGG = "secaggplus_configs"
NODES = (1, 2, 3)


def mask(mods):
    """Three clients go through SecAgg+ up to the masked parameters, as its workflow asks them."""
    from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters
    from flwr.compat.common import recorddict_compat as compat

    arrays = [torch.zeros(2, 4).numpy(), torch.zeros(2).numpy()]
    contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in NODES}
    made = ClientApp(mods=mods)

    @made.train()
    def train(message, context):
        after = ndarrays_to_parameters([array + 0.1 for array in arrays])
        result = FitRes(Status(Code.OK, ""), after, 1, {})
        return Message(compat.fitres_to_recorddict(result, keep_input=False), reply_to=message)

    def send(node, content, configs):
        content.config_records[SECAGG] = ConfigRecord(configs)
        reply = made(Message(content, dst_node_id=node, message_type="train"), contexts[node])
        return reply.content.config_records[SECAGG]

    numbers = {"sample_num": 3, "share_num": 3, "threshold": 2}
    ranges = {"clipping_range": 8.0, "target_range": 2**22, "mod_range": 2**32, "max_weight": 1.0}
    begin = {"stage": "setup", **numbers, **ranges}
    opened = {node: send(node, RecordDict(), begin) for node in NODES}
    keys = {str(node): [found["pk1"], found["pk2"]] for node, found in opened.items()}
    shares = {n: send(n, RecordDict(), {"stage": "share_keys", **keys}) for n in NODES}
    masked = []
    for node in NODES:
        others = [other for other in NODES if other != node]
        passed = [shares[o]["ctxts"][shares[o]["dsts"].index(node)] for o in others]
        configs = {"stage": "collect_masked_vectors", "srcs": others, "ctxts": passed}
        asked = FitIns(ndarrays_to_parameters(arrays), {})
        content = compat.fitins_to_recorddict(asked, keep_input=True)
        masked.append(send(node, content, configs)["masked_params"])
    return masked


def test_a_defense_stands_behind_secure_aggregation_and_not_before_it():
    """Masked parameters cannot be defended: a mod before SecAgg+ would let them out as they are."""
    from flwr.client.mod import secaggplus_mod

    seen = []

    def look(message, context, call_next):
        reply = call_next(message, context)
        for record in reply.content.array_records.values():
            seen.extend(float(abs(array.numpy()).max()) for array in record.values())
        return reply

    defense = as_mod(sp.Clip(1e-6), names=("weight", "bias"))
    assert [len(packed) for packed in mask([secaggplus_mod, look, defense])] == [3, 3, 3]
    assert len(seen) == 2 * len(NODES)
    assert max(seen) <= 1e-5
    with pytest.raises(InvalidValue, match="put mods that mask before this one"):
        mask([defense, secaggplus_mod])


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_a_defense_and_flowers_own_privacy_can_stand_in_either_order(batch, first):
    from flwr.clientapp.mod import LocalDpMod

    mods = [as_mod(sp.Clip(1e-3)), LocalDpMod(1e-2, 1e-9, 8.0, 1e-5)]
    plain, before = arrived(ask(app(batch=batch))), network().state_dict()
    got = arrived(ask(app(*(mods if first == "ours" else mods[::-1]), batch=batch)))
    moved = torch.cat([(got[n] - before[n]).flatten() for n, _ in network().named_parameters()])
    own = torch.cat([(plain[n] - before[n]).flatten() for n, _ in network().named_parameters()])
    assert own.norm() > 0.02
    assert moved.norm() < 0.002


@pytest.mark.parametrize("kind", ["evaluate", "query", "query.weights"])
def test_arrays_that_no_training_asked_for_are_not_sent(kind):
    """Parameters after local training would cross the wire as they are."""

    def ask_for(arrays):
        made = ClientApp(mods=[as_mod(sp.Clip(1.0))])

        def answer(message, context):
            content = RecordDict({"metrics": MetricRecord({"num-examples": 1}), **arrays})
            return Message(content=content, reply_to=message)

        name, _, action = kind.partition(".")
        (getattr(made, name)(action) if action else getattr(made, name)())(answer)
        content = RecordDict({"arrays": ArrayRecord(network().state_dict())})
        message = Message(content=content, dst_node_id=5, message_type=kind)
        return made(message, Context(1, 5, {}, RecordDict(), {}))

    with pytest.raises(InvalidValue, match=f"got some in a reply to '{kind}', which is not sent"):
        ask_for({"arrays": ArrayRecord(network().state_dict())})
    assert ask_for({}).content["metrics"]["num-examples"] == 1


def test_a_folder_that_cannot_be_written_to_later_is_a_line_in_the_log(batch, recorder, caplog):
    recorder.folder.rmdir()
    recorder.folder.write_text("in the way")
    with caplog.at_level(logging.WARNING, logger="seepage.recorder"):
        assert not ask(app(capture_mod(recorder), batch=batch)).has_error()
    assert "round 1 was not kept" in caplog.text


def test_a_recorder_without_a_learning_rate_is_refused_at_once(tmp_path):
    with pytest.raises(InvalidValue, match=r"give Setting\(lr"):
        Recorder(tmp_path, Setting())


def test_numbered_arrays_need_names(tmp_path):
    numbered = ClientApp(mods=[capture_mod(Recorder(tmp_path, Setting(lr=LR)))])

    @numbered.train()
    def train(message, context):
        return Message(content=message.content, reply_to=message)

    tensors = list(network().state_dict().values())
    record = ArrayRecord([t.numpy() for t in tensors])
    message = Message(RecordDict({"arrays": record}), dst_node_id=5, message_type="train")
    with pytest.raises(InvalidValue, match=r"names=tuple\(model.state_dict"):
        numbered(message, Context(1, 5, {"partition-id": 0}, RecordDict(), {}))


def test_of_updates_that_arrive_summed_up_the_sum_is_kept_once(batch, tmp_path):
    from types import SimpleNamespace

    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
    from flwr.server.strategy import FedAvg

    names = tuple(network().state_dict())
    recorder = Recorder(tmp_path, Setting(lr=LR), rounds=(1,), names=names)
    strategy = recorded(FedAvg(fraction_evaluate=0.0), recorder)
    before, after = network().state_dict(), step(network().state_dict(), batch)
    sent, mean = (
        ndarrays_to_parameters([tensor.numpy() for tensor in state.values()])
        for state in (before, after)
    )
    fits = [FitRes(Status(Code.OK, ""), mean, number, {}) for number in (2, 3)]
    results = [(SimpleNamespace(node_id=i), fit) for i, fit in enumerate(fits)]
    manager = SimpleNamespace(num_available=lambda: 0, sample=lambda **_: [])
    for number in (1, 2):
        # Flower's default workflow names the arguments.
        strategy.configure_fit(server_round=number, parameters=sent, client_manager=manager)
        strategy.aggregate_fit(number, results, [])
    (kept,) = tmp_path.iterdir()
    capture = load(kept)
    assert kept == recorder.path(1, "sum")
    assert capture.setting.batch_size == 5
    assert torch.equal(capture.update["4.bias"], after["4.bias"])


def test_a_strategy_of_something_else_is_refused(tmp_path):
    with pytest.raises(InvalidValue, match="expected a strategy of Flower"):
        recorded(object(), Recorder(tmp_path, Setting(lr=LR)))


@pytest.mark.slow
def test_the_smallest_app_runs_in_a_simulation_and_all_its_updates_come_back(tmp_path):
    pytest.importorskip("ray", reason="Flower's simulation needs ray")
    source = Path(__file__).resolve().parents[2] / "examples" / "flower_first.py"
    (tmp_path / source.name).write_bytes(source.read_bytes())
    run = partial(subprocess.run, cwd=tmp_path, check=True, capture_output=True, text=True)
    run([sys.executable, source.name])
    audit = ["audit", "--capture", "captures", "--model", "flower_first:build", "--out", "found"]
    done = run([sys.executable, "-m", "seepage", *audit, "--plain"])
    assert len(list((tmp_path / "captures").glob("*.safetensors"))) == 6
    said = " ".join(done.stdout.split())
    assert "The images of 6 of 6 updates came back, proved right to 8 bits." in said
    run([sys.executable, "-m", "seepage", "dossier", "found", "--out", "dossier"])
    made = json.loads((tmp_path / "dossier" / "dossier.json").read_text(encoding="utf-8"))
    status = {test["test"]: test["status"] for test in made["tests"]}
    assert status.pop("reconstruction") == "leak found"
    assert set(status.values()) == {"not run"}
    # The clients of one round hold the same weights, and those of the next one others.
    assert made["sources"][0]["about"]["digests of weights"].count(",") == 1
