"""`auto` and the peer `breaching` on the same updates, in the same time.

    python -m benchmarks.peer_quality --device cuda

`auto` runs first, its rehearsal included. The peer then gets as many steps of its
`invertinggradients`, at its own settings, as fit into the time that `auto` took. Both know the
labels and the network, ResNet-18 for CIFAR-10, untrained and trained on 8000 images.
"""

from __future__ import annotations

import time
from statistics import fmean

import torch

import seepage as sp
from benchmarks import peer
from benchmarks.provenance import parse_options, save
from seepage.core import Task
from seepage.core._rng import Rng
from seepage.rehearsal._simulated_clients import Rehearsal
from seepage.utility import Training, train

# People that are attacked begin here; those at the end are public.
START, PUBLIC = 300, 200
SIZES = (1, 4, 8)
# Steps of the peer that are timed.
TIMED = 60


def networks(device: torch.device, steps: int) -> dict[str, tuple[Task, float]]:
    """The untrained and the trained network, each with its accuracy."""
    held_out = sp.data.load("cifar10", split="test").batch(1_000)
    data = sp.data.load("cifar10", split="train").batch(8_000)
    domain = sp.data.load("cifar10", split="test").domain
    untrained = sp.zoo.build("resnet18", options={"domain": domain, "classes": 10, "seed": 4})
    untrained = untrained.to(device=device)
    plan = Training(steps=steps, batch_size=128, lr=0.05, momentum=0.9, weight_decay=5e-4)
    learned = train(untrained, data, held_out=held_out, plan=plan, precision="tf32", rng=Rng(0))
    return {
        "untrained": (untrained, 0.1),
        "trained": (learned.task.to(device=device), learned.accuracy[-1]),
    }


def compare(task: Task, size: int, batches: int, budget: int, device: torch.device) -> dict:
    """Attack batches of one size with both."""
    people = sp.data.load("cifar10", split="test")
    others = people.take(range(len(people) - PUBLIC, len(people)))
    attack = sp.auto(budget=budget, public=sp.PublicData(others.inputs, others.labels))
    found = {"auto": [], "peer": [], "seconds": [], "peer steps": [], "chosen": []}
    for number in range(batches):
        first = START + number * size
        batch = people.take(range(first, first + size)).to(device=device)
        client = sp.Client(sp.Gradient())
        seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(100 + number))
        judge = Rehearsal((seen,), (batch.to(device=torch.device("cpu")),), task.domain)
        began = time.perf_counter()
        guess = attack(seen, rng=sp.rng(number))
        seconds = time.perf_counter() - began
        speed = peer.iterations_per_second(task, seen, tv=1e-4, steps=TIMED, local=None)
        steps = max(1, int(seconds * speed))
        theirs, _ = peer.reconstruct(task, seen, steps=steps)
        found["auto"] += judge.score([guess])
        found["peer"] += judge.score([sp.Reconstruction(theirs)])
        found["seconds"].append(round(seconds, 1))
        found["peer steps"].append(steps)
        found["chosen"].append(guess.trace.race.chosen if guess.trace.race else ())
    return found


def main() -> None:
    options = parse_options(
        __doc__,
        device="cpu",
        budget=6_000,
        train=600,
        batches=2,
        seconds=1e9,
        network=("both", "untrained", "trained"),
    )
    device, began = torch.device(options.device), time.monotonic()
    rows = []
    for name, (task, accuracy) in networks(device, options.train).items():
        for size in SIZES if options.network in ("both", name) else ():
            if time.monotonic() - began > options.seconds:
                break
            row = compare(task, size, options.batches, options.budget, device)
            rows.append({"network": name, "accuracy": accuracy, "batch size": size, **row})
            ours, theirs = fmean(row["auto"]), fmean(row["peer"])
            print(
                f"{name:10} B={size}: auto {ours:5.2f} dB, peer {theirs:5.2f} dB"
                f" in {row['seconds']} s, peer {row['peer steps']} steps, {row['chosen']}",
                flush=True,
            )
            save("peer_quality", options.device, {"rows": rows}, options.out)


if __name__ == "__main__":
    main()
