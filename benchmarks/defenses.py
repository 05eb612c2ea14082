"""What defenses let through and what they cost: accuracy beside the strongest attack.

    python -m benchmarks.defenses --part utility --device cuda [--only 'prune 0.9,noise 0.01']
    python -m benchmarks.defenses --part attack --device cuda
    python -m benchmarks.defenses --part table
    python -m benchmarks.defenses --scale small --part utility

Needs CIFAR-10 in SEEPAGE_DATA, or MNIST for the small scale. Rows are written as they come, and
rows of an earlier run that are not asked for again are kept. Both parts see the same networks and
the same defenses; attacks meet the network before it is trained. "table" joins what the other two
left, and accounts for DP-SGD where the training could not, which needs Opacus.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import nn

import seepage as sp
from benchmarks.provenance import RESULTS, save
from seepage.audit import Choice, Record, leakages, pareto_front, ranked
from seepage.core import Attack, Protection
from seepage.core.errors import NotApplicable
from seepage.core.task import batchnorm_layers
from seepage.scoring import METRICS, applicable, pair
from seepage.utility import CropAndFlip, OneCycle, Training, noise_multiplier, train

DELTA = 1e-5
Result = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is trained and attacked."""

    data: str
    network: Callable[[], sp.Task]
    examples: int
    held_out: int
    epochs: int
    batch_size: int
    lr: float
    augment: CropAndFlip | None
    people: int
    attacked: int
    steps: int


def mnist_cnn() -> sp.Task:
    return sp.zoo.cnn(variant="cnn2-v2", domain=sp.domains.MNIST)


FULL = Scale(
    data="cifar10",
    network=sp.zoo.resnet18,
    examples=20_000,
    held_out=1_500,
    epochs=10,
    batch_size=256,
    lr=0.2,
    augment=CropAndFlip(),
    people=16,
    attacked=4,
    steps=2_000,
)
SMALL = Scale(
    data="mnist",
    network=mnist_cnn,
    examples=320,
    held_out=200,
    epochs=4,
    batch_size=32,
    lr=0.05,
    augment=None,
    people=4,
    attacked=4,
    steps=40,
)
SCALES = {"full": FULL, "quick": replace(FULL, epochs=3, steps=500), "small": SMALL}


@dataclass(frozen=True)
class Row:
    """A defense, as clients with batches of some size use it.

    Args:
        defend: From the batch size to the defense.
        group_norm: Whether batch normalisation gives way to group normalisation.
        lr: Shares of the learning rate that are tried; the lowest training loss counts.
    """

    defend: Callable[[int], Protection]
    group_norm: bool = False
    lr: tuple[float, ...] = (1.0,)


def fixed(defense: Protection, *, lr: tuple[float, ...] = (1.0,)) -> Row:
    return Row(lambda _size: defense, lr=lr)


def private(multiplier: float) -> Row:
    def defend(size: int) -> Protection:
        return sp.dp_sgd(max_norm=1.0, noise_multiplier=multiplier, batch_size=size)

    return Row(defend, group_norm=True, lr=(0.2, 0.05))


# Steps behind strong noise or few entries need a smaller learning rate; both papers say so.
ROWS: Mapping[str, Row] = {
    "none": fixed(sp.chain()),
    "prune 0.5": fixed(sp.Prune(0.5)),
    "prune 0.9": fixed(sp.Prune(0.9)),
    "prune 0.99": fixed(sp.Prune(0.99), lr=(1.0, 0.2)),
    "noise 0.001": fixed(sp.AddGaussian(0.001)),
    "noise 0.01": fixed(sp.AddGaussian(0.01), lr=(1.0, 0.1)),
    "noise 0.1": fixed(sp.AddGaussian(0.1), lr=(0.1, 0.01)),
    "clip 2": fixed(sp.Clip(2.0)),
    "clip 4": fixed(sp.Clip(4.0)),
    "clip 8": fixed(sp.Clip(8.0)),
    "dropout 0.5": fixed(sp.Dropout(0.5)),
    "dropout 0.9": fixed(sp.Dropout(0.9)),
    "MixUp 4": fixed(sp.MixUp(4)),
    "InstaHide 4": fixed(sp.InstaHide(4)),
    "group norm": Row(lambda _size: sp.chain(), group_norm=True),
    # Epsilon 7.6 and 2.4 for 10 epochs in batches of 256 of 20 000.
    "DP-SGD 0.65": private(0.65),
    "DP-SGD 1.0": private(1.0),
}


@cache
def loaded(name: str, split: str) -> sp.data.Dataset:
    return sp.data.load(name, split=split)


def network(scale: Scale, row: Row, device: str) -> sp.Task:
    task = scale.network()
    return (with_group_norm(task) if row.group_norm else task).to(device=device)


def with_group_norm(task: sp.Task) -> sp.Task:
    """The same network with group normalisation, which keeps examples apart."""
    model = copy.deepcopy(task.model)
    for name, layer in batchnorm_layers(model).items():
        channels = layer.num_features
        model.set_submodule(name, nn.GroupNorm(min(32, channels), channels))
    return replace(task, model=model, name=f"{task.name}, group norm")


def utility(name: str, scale: Scale, device: str) -> Result:
    """Train behind the defense, at every learning rate that is tried."""
    row = ROWS[name]
    defense = row.defend(scale.batch_size)
    seen, unseen = loaded(scale.data, "train"), loaded(scale.data, "test")
    is_private = noise_multiplier(defense) is not None
    # Poisson batches differ in size, and each size would be timed anew.
    torch.backends.cudnn.benchmark = not is_private
    account = importlib.util.find_spec("opacus") is not None
    tried = []
    for share in row.lr:
        plan = Training(
            epochs=scale.epochs,
            batch_size=scale.batch_size,
            lr=scale.lr * share,
            weight_decay=5e-4,
            schedule=OneCycle(),
            sampling="poisson" if is_private else "shuffled",
            augment=scale.augment,
        )
        got = train(
            network(scale, row, device),
            seen.batch(scale.examples),
            held_out=unseen.batch(scale.held_out),
            plan=plan,
            defense=defense,
            precision="tf32" if is_private else "bf16",
            delta=DELTA if account else None,
            rng=sp.rng(0),
        )
        steps = plan.count_steps(scale.examples)
        tried.append(got.plain() | {"lr": plan.lr, "steps": steps})
    losses = [one["training_loss"] for one in tried]
    best = min(range(len(tried)), key=lambda i: (losses[i] is None, losses[i] or 0.0))
    return tried[best] | {
        "noise_multiplier": noise_multiplier(defense),
        "sample_rate": scale.batch_size / scale.examples,
        "tried": [{key: one[key] for key in ("lr", "accuracy", "training_loss")} for one in tried],
    }


def attack(name: str, scale: Scale, device: str) -> Result:
    """Attack the first people of the test set behind the defense, with everything there is."""
    row = ROWS[name]
    task, defense = network(scale, row, device), row.defend(scale.attacked)
    client = sp.Client(sp.Gradient(), defense)
    images = loaded(scale.data, "test")
    starts = range(0, scale.people, scale.attacked)
    batches = [images.batch(scale.attacked, start=start) for start in starts]
    threat = sp.Threat.strongest()
    seen = [
        threat.observe(client, task, batch.to(device=device), rng=sp.rng(i))
        for i, batch in enumerate(batches)
    ]
    records, seconds = [], {}
    for label, adversary in attacks(task, defense, scale).items():
        began = time.perf_counter()
        try:
            guesses = list(attacked(adversary, seen))
        except NotApplicable as error:
            print(f"{label}: {error}", flush=True)
            continue
        seconds[label] = round(time.perf_counter() - began, 1)
        for start, batch, guess in zip(starts, batches, guesses, strict=True):
            people = tuple(range(start, start + len(batch)))
            records.append(
                Record(
                    data=scale.data,
                    people=people,
                    model=task.name,
                    local=repr(client.local),
                    defense=name,
                    threat=repr(threat),
                    attack=label,
                    seed=0,
                    scores=scored(guess, batch),
                )
            )
    return {"seconds": seconds, "records": [record.plain() for record in records]}


def attacks(task: sp.Task, defense: Protection, scale: Scale) -> dict[str, Attack]:
    """A weak prior and a strong one, and the adapted adversary where there is one."""
    options = {"steps": scale.steps, "restarts": 1, "tv": 1e-4, "layerwise": 2.5}
    with_statistics = bool(batchnorm_layers(task.model))
    recipe = "gradattack_strongest" if with_statistics else "inverting_gradients"
    layerwise = getattr(sp.attacks, recipe)(**options)
    joint = sp.attacks.inverting_gradients(steps=scale.steps, restarts=1, tv=1e-2)
    found = {f"{recipe}, layerwise 2.5": layerwise, "inverting_gradients": joint}
    adaptive = getattr(sp.attacks, "adaptive", None)
    if callable(adaptive) and defense != sp.chain():
        found[f"{recipe}, adaptive"] = adaptive(layerwise, defense)
    return found


def attacked(adversary: Attack, seen: Sequence[sp.Observation]) -> Iterator[sp.Reconstruction]:
    """Side by side where that can be done, since a card is better used."""
    keys = [sp.rng(1000 + i) for i in range(len(seen))]
    many = getattr(adversary, "many", None)
    if many is None or seen[0].mixing is not None:
        return (adversary(one, rng=key) for one, key in zip(seen, keys, strict=True))
    return iter(many(seen, rngs=keys))


def scored(guess: sp.Reconstruction, batch: sp.Batch) -> dict[str, tuple[float, ...]]:
    paired = pair(sp.Reconstruction(guess.inputs.cpu().float()), batch)
    fitting = {metric.name for metric in applicable(paired)}
    names = [name for name in ("psnr", "lpips") if name in fitting]
    return {name: tuple(METRICS[name](paired).tolist()) for name in names}


def table(out: Path, suffix: str) -> Result:
    """Accuracy beside leakage, the front, and the ranking at matched utility."""
    costs = rows_of(out / f"defenses-utility{suffix}.json")
    leaks = rows_of(out / f"defenses-attack{suffix}.json")
    rows = {}
    for name in [name for name in ROWS if name in costs and name in leaks]:
        records = [Record(**record) for record in leaks[name]["records"]]
        cost = costs[name]
        row = {
            "accuracy": cost["accuracy"][-1],
            "loss": cost["loss"][-1],
            "training_loss": cost["training_loss"],
            "overhead": round(cost["overhead"], 3),
            "epsilon": cost["epsilon"] or account(cost),
        }
        for metric in records[0].scores:
            [leakage] = leakages(records, metric)
            row[f"{metric}_worst"] = round(leakage.worst, 4)
            row[f"{metric}_mean"] = round(leakage.mean, 4)
            row[f"{metric}_attacks"] = leakage.attacks
        rows[name] = row
    choices = [Choice(name, row["psnr_mean"], row["accuracy"]) for name, row in rows.items()]
    level = max(choice.utility for choice in choices) - 0.05
    return {
        "rows": rows,
        "front": [choice.label for choice in pareto_front(choices)],
        "within_5_points": [choice.label for choice in ranked(choices, utility=level)],
    }


def account(cost: Result) -> float | None:
    """Epsilon of a training that was made where Opacus was not."""
    if cost["noise_multiplier"] is None or importlib.util.find_spec("opacus") is None:
        return None
    return sp.epsilon(
        noise_multiplier=cost["noise_multiplier"],
        sample_rate=cost["sample_rate"],
        steps=cost["steps"],
        delta=DELTA,
    )


def rows_of(path: Path) -> dict[str, Result]:
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else {}


PARTS = {"utility": utility, "attack": attack}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", required=True, choices=[*PARTS, "table"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scale", default="full", choices=list(SCALES))
    parser.add_argument("--only", default=",".join(ROWS), help="rows, by comma")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result")
    options = parser.parse_args(arguments)
    scale, suffix = SCALES[options.scale], "" if options.scale == "full" else f"-{options.scale}"
    if options.part == "table":
        print(save(f"defenses{suffix}", "cpu", table(options.out, suffix), options.out))
        return
    file = f"defenses-{options.part}{suffix}"
    rows = rows_of(options.out / f"{file}.json")
    for name in options.only.split(","):
        began = time.perf_counter()
        rows[name] = PARTS[options.part](name, scale, options.device)
        rows[name]["wall_seconds"] = round(time.perf_counter() - began, 1)
        # After every row, so that nothing is lost to a time limit.
        path = save(file, options.device, {"scale": options.scale, "rows": rows}, options.out)
        shown = {k: v for k, v in rows[name].items() if k not in ("records", "loss", "evaluated")}
        print(name, shown, flush=True)
    print(path)


if __name__ == "__main__":
    main()
