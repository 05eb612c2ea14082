"""The smallest Flower app that is audited: three clients, two rounds, two people each.

python flower_first.py
seepage audit --capture captures --model flower_first:build --out found
"""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

import seepage as sp
from seepage.capture import Setting
from seepage.integrations.flower import Recorder, capture_mod

# The three lines of the audit: what clients compute, where it is kept, and the mod.
about = Setting(lr=0.1, steps=1, shape=(1, 28, 28))
recorder = Recorder(Path("captures"), about, rounds=(1, 2))
app = ClientApp(mods=[capture_mod(recorder)])
server = ServerApp()


def build() -> nn.Module:
    """The network that is trained."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))


@app.train()
def train(message: Message, context: Context) -> Message:
    """One step on the two people of this client."""
    network = build()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"])
    batch = sp.data.bundled("digits", size=2, start=2 * client, pixels=28)
    nn.functional.cross_entropy(network(batch.inputs), batch.labels).backward()
    torch.optim.SGD(network.parameters(), lr=0.1).step()
    arrays, metrics = ArrayRecord(network.state_dict()), MetricRecord({"num-examples": 2})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Average the clients for two rounds."""
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(build().state_dict()), num_rounds=2)


if __name__ == "__main__":
    run_simulation(server_app=server, client_app=app, num_supernodes=3)
