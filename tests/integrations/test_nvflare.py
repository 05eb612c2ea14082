"""NVFlare: the filter keeps what leaves a site, and lets it pass unchanged."""

import subprocess
import sys
from textwrap import dedent

import pytest
import torch

import seepage as sp
from seepage.capture import load
from seepage.integrations.nvflare import RecordUpdate

pytest.importorskip("nvflare", reason="nvflare is not installed")
# What NVFlare warns of is not ours.
pytestmark = pytest.mark.filterwarnings("ignore")

LR = 0.1
DIGITS = sp.data.bundled("digits", size=1, pixels=28)


def network():
    torch.manual_seed(0)
    layers = torch.nn.Linear(28 * 28, 16), torch.nn.ReLU(), torch.nn.Linear(16, 10)
    return torch.nn.Sequential(torch.nn.Flatten(), *layers)


def step():
    """The weights before and after one step of SGD."""
    model = network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.nn.functional.cross_entropy(model(DIGITS.inputs), DIGITS.labels).backward()
    torch.optim.SGD(model.parameters(), lr=LR).step()
    return before, model.state_dict()


def exchange(record, sent, kind, result, *, meta=None, number=3):
    """Hand a filter the task and the result of one round, as a client's runner does."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey, ReservedKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.app_constant import AppConstants

    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, "site-1", private=False, sticky=False)
    task = DXO(DataKind.WEIGHTS, data={n: t.numpy() for n, t in sent.items()}).to_shareable()
    context.set_prop(FLContextKey.TASK_DATA, task, private=True, sticky=False)
    record.handle_event(EventType.BEFORE_TASK_EXECUTION, context)
    reply = DXO(kind, data=dict(result), meta=meta or {}).to_shareable()
    reply.set_header(AppConstants.CURRENT_ROUND, number)
    return record.process(reply, context)


def test_weights_are_kept_as_they_were_and_pass_unchanged(tmp_path):
    from nvflare.apis.dxo import DataKind, MetaKey, from_shareable

    before, after = step()
    record = RecordUpdate(str(tmp_path), lr=LR, shape=[1, 28, 28])
    meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    passed = from_shareable(exchange(record, before, DataKind.WEIGHTS, after, meta=meta))
    assert all(torch.equal(passed.data[name], after[name]) for name in after)
    (path,) = tmp_path.iterdir()
    assert "site-1" not in path.name
    capture = load(path)
    assert all(torch.equal(capture.update[name], after[name]) for name in after)
    assert (capture.setting.round, capture.setting.steps) == (3, 1)
    assert capture.setting.framework.startswith("nvflare ")


@pytest.mark.parametrize("kind", ["WEIGHTS", "WEIGHT_DIFF"])
def test_an_attack_on_the_capture_recovers_the_digit(tmp_path, kind):
    before, after = step()
    moved = {name: after[name] - before[name] for name in after}
    record = RecordUpdate(str(tmp_path), lr=LR)
    exchange(record, before, kind, after if kind == "WEIGHTS" else moved)
    (path,) = tmp_path.iterdir()
    task = sp.Task(network(), sp.cross_entropy, sp.domains.Image((1, 28, 28)))
    guess = sp.attacks.analytic_fc()(load(path).observation(task), rng=sp.rng(0))
    assert float(sp.score(guess, DIGITS)["psnr"][0]) > 40


def test_other_rounds_are_not_kept(tmp_path):
    before, after = step()
    record = RecordUpdate(str(tmp_path), lr=LR, rounds=[1])
    exchange(record, before, "WEIGHTS", after)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_federation_in_the_simulator_is_recorded(tmp_path):
    (tmp_path / "hospital.py").write_text(
        dedent(
            """
            from torch import nn

            class Network(nn.Module):
                def __init__(self):
                    super().__init__()
                    layers = nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10)
                    self.body = nn.Sequential(nn.Flatten(), *layers)

                def forward(self, inputs):
                    return self.body(inputs)
            """
        )
    )
    (tmp_path / "client.py").write_text(
        dedent(
            """
            import nvflare.client as flare
            import torch
            from hospital import Network

            flare.init()
            inputs, labels = torch.rand(1, 1, 28, 28), torch.tensor([3])
            while flare.is_running():
                network = Network()
                network.load_state_dict(flare.receive().params)
                torch.nn.functional.cross_entropy(network(inputs), labels).backward()
                torch.optim.SGD(network.parameters(), lr=0.1).step()
                flare.send(flare.FLModel(params=network.state_dict()))
            """
        )
    )
    (tmp_path / "job.py").write_text(
        dedent(
            f"""
            from hospital import Network
            from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
            from nvflare.recipe import SimEnv

            from seepage.integrations.nvflare import RecordUpdate

            recipe = FedAvgRecipe(
                name="digits", model=Network(), min_clients=2, num_rounds=1,
                train_script="client.py",
            )
            recipe.add_client_output_filter(
                RecordUpdate({str(tmp_path / "captures")!r}, lr=0.1, batch_size=1), tasks=["train"]
            )
            recipe.execute(SimEnv(num_clients=2, workspace_root={str(tmp_path / "run")!r}))
            """
        )
    )
    subprocess.run([sys.executable, "job.py"], cwd=tmp_path, check=True, timeout=300)
    kept = [load(path) for path in (tmp_path / "captures").iterdir()]
    assert len(kept) == 2
    assert len({capture.setting.client for capture in kept}) == 2
