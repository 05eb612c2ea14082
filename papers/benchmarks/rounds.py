"""Several rounds against one person: what each further round adds.

    python -m benchmarks.rounds
    python -m benchmarks.rounds_resnet20

A client trains on the same CIFAR-10 batch in every round, among nine others. After each round the
server moves the network by the mean of all gradients, so that rounds differ as they do in a
training. Members and strangers are tested after 1 to 20 rounds; batches are inverted exactly from
rounds that are stacked, through first layers that are too narrow for one.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch

import seepage as sp
from benchmarks.provenance import record
from seepage.attacks import exact_rounds
from seepage.core import Observation, Task
from seepage.core.errors import NotApplicable
from seepage.data._dataset import Dataset
from seepage.inference import Detection, membership_by_round

ROUNDS, OTHERS, LR = 20, 9, 0.1
SHOWN = (1, 2, 3, 5, 10, 20)


@dataclass(frozen=True)
class Setting:
    """A network, a batch size, noise, and how many strangers and public images there are."""

    network: str
    size: int
    noise: float
    strangers: int
    public: int

    def task(self) -> Task:
        """The network before the first round."""
        if self.network == "ResNet-20":
            return sp.zoo.resnet20()
        return sp.zoo.mlp(hidden=(int(self.network.removeprefix("MLP-")),))

    def client(self) -> sp.Client:
        """What every client does."""
        plain = sp.Gradient()
        return sp.Client(plain, sp.AddGaussian(self.noise)) if self.noise else sp.Client(plain)


SETTINGS = (
    Setting("MLP-64", 128, 0.0, 100, 400),
    Setting("MLP-64", 16, 0.03, 100, 400),
)


@cache
def cifar10() -> Dataset:
    return sp.data.load("cifar10", split="train")


def train(
    task: Task, client: sp.Client, batch: sp.Batch, people: torch.Tensor, rounds: int, seed: int
) -> Iterator[Observation]:
    """What is seen of the first client in every round."""
    batches = [cifar10().take(some) for some in people.chunk(OTHERS)]
    for number in range(rounds):
        key = sp.rng(seed).fork("client", number)
        seen = sp.Threat().observe(client, task, batch, rng=key)
        yield seen
        updates = [seen.update] + [
            client(task, other, rng=key.fork(i)) for i, other in enumerate(batches)
        ]
        model = copy.deepcopy(task.model)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= LR * sum(update.tensors[name] for update in updates) / len(updates)
        task = replace(task, model=model)


def measure(setting: Setting, seed: int) -> list[dict[str, object]]:
    """The curve of one setting."""
    began = time.process_time()
    data, size = cifar10(), setting.size
    order = sp.rng(seed).fork("people").permutation(len(data))
    ends = torch.tensor([size, setting.strangers, setting.public, OTHERS * min(size, 64)]).cumsum(0)
    members, strangers, rest, others = order[: int(ends[-1])].tensor_split(ends[:-1])
    shown = members[:100]
    public = data.take(rest)
    rounds = list(train(setting.task(), setting.client(), data.take(members), others, ROUNDS, seed))
    candidates = data.take(torch.cat([shown, strangers]))
    known = sp.PublicData(public.inputs, public.labels)
    rows = []
    for number, found in enumerate(membership_by_round(rounds, candidates, public=known), start=1):
        told = Detection.of(found, torch.arange(len(candidates)) < len(shown))
        rows.append(
            {
                "network": setting.network,
                "batch": size,
                "noise": setting.noise,
                "rounds": number,
                "level": found.level,
                "members": told.found_at(found.level).plain(),
                "strangers": told.false_alarms(found.level).plain(),
                "auc": told.auc,
                "test": found.test[-1],
            }
        )
        if number in SHOWN:
            print(
                f"{setting.network} B={size} noise {setting.noise:g} {number:2d} rounds: AUC "
                f"{told.auc:.3f} found {told.found_at(found.level)} false "
                f"{told.false_alarms(found.level)} {found.test[-1]}",
                flush=True,
            )
    print(f"{time.process_time() - began:.0f} s", flush=True)
    return rows


def invert(width: int, size: int, seed: int) -> dict[str, object]:
    """How many of a batch come back exactly, by number of rounds."""
    order = sp.rng(seed).fork("exact", size).permutation(len(cifar10()))
    batch = cifar10().take(order[:size])
    others = order[size : size + OTHERS * size]
    client = sp.Client(sp.Gradient())
    task = sp.zoo.mlp(hidden=(width,), seed=seed)
    rounds = list(train(task, client, batch, others, ROUNDS, seed))
    exact: dict[str, int | None] = {}
    for number in SHOWN:
        try:
            guess = exact_rounds(rounds[:number], rng=sp.rng(seed).fork("attack"))
            exact[str(number)] = int((sp.score(guess, batch)["psnr"] > 60).sum())
        except NotApplicable:
            exact[str(number)] = None
    print(f"exact: width {width} B={size} seed {seed}: {exact}", flush=True)
    return {"width": width, "batch": size, "seed": seed, "exact": exact}


def measure_all(seed: int) -> dict[str, object]:
    """Exact batches first, which take least."""
    exact = [invert(16, 8, seed + number) for number in range(5)]
    return {"exact": exact, "rows": [row for one in SETTINGS for row in measure(one, seed)]}


if __name__ == "__main__":
    record("rounds", __doc__, measure_all)
