"""Who was in the batch: members found and strangers accused, over networks and defenses.

    python -m benchmarks.membership

CIFAR-10. For every row, up to 100 members and 1000 strangers are tested with the help of 2000
public images, half of them to rehearse. Power is the share of members at the threshold that 1 % and
0.1 % of strangers pass; false alarms are strangers with p <= 1 %. Clopper-Pearson intervals, 95 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch

import seepage as sp
from benchmarks.provenance import record
from seepage.core import Protection, Task
from seepage.data._dataset import Dataset
from seepage.defenses import gaussian_epsilon
from seepage.inference import Detection
from seepage.numerics._significance import Rate
from seepage.utility import Training, train

MEMBERS, STRANGERS, PUBLIC = 100, 1000, 2000
DELTA = 1e-5


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    group: str
    network: str
    setting: str
    size: int
    client: sp.Client
    task: Callable[[], Task]
    rounds: int = 1


@cache
def cifar10() -> Dataset:
    return sp.data.load("cifar10", split="train")


@cache
def mlp(width: int) -> Task:
    return sp.zoo.mlp(hidden=(width,))


@cache
def trained(width: int) -> Task:
    """Two epochs on 4000 images that are used for nothing else."""
    data, held_out = cifar10().batch(4000, start=16_000), cifar10().batch(500, start=15_500)
    plan = Training(epochs=2, batch_size=32, lr=0.02)
    found = train(mlp(width), data, held_out=held_out, plan=plan, delta=None, rng=sp.rng(0))
    assert found.task is not None
    return found.task


def share(defense: Protection | None = None) -> sp.Client:
    return sp.Client(sp.Gradient()) if defense is None else sp.Client(sp.Gradient(), defense)


def noise_for(epsilon: float) -> float:
    """The noise multiplier with which one step has this epsilon."""
    low, high = 1e-4, 100.0
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        above = gaussian_epsilon(noise_multiplier=middle, delta=DELTA) > epsilon
        low, high = (middle, high) if above else (low, middle)
    return high


def list_rows() -> Iterator[Row]:
    """Every line, in the order of the table."""
    for width in (64, 256, 1024):
        for size in (1, 16, 64, 256, 1000):
            yield Row("size", f"MLP-{width}", "none", size, share(), lambda w=width: mlp(w))
    for size in (16, 64, 256):
        yield Row("trained", "MLP-256, trained", "none", size, share(), lambda: trained(256))
    yield Row("network", "LeNet", "none", 8, share(), sp.zoo.lenet)
    yield Row("network", "LeNet", "none", 32, share(), sp.zoo.lenet)
    small = "MLP-128"
    for std in (1e-4, 1e-3, 1e-2, 1e-1):
        yield Row(
            "noise", small, f"noise {std:g}", 16, share(sp.AddGaussian(std)), lambda: mlp(128)
        )
    for defense, name in (
        (sp.Clip(0.1), "clipped to 0.1"),
        (sp.chain(sp.ClipEach(0.1), sp.Mean()), "each clipped to 0.1"),
        (sp.Prune(0.5), "pruned 50 %"),
        (sp.Prune(0.9), "pruned 90 %"),
        (sp.Prune(0.99), "pruned 99 %"),
        (sp.SecureAggregation(4), "sum of 4 clients"),
    ):
        yield Row("defense", small, name, 16, share(defense), lambda: mlp(128))
    for epsilon in (1.0, 10.0, 100.0, 1000.0):
        defense = sp.dp_sgd(max_norm=1.0, noise_multiplier=noise_for(epsilon), batch_size=16)
        yield Row("dp", small, f"DP-SGD, epsilon {epsilon:g}", 16, share(defense), lambda: mlp(128))
    for steps in (1, 5, 20):
        client = sp.Client(sp.FedAvg(lr=0.05, steps=steps, local_batch_size=8))
        yield Row("fedavg", small, f"{steps} local steps", 16, client, lambda: mlp(128))
    for rounds in (1, 5):
        client = share(sp.AddGaussian(3e-2))
        yield Row(
            "rounds", small, f"noise 0.03, {rounds} rounds", 16, client, lambda: mlp(128), rounds
        )


def measure(row: Row, seed: int) -> dict[str, object]:
    """Test members and strangers of one row."""
    data, task = cifar10(), row.task()
    order = sp.rng(seed).fork("people").permutation(15_500)
    known = min(MEMBERS, row.size)
    members = order[: row.size]
    strangers = order[row.size : row.size + STRANGERS]
    rest = data.take(order[row.size + STRANGERS : row.size + STRANGERS + PUBLIC])
    public = sp.PublicData(rest.inputs, rest.labels)
    seen = [
        sp.Threat().observe(
            row.client, task, data.take(members), rng=sp.rng(seed).fork("client", number)
        )
        for number in range(row.rounds)
    ]
    began = time.process_time()
    candidates = data.take(torch.cat([members[:known], strangers]))
    found = sp.membership(seen, candidates, public=public)
    told = Detection.of(found, torch.arange(len(candidates)) < known)
    return {
        "group": row.group,
        "network": row.network,
        "setting": row.setting,
        "batch": row.size,
        "test": found.test[0],
        "auc": told.auc,
        "tpr_0.1%": write(told.tpr_at(0.001)),
        "tpr_1%": write(told.tpr_at(0.01)),
        "false_alarms_1%": write(told.false_alarms(0.01)),
        "false_alarms_0.1%": write(told.false_alarms(0.001)),
        "rehearsed_1%": write(found.power),
        "seconds": round(time.process_time() - began, 1),
    }


def write(rate: Rate | None) -> list[float] | None:
    """The share, the ends of its interval, and the counts."""
    if rate is None:
        return None
    return [rate.value, rate.low, rate.high, rate.successes, rate.trials]


def measure_others(seed: int) -> list[dict[str, object]]:
    """False alarms of candidates that are not drawn like the public images."""
    data, task = cifar10(), mlp(256)
    order = sp.rng(seed).fork("people").permutation(15_500)
    batch, rest = data.take(order[:64]), data.take(order[1000:3000])
    public = sp.PublicData(rest.inputs, rest.labels)
    wide = sp.data.load("cifar100", split="train").inputs[:1000]
    kinds = {
        "same distribution": data.take(order[4000:5000]).inputs,
        "CIFAR-100, calibrated on CIFAR-10": wide,
        "members with noise 0.01": (
            batch.inputs + 0.01 * sp.rng(seed).fork("noise").normal(batch.inputs.shape)
        ).clamp(0, 1),
        "members rounded to 5 bits": (batch.inputs * 31).round() / 31,
        "members mirrored": batch.inputs.flip(3),
        "members shifted by a pixel": batch.inputs.roll(1, 3),
    }
    rows = []
    for name, client in (("none", share()), ("noise 0.001", share(sp.AddGaussian(1e-3)))):
        seen = sp.Threat().observe(client, task, batch, rng=sp.rng(seed).fork("client"))
        for kind, inputs in kinds.items():
            found = sp.membership(seen, inputs, public=public)
            flagged = Rate(int((found.p_values <= 0.01).sum()), len(inputs))
            rows.append({"defense": name, "candidates": kind, "flagged_1%": write(flagged)})
            print(f"{name:12s} {kind:36s} flagged {flagged}", flush=True)
    return rows


def measure_all(seed: int) -> dict[str, object]:
    """Every row, and candidates of other kinds."""
    rows = []
    for row in list_rows():
        rows.append(measure(row, seed))
        print(
            f"{row.network:18s} {row.setting:24s} B={row.size:<5d} AUC {rows[-1]['auc']:.3f} "
            f"TPR@1% {rows[-1]['tpr_1%'][0]:.2f} @0.1% {rows[-1]['tpr_0.1%'][0]:.2f} "
            f"FA@1% {rows[-1]['false_alarms_1%'][0]:.3f} {rows[-1]['test']} "
            f"{rows[-1]['seconds']} s",
            flush=True,
        )
    alarms = Rate(
        sum(row["false_alarms_1%"][3] for row in rows),
        sum(row["false_alarms_1%"][4] for row in rows),
    )
    print(f"false alarms at p <= 1 % over all rows: {alarms}")
    return {"rows": rows, "false_alarms_1%": write(alarms), "others": measure_others(seed)}


if __name__ == "__main__":
    record("membership", __doc__, measure_all)
