"""Features of ordinary classifiers: what the gradient of the last layer alone gives away.

    python -m benchmarks.softmax_features [--only untrained,classes,trained,sure,defenses]

Needs CIFAR-10, CIFAR-100 and the weights of the trained ResNet-20 in SEEPAGE_DATA. Batches of
consecutive test images, as many of each size; labels are known, and batch statistics need not be.
`untrained`: ResNet-18 with 10 classes. `classes`: with 100. `trained`: 16 channels wide, after 312
steps. `sure`: ResNet-20 at the end of its training, which is sure of most people. `defenses`: the
first again, behind some. A feature counts as recovered within a hundredth of its length; people of
one label come in any order.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Iterator

import torch

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.attacks.feature_recovery import NotToldApartWarning, softmax_features
from seepage.core import Batch, Observation, Protection
from seepage.core.errors import NotApplicable
from seepage.data import data_root
from seepage.search._feature_matching import features_at
from seepage.utility import Training, train

Row = dict[str, object]
FIRST, WITHIN = 200, 0.01
DEFENSES: dict[str, Protection] = {
    "clip 2": sp.Clip(2.0),
    "noise 1e-5": sp.AddGaussian(1e-5),
    "noise 1e-3": sp.AddGaussian(1e-3),
    "prune 0.5": sp.Prune(0.5),
    "prune 0.9": sp.Prune(0.9),
}


def attacked(
    task: sp.Task, data: str, people: int, batches: int, *, defense: Protection | None = None
) -> Row:
    """Everybody's error in batches of one size."""
    threat = sp.Threat(knows_labels=True, batchnorm="unknown")
    client = sp.Client(sp.Gradient(), defense or sp.chain())
    errors: list[float] = []
    refused, seconds = 0, 0.0
    for number in range(batches):
        batch = sp.data.load(data).batch(people, start=FIRST + number * people)
        seen = threat.observe(client, task, batch, rng=sp.rng(number))
        began = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotToldApartWarning)
                found = softmax_features().recover(seen, rng=sp.rng(1000 + number))
        except NotApplicable:
            refused += 1
            continue
        seconds += time.perf_counter() - began
        errors += distances(found.layer, found.values, seen, batch)
    row: Row = {"people": people, "batches": batches, "refused": refused}
    if errors:
        row["recovered"] = round(sum(e < WITHIN for e in errors) / len(errors), 4)
        row["median"], row["worst"] = (
            float(f"{v:.2e}") for v in (statistics.median(errors), max(errors))
        )
        row["seconds"] = round(seconds / (batches - refused), 2)
    return row


def distances(layer: str, found: torch.Tensor, seen: Observation, batch: Batch) -> list[float]:
    """Of each person's feature from the nearest found for a person of that label, by its length."""
    true = features_at(seen.task, layer, batch.inputs).detach()
    apart = torch.cdist(found, true) / true.norm(dim=1)
    assert seen.labels is not None
    same = seen.labels[:, None] == batch.labels
    nearest: list[float] = torch.where(same, apart, torch.inf).min(0).values.tolist()
    return nearest


def trained() -> sp.Task:
    data = sp.data.load("cifar10", split="train")
    plan = Training(steps=312, batch_size=64, lr=0.1, momentum=0.9)
    made = train(
        sp.zoo.resnet18(width=16, domain=data.domain),
        data.batch(20_000),
        held_out=sp.data.load("cifar10").batch(256, start=1000),
        plan=plan,
        delta=None,
        rng=sp.rng(0),
    )
    print(f"accuracy {made.accuracy[-1]:.3f}", flush=True)
    return made.task


def measured(part: str, batches: int) -> Iterator[Row]:
    if part == "untrained":
        for people in (1, 2, 4, 6, 8, 9):
            yield attacked(sp.zoo.resnet18(), "cifar10", people, batches)
    if part == "classes":
        task = sp.zoo.resnet18(classes=100, domain=sp.data.load("cifar100").domain)
        for people in (8, 16, 24):
            yield attacked(task, "cifar100", people, batches)
    if part == "trained":
        task = trained()
        for people in (1, 2, 4, 6, 8):
            yield attacked(task, "cifar10", people, batches)
    if part == "sure":
        path = data_root() / "weights" / "cifar10_resnet20-12fca82f.safetensors"
        for people in (1, 2, 4):
            yield attacked(sp.zoo.load_weights(sp.zoo.resnet20(), path), "cifar10", people, batches)
    if part == "defenses":
        for name, defense in DEFENSES.items():
            row = attacked(sp.zoo.resnet18(), "cifar10", 4, batches, defense=defense)
            yield {"defense": name, **row}


PARTS = ("untrained", "classes", "trained", "sure", "defenses")


def main() -> None:
    options = parse_options(__doc__, only="", batches=8)
    rows: list[Row] = []
    for part in list(filter(None, options.only.split(","))) or PARTS:
        for row in measured(part, options.batches):
            rows.append({"part": part, **row})
            print(rows[-1], flush=True)
            path = save("softmax_features", "cpu", {"within": WITHIN, "rows": rows}, options.out)
    print(path)


if __name__ == "__main__":
    main()
