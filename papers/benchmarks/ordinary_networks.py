"""`audit_step` at its defaults on five ordinary networks: the verdict, the time and the memory.

    python -m benchmarks.ordinary_networks

One person, no defense, and 200 others of the same data, as a training loop has them. Each network
runs in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time

import torch
from torch import nn

import seepage as sp
from benchmarks.auto_attack import pooled
from benchmarks.provenance import parse_options, save
from seepage.data._dataset import Dataset

# Nobody looked at this person and these weights while `auto` was written.
PERSON, SEED = 749, 151
OTHERS = 200


def build(name: str, data: Dataset) -> nn.Module:
    """A network of the zoo, or the one that the name of its layers describes."""
    if name == "Conv-BN-ReLU-MaxPool":
        torch.manual_seed(SEED)
        return pooled()
    options = {"domain": data.domain, "classes": data.classes, "seed": SEED}
    if name == "mlp":
        options["hidden"] = [64, 64]
    return sp.zoo.build(name, options=options).network


NETWORKS: dict[str, str] = {
    "mlp": "cifar10",
    "lenet": "cifar10",
    "Conv-BN-ReLU-MaxPool": "cifar10",
    "resnet20": "cifar10",
    "mlp on a table": "voters",
}


def audit(name: str) -> dict[str, object]:
    """Audit one step of a network; what a user would read, and what it took."""
    source = NETWORKS[name]
    data = sp.data.load(source, split="test") if source == "cifar10" else sp.data.load(source)
    person = data.take([PERSON])
    others = data.take(range(len(data) - OTHERS, len(data)))
    model = build(name.partition(" on ")[0], data)
    began = time.perf_counter()
    found = sp.audit_step(
        model,
        nn.CrossEntropyLoss(),
        (person.inputs, person.labels),
        domain=(0, 1) if source == "cifar10" else data.domain,
        others=sp.PublicData(others.inputs, others.labels),
    )
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "network": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": round(time.perf_counter() - began, 1),
        "megabytes": round(kilobytes / (2**20 if sys.platform == "darwin" else 2**10)),
        "verdict": str(found),
    }


def main() -> None:
    options = parse_options(__doc__, only="")
    spawn = multiprocessing.get_context("spawn")
    rows = []
    for name in [name for name in NETWORKS if options.only in name]:
        with spawn.Pool(1) as pool:
            row = pool.apply(audit, (name,))
        rows.append(row)
        print(f"{name}: {row['seconds']} s, {row['megabytes']} MB\n{row['verdict']}\n", flush=True)
        save("ordinary_networks", "cpu", {"rows": rows}, options.out)


if __name__ == "__main__":
    main()
