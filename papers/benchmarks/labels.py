"""How well labels are inferred from gradients: `python -m benchmarks.labels`.

Weight seeds, images and batches are fixed here, before the run, and are not those that the rules
were tuned on. Images are CIFAR-10 test images from index 750 on; the trained networks have not
seen them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

import seepage as sp
from benchmarks.provenance import save
from seepage.attacks.labels import IDLG, CountAware, LabelRule, SignRule, YinMinimum
from seepage.data._dataset import data_root
from seepage.scoring import count_error
from seepage.zoo import load_weights

SIZES = (1, 2, 4, 8, 16, 32)
BATCHES = 10
KEY = sp.rng(97_531)
FIRST_IMAGE = 750
FIRST_WEIGHTS = 900

RULES: dict[str, LabelRule] = {
    "SignRule": SignRule(),
    "YinMinimum": YinMinimum(),
    "CountAware": CountAware(),
}
UNTRAINED: dict[str, Callable[[int], sp.Task]] = {
    "LeNet": lambda seed: sp.zoo.lenet(seed=seed),
    "ConvNet-8": lambda seed: sp.zoo.convnet(width=8, seed=seed),
    "ResNet-20": lambda seed: sp.zoo.resnet20(seed=seed),
    "MLP without bias": lambda seed: sp.zoo.mlp(hidden=(64,), bias=False, seed=seed),
}
TRAINED = {
    "ResNet-20, trained": (sp.zoo.resnet20, "cifar10_resnet20-12fca82f.safetensors"),
    "ResNet-56, trained": (sp.zoo.resnet56, "cifar10_resnet56-4bfd9763.safetensors"),
}


def main() -> None:
    torch.set_num_threads(1)
    images = sp.data.load("cifar10")
    began = time.perf_counter()
    rows = []
    for name, tasks in networks().items():
        for size in SIZES:
            row = measured(tasks, images.inputs, images.labels, size)
            rows.append({"network": name, "batch_size": size, "rules": row})
            print(name, size, {rule: scores["accuracy"] for rule, scores in row.items()})
    result = {
        "data": f"CIFAR-10 test images from {FIRST_IMAGE}",
        "batches": BATCHES,
        "accuracy": "size of the overlap of guessed and true labels as multisets, over B",
        "count_error": "people counted in a wrong class, per batch",
        "total_seconds": round(time.perf_counter() - began, 1),
        "rows": rows,
    }
    print(save("labels", "cpu", result))


def networks() -> dict[str, list[sp.Task]]:
    """One network per batch: fresh weights for each, or the same trained ones."""
    fresh = range(FIRST_WEIGHTS, FIRST_WEIGHTS + BATCHES)
    found = {name: [make(seed) for seed in fresh] for name, make in UNTRAINED.items()}
    for name, (make, file) in TRAINED.items():
        found[name] = [load_weights(make(), data_root() / "weights" / file)] * BATCHES
    return found


def measured(
    tasks: list[sp.Task], inputs: torch.Tensor, labels: torch.Tensor, size: int
) -> dict[str, dict[str, float]]:
    """Mean accuracy, count error and seconds of every rule, and of a guess without evidence."""
    rules: dict[str, LabelRule] = {**RULES, "uniform guess": uniform}
    if size == 1:
        rules["IDLG"] = IDLG()
    totals = {name: {"accuracy": 0.0, "count_error": 0.0, "seconds": 0.0} for name in rules}
    for number, task in enumerate(tasks):
        drawn = KEY.fork(size, number).permutation(len(inputs) - FIRST_IMAGE)[:size] + FIRST_IMAGE
        batch = sp.Batch(inputs[drawn], labels[drawn])
        seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
        for name, rule in rules.items():
            began = time.perf_counter()
            guessed = rule(seen)
            totals[name]["seconds"] += time.perf_counter() - began
            wrong = count_error(guessed, batch.labels)
            totals[name]["count_error"] += wrong
            totals[name]["accuracy"] += 1 - wrong / size
    return {
        name: {key: round(total / len(tasks), 4) for key, total in scores.items()}
        for name, scores in totals.items()
    }


def uniform(observation: sp.Observation) -> torch.Tensor:
    """Every class equally often, and where B is no multiple of K the first ones once more."""
    return torch.arange(observation.batch_size or 1) % observation.task.classes


if __name__ == "__main__":
    main()
