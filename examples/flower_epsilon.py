"""Does the epsilon of a Flower run hold? Canary clients in one run, with noise and without.

    python examples/flower_epsilon.py --out flower-epsilon

Every client is a canary with a parameter of its own: by a coin it sends an update far longer than
the clipping norm in that direction, or none. The server clips and adds noise by Flower's own
strategy. What the released models show of each canary bounds epsilon from below, beside what the
accountant promises. The second run has the same promise and forgets the noise.
"""

from __future__ import annotations

import argparse
import os
from itertools import pairwise
from pathlib import Path

# Before Flower and Ray are imported, which read these once.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

import seepage as sp
from seepage.defenses import gaussian_epsilon
from seepage.inference import EpsilonAudit, audit_one_run

CLIENTS, ROUNDS, NORM, SIGMA, DELTA, LOUD = 80, 3, 1.0, 4.0, 1e-5, 1e4


def coins(seed: int) -> torch.Tensor:
    """Which canaries take part, `(CLIENTS,)`."""
    return sp.rng(seed).fork("coins").uniform((CLIENTS,)) < 0.5


def client_app(seed: int) -> ClientApp:
    """A canary: its sign alternates from round to round, so that noise which repeats cancels."""
    app, included = ClientApp(), coins(seed).tolist()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        number = int(message.content["config"]["server-round"])
        canary = int(context.node_config["partition-id"])
        weight = message.content["arrays"]["weight"].numpy().copy()
        if included[canary]:
            weight[canary] += LOUD * (-1) ** number
        else:
            # Next to nothing in a parameter of nobody: Flower divides by the length of an update.
            weight[-1] += 1e-6
        arrays = ArrayRecord({"weight": Array(weight)})
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict({"arrays": arrays, "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def run(noise_multiplier: float, seed: int) -> torch.Tensor:
    """Run the federation, and return the score of every canary."""
    weights = [torch.zeros(CLIENTS + 1)]

    class Listening(DifferentialPrivacyServerSideFixedClipping):
        """Flower's strategy, of which the released models are kept."""

        def aggregate_train(
            self, server_round: int, replies: list[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            arrays, metrics = super().aggregate_train(server_round, replies)
            if arrays is None:
                raise RuntimeError(f"round {server_round} failed: no model was released")
            weights.append(arrays.to_torch_state_dict()["weight"].clone())
            return arrays, metrics

    plain = FedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)
    strategy = Listening(plain, noise_multiplier, NORM, CLIENTS)
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        start = ArrayRecord({"weight": weights[0]})
        strategy.start(grid, start, num_rounds=ROUNDS)

    backend = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"log_to_driver": False},
    }
    run_simulation(server, client_app(seed), CLIENTS, backend_config=backend)
    if len(weights) != ROUNDS + 1:
        raise RuntimeError(f"expected {ROUNDS} rounds, got {len(weights) - 1}")
    moves = [after - before for before, after in pairwise(weights)]
    return sum((-1) ** n * move for n, move in enumerate(moves, start=1))[:CLIENTS]


def audit(noise_multiplier: float, seed: int) -> EpsilonAudit:
    """Set what the run shows against what SIGMA promises."""
    claimed = gaussian_epsilon(noise_multiplier=SIGMA, steps=ROUNDS, delta=DELTA)
    scores = run(noise_multiplier, seed)
    return audit_one_run(scores, coins(seed), claimed=claimed, delta=DELTA)


def main() -> None:
    """Audit both runs, and keep the evidence for a dossier."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("flower-epsilon"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, noise in (("as promised", SIGMA), ("noise forgotten", 0.0)):
        found = audit(noise, options.seed)
        print(f"{name}\n{found}\n", flush=True)
        sp.audit.save_evidence(
            found,
            options.out / f"{name.replace(' ', '_')}.json",
            system=f"Flower, noise at the server, {CLIENTS} clients, {ROUNDS} rounds, {name}",
            data="canary clients",
            adversary="the model that the server releases after every round",
            seed=options.seed,
        )


if __name__ == "__main__":
    main()
