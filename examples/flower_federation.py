"""A real Flower federation on handwritten digits: four hospitals, five rounds, one step each.

`simulate` runs it with the mods and the strategy it is given, under Flower's own simulation. But
for the names of the mods nothing in here is Seepage's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

# Before Flower and Ray are imported, which read these once.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

import seepage as sp

CLIENTS, ROUNDS, EXAMPLES, LR = 4, 5, 2, 0.5
DIGITS = sp.data.load("digits")


def network() -> nn.Module:
    """What is trained: the weights are the same in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 10))


def private(client: int, number: int) -> sp.Batch:
    """Whom a client trains on in a round: two people of its own, others in every round."""
    first = (client * ROUNDS + number - 1) * EXAMPLES
    return DIGITS.batch(EXAMPLES, start=first)


def trained(state: dict[str, torch.Tensor], batch: sp.Batch) -> nn.Module:
    """One step of SGD from these weights."""
    model = network()
    model.load_state_dict(state)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    seen = DIGITS.domain.normalise(batch.inputs)
    nn.functional.cross_entropy(model(seen), batch.labels).backward()
    optimizer.step()
    return model


def client_app(mods: Sequence[object]) -> ClientApp:
    """A client of Flower's newer interface."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(message.content["config"]["server-round"])
        batch = private(int(context.node_config["partition-id"]), number)
        model = trained(message.content["arrays"].to_torch_state_dict(), batch)
        arrays, metrics = ArrayRecord(model.state_dict()), {"num-examples": len(batch)}
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
        return Message(content=content, reply_to=message)

    return app


def simulate(mods: Sequence[object], strategy: FedAvg) -> None:
    """Run the federation."""
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord(network().state_dict()), num_rounds=ROUNDS)

    _run(server, client_app(mods))


class Hospital(NumPyClient):
    """The same client in Flower's older interface, which SecAgg+ needs."""

    def __init__(self, partition: int) -> None:
        """Remember which."""
        self.partition = partition

    def fit(
        self, parameters: list[np.ndarray], config: dict[str, int]
    ) -> tuple[list[np.ndarray], int, dict[str, int]]:
        """One step on the people of this round."""
        batch = private(self.partition, int(config["round"]))
        names = network().state_dict()
        state = dict(zip(names, map(torch.from_numpy, parameters), strict=True))
        model = trained(state, batch)
        return [t.numpy() for t in model.state_dict().values()], len(batch), {}


def simulate_secagg(mods_outside: Sequence[object], strategy: OlderFedAvg) -> None:
    """Run the federation under SecAgg+; these mods stand before its own."""

    def client_fn(context: Context) -> Client:
        return Hospital(int(context.node_config["partition-id"])).to_client()

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        legacy = LegacyContext(context, ServerConfig(num_rounds=ROUNDS), strategy)
        # Weights up to the size of a client: the usual 1000 would round small clients away.
        secure = SecAggPlusWorkflow(3, 2, max_weight=float(EXAMPLES))
        DefaultWorkflow(fit_workflow=secure)(grid, legacy)

    _run(server, ClientApp(client_fn, mods=[*mods_outside, secaggplus_mod]))


def older_strategy() -> OlderFedAvg:
    """FedAvg of the older interface, which tells clients the round."""
    weights = [tensor.numpy() for tensor in network().state_dict().values()]
    return OlderFedAvg(
        min_fit_clients=CLIENTS,
        min_available_clients=CLIENTS,
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(weights),
        on_fit_config_fn=lambda number: {"round": number},
    )


def newer_strategy() -> FedAvg:
    """FedAvg of the newer interface."""
    return FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)


def _run(server: ServerApp, client: ClientApp) -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"log_to_driver": False},
    }
    run_simulation(server, client, CLIENTS, backend_config=backend)
