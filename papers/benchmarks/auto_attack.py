"""`auto` beside fixed recipes at the same number of steps, and its forecasts beside what came.

    python -m benchmarks.auto_attack --device cuda --people 4
    python -m benchmarks.auto_attack --merge FILE ...       one record and table of several runs

Each cell is a network, a batch size and a client. `auto` rehearses once for all updates of a cell,
on public people; what it takes for that is added to the steps of every fixed recipe, so that all
have as many in all. The recipes stand in the table with hindsight. The portfolio of `auto` was
chosen after a look at some of these networks with other weights and at other people, among them
all that `--tuning` attacks. Without it the seeds are new, and so are the people. A run that was
cut off goes on with what it had written to `--out`, on any device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

import seepage as sp
from benchmarks.provenance import RESULTS, save
from seepage.attacks import adaptive
from seepage.attacks.labels._infer_labels import InferLabels
from seepage.core import (
    Attack,
    LocalComputation,
    Observation,
    Protection,
    Reconstruction,
    Rng,
    Task,
)
from seepage.core._attack import attack_many
from seepage.core._reconstruction import Race
from seepage.core.errors import SeepageError
from seepage.data._dataset import Dataset
from seepage.rehearsal import EFFORTS, Auto, PublicData
from seepage.rehearsal._rehearse import count_steps
from seepage.rehearsal._simulated_clients import Rehearsal

FIXED: dict[str, Callable[[int], Attack]] = {
    "inverting, tv 1e-4": lambda n: sp.attacks.inverting_gradients(steps=n, restarts=1, tv=1e-4),
    "inverting, tv 1e-2": lambda n: sp.attacks.inverting_gradients(steps=n, restarts=1, tv=1e-2),
    "inverting, layers 2.5": lambda n: sp.attacks.inverting_gradients(
        steps=n, restarts=1, tv=1e-4, layerwise=2.5
    ),
    "teacher forced": lambda n: sp.attacks.teacher_forced(steps=n),
    "systematic": lambda n: sp.attacks.systematic(steps=n),
}
NONE = "none"
# The first person who is attacked, and the first seed of untrained networks: nobody looked at
# these while `auto` was written, but for the heart beats, which earlier grids had with other
# weights. The recorded grid has people from 1090 on, 240, and 370, and seeds from 310 on.
START, SEED = {"cifar10": 1140, "ecg": 240, "voters": 380}, 410
TUNED_START, TUNED_SEED = {"cifar10": 100, "ecg": 100, "voters": 100}, 0
CLIENTS: dict[str, tuple[LocalComputation, Protection]] = {
    NONE: (sp.Gradient(), sp.chain()),
    "prune 0.9": (sp.Gradient(), sp.Prune(0.9)),
    "noise 0.01": (sp.Gradient(), sp.AddGaussian(0.01)),
    "dp-sgd": (sp.Gradient(), sp.dp_sgd(max_norm=1.0, noise_multiplier=0.01, batch_size=1)),
    "clip 1": (sp.Gradient(), sp.Clip(1.0)),
    "mixup 2": (sp.Gradient(), sp.MixUp(2)),
    "fedavg 5": (sp.FedAvg(steps=5, lr=0.01), sp.chain()),
}


class Recurrent(nn.Module):
    """A GRU on heart beats, which reads ten samples at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(10, 32, batch_first=True)
        self.head = nn.Linear(32, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        states, _ = self.cells(inputs.unflatten(-1, (-1, 10)).squeeze(1))
        return self.head(states[:, -1])


class Patches(nn.Module):
    """A small ViT: patches of 4 x 4, two blocks of attention."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(1, 64, width))
        self.query, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = self.patches(inputs).flatten(2).transpose(1, 2) + self.positions
        q, k, v = self.query(self.first(tokens)).chunk(3, -1)
        seen = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        tokens = tokens + self.mix(seen)
        tokens = tokens + self.narrow(nn.functional.gelu(self.wide(self.second(tokens))))
        return self.head(tokens.mean(1))


def pooled() -> nn.Module:
    """Conv-BatchNorm-ReLU-MaxPool, twice, and a linear head."""
    blocks = [
        layer
        for before, after in ((3, 32), (32, 64))
        for layer in (
            nn.Conv2d(before, after, 3, padding=1),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 64, 10))


def own(make: Callable[[], nn.Module], seed: int, data: Dataset, name: str) -> Task:
    """A network of this file, with weights drawn from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return sp.Task(make().eval(), sp.cross_entropy, data.domain, name=name)


def networks(
    held: dict[str, Dataset], first_seed: int = SEED
) -> dict[str, tuple[str, Callable[[], Task]]]:
    """The data set and the maker of every network, by name."""
    cifar, ecg = held["cifar10"], held["ecg"]

    def named(name: str, **options: Any) -> tuple[str, Callable[[], Task]]:
        data = options.pop("data", "cifar10")
        given = {"domain": held[data].domain, "classes": held[data].classes, **options}
        given["seed"] += first_seed
        return data, lambda: sp.zoo.build(name, options=given)

    def trained() -> Task:
        task = sp.zoo.build("resnet20", options={"domain": cifar.domain, "classes": 10})
        folder = sp.data.data_root() / "weights"
        return sp.zoo.load_weights(task, folder / "cifar10_resnet20-12fca82f.safetensors")

    return {
        "mlp": named("mlp", hidden=[256], seed=0),
        "lenet A": named("lenet", seed=0),
        "lenet B": named("lenet", seed=1),
        "cnn3-v3": named("cnn3-v3", seed=0),
        "convnet-16": named("convnet", width=16, seed=0),
        "conv-bn-pool A": (
            "cifar10",
            lambda: own(pooled, first_seed, cifar, "conv-bn-pool A"),
        ),
        "conv-bn-pool B": (
            "cifar10",
            lambda: own(pooled, first_seed + 1, cifar, "conv-bn-pool B"),
        ),
        "resnet20 A": named("resnet20", seed=0),
        "resnet20 B": named("resnet20", seed=1),
        "resnet20, trained": ("cifar10", trained),
        "resnet18": named("resnet18", seed=0),
        "vit": ("cifar10", lambda: own(Patches, first_seed, cifar, "vit")),
        "gru": ("ecg", lambda: own(Recurrent, first_seed, ecg, "gru")),
        "table mlp": named("mlp", data="voters", hidden=[64, 64], seed=0),
    }


@dataclass
class Cell:
    """One network, batch size and client, and the mean score of every attack on it."""

    network: str
    batch_size: int
    client: str
    means: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


def run_cell(
    cell: Cell, held: dict[str, Dataset], options: argparse.Namespace, keep: Callable[[], object]
) -> None:
    """Attack the same updates with `auto` and with every recipe; keep what there is after each."""
    starts, first_seed = (TUNED_START, TUNED_SEED) if options.tuning else (START, SEED)
    data_name, make = networks(held, first_seed)[cell.network]
    start = starts[data_name]
    data, task = held[data_name], make().to(device=torch.device(options.device))
    client, size, count = sp.Client(*CLIENTS[cell.client]), cell.batch_size, options.people
    people = [data.take(range(start + size * i, start + size * (i + 1))) for i in range(count)]
    # Public people are taken from the end of the data set.
    others = data.take(range(len(data) - 200, len(data)))
    assert start + size * count <= len(data) - 200, "nobody who is attacked may be public"
    public = sp.PublicData(others.inputs, others.labels)
    threat = sp.Threat(knows_labels=True)
    device = torch.device(options.device)
    seen = [
        threat.observe(client, task, batch.to(device=device), rng=sp.rng(100 + i))
        for i, batch in enumerate(people)
    ]
    # A network may be so sure of somebody that nothing is left to train, and nothing to attack.
    told = [i for i, one in enumerate(seen) if any(bool(t.any()) for t in one.update)]
    if len(told) < count:
        cell.notes["left out"] = count - len(told)
        seen, people, count = [seen[i] for i in told], [people[i] for i in told], len(told)
    keys = [sp.rng(200 + i) for i in range(count)]
    judge = Rehearsal(tuple(seen), tuple(people), task.domain)
    if judge.metric.name == "psnr":
        mean = [Reconstruction(others.inputs.mean(0).expand_as(one.inputs)) for one in people]
        cell.notes["mean of public people"] = fmean(judge.score(mean))
    if "auto" not in cell.means and not run_auto(cell, seen, judge, public, keys, options):
        return
    steps = cell.notes["steps"]
    keep()
    for name, recipe in FIXED.items():
        if name in cell.means or name in cell.notes.get("refused", ()):
            continue
        attack = InferLabels(recipe(steps))
        guesses = attack_many(adaptive(attack) if client.chain.links else attack, seen, rngs=keys)
        errors = [str(one).splitlines()[0] for one in guesses if isinstance(one, SeepageError)]
        if errors:
            cell.notes.setdefault("refused", {})[name] = errors[0]
        else:
            cell.means[name] = fmean(judge.score(guesses))
        keep()


def run_auto(
    cell: Cell,
    seen: list[Observation],
    judge: Rehearsal,
    public: PublicData,
    keys: list[Rng],
    options: argparse.Namespace,
) -> bool:
    """Attack with `auto`, and note its race; False if it fails."""
    effort = replace(EFFORTS["quick"], steps=options.steps)
    began = time.perf_counter()
    found = attack_many(Auto(effort, public), seen, rngs=keys)
    cell.notes["seconds"] = round(time.perf_counter() - began, 1)
    errors = [str(one) for one in found if isinstance(one, SeepageError)]
    if errors:
        cell.notes["error"] = errors[0]
        return False
    cell.means["auto"] = fmean(judge.score(found))
    # Behind noise there may be two: of updates that stand out from it, and of those that do not.
    races = [one.trace.race for one in found]
    kinds = dict.fromkeys(races)
    spent = {race: count_steps(race, effort.plan(cell.batch_size)[0]) for race in kinds}
    cell.notes["chosen"] = [name for race in kinds for name in race.chosen]
    cell.notes["rule"] = ", ".join(dict.fromkeys(race.rule for race in kinds))
    cell.notes["rising"] = any(race.rising for race in kinds)
    cell.notes["rehearsed"] = {t.attack: t.mean for race in kinds for t in race.trials if t.scores}
    promised = [mean for race in races for mean in _last_mean(race)]
    if promised:
        cell.notes["promised"] = fmean(promised)
    if all(race.forecast is not None for race in races):
        scores = judge.score(found)
        kept = [races[i // cell.batch_size].forecast.covers(s) for i, s in enumerate(scores)]
        cell.notes["forecast"] = [sum(kept), len(kept)]
    # A rehearsal is shared by the updates of its kind.
    taken = sum(spent.values()) + sum(options.steps - spent[race] for race in races)
    cell.notes["steps"] = taken // len(races)
    return True


def _last_mean(race: Race) -> list[float]:
    """What the first of the chosen brought back in the last round; nothing if it was computed."""
    return [t.mean for t in race.trials if t.scores and t.attack == race.chosen[0]][-1:]


def load_begun(options: argparse.Namespace) -> dict[tuple[str, int, str], Cell]:
    """The cells of a run that was cut off."""
    if options.out is None or not (file := options.out / "auto_attack.json").exists():
        return {}
    cells = [
        Cell(*(one[f.name] for f in fields(Cell))) for one in json.loads(file.read_text())["cells"]
    ]
    return {(cell.network, cell.batch_size, cell.client): cell for cell in cells}


def list_cells(wanted: str) -> list[Cell]:
    """Every network alone with one person; some with more people and behind defenses."""
    names = list(networks(load_data()))
    cells = [Cell(name, 1, NONE) for name in names]
    several = ("conv-bn-pool A", "resnet20, trained", "lenet A", "convnet-16")
    cells += [Cell(name, size, NONE) for size in (4, 8) for name in several]
    defended = [client for client in CLIENTS if client != NONE]
    # Mixing needs several people.
    cells += [Cell(n, 4 if "mixup" in c else 1, c) for c in defended for n in several[:2]]
    return [cell for cell in cells if wanted in f"{cell.network}/{cell.batch_size}/{cell.client}"]


def load_data() -> dict[str, Dataset]:
    """The test people of every data set."""
    return {
        "cifar10": sp.data.load("cifar10", split="test"),
        "ecg": sp.data.load("ecg"),
        "voters": sp.data.load("voters"),
    }


def keep(cells: list[Cell], options: argparse.Namespace) -> None:
    """Write down what there is so far."""
    save("auto_attack", options.device, {"cells": [vars(c) for c in cells]}, options.out)


def merge(files: list[Path], out: Path) -> None:
    """Put the whole cells of several runs into one record, and print its table and counts."""
    runs = [json.loads(file.read_text()) for file in files]
    begun = [
        {"command": run["command"], "commit": run["commit"], **cell}
        for run in runs
        for cell in run["cells"]
        if "auto" in cell["means"]
    ]
    cells = [cell for cell in begun if _count_recipes(cell) == len(FIXED)]
    # A name may be part of another's, so that a cell was run twice.
    cells = list({(c["network"], c["batch_size"], c["client"]): c for c in cells}.values())
    cells.sort(key=lambda cell: (cell["network"], cell["batch_size"], cell["client"]))
    command = "python -m benchmarks.auto_attack, cell by cell"
    machine = {**runs[0]["machine"], "load": "several at once"}
    record = {"command": command, "machine": machine, "cells": cells}
    record["cut off"] = [cell for cell in begun if _count_recipes(cell) < len(FIXED)]
    (out / "auto_attack.json").write_text(json.dumps(record, indent=1) + "\n")
    behind = [_print_row(cell) for cell in cells]
    kept = [cell["notes"]["forecast"] for cell in cells if "forecast" in cell["notes"]]
    both = [pair for cell in cells if (pair := _find_rehearsed(cell)) is not None]
    print(
        f"{sum(d > 0 for d in behind)} of {len(cells)} above, "
        f"{sum(d >= -0.5 for d in behind)} within 0.5 or above; forecasts kept for "
        f"{sum(k for k, _ in kept)} of {sum(n for _, n in kept)} people; rank correlation of what "
        f"the rehearsal had and what came, over {len(both)} cells: {_correlate(both):.2f}"
    )


def _count_recipes(cell: dict[str, Any]) -> int:
    """How many recipes attacked, or refused to."""
    return len(cell["means"]) - 1 + len(cell["notes"].get("refused", ()))


def _print_row(cell: dict[str, Any]) -> float:
    """Print a row of the table; return by how much `auto` is ahead."""
    means = dict(cell["means"])
    ours = means.pop("auto")
    best = max(means, key=means.__getitem__)
    ahead = ours - means[best]
    print(
        f"| {cell['network']} | {cell['batch_size']} | {cell['client']} | {ours:.1f} "
        f"| {means[best]:.1f} ({best}) | {ahead:+.1f} |"
    )
    return ahead


def _find_rehearsed(cell: dict[str, Any]) -> tuple[float, float] | None:
    """What the chosen search brought back in the rehearsal, and `auto` of the people."""
    raced = cell["notes"].get("rehearsed", {}).get(cell["notes"]["chosen"][0])
    raced = cell["notes"].get("promised", raced)
    return None if raced is None else (raced, cell["means"]["auto"])


def _correlate(pairs: list[tuple[float, float]]) -> float:
    """Spearman's rank correlation."""
    found: float = spearmanr(*zip(*pairs, strict=True)).statistic
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--people", type=int, default=4, help="updates of each cell")
    parser.add_argument("--steps", type=int, default=3_000, help="of auto, for one update")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after this")
    parser.add_argument("--tuning", action="store_true", help="other people and weights")
    parser.add_argument("--merge", type=Path, nargs="+", help="records to put together")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.merge:
        merge(options.merge, options.out or RESULTS)
        return
    held, began, cells = load_data(), time.monotonic(), []
    begun = load_begun(options)
    for cell in list_cells(options.only):
        if time.monotonic() - began > options.seconds:
            break
        cell = begun.get((cell.network, cell.batch_size, cell.client), cell)
        cells.append(cell)
        run_cell(cell, held, options, lambda: keep(cells, options))
        best = max((v for k, v in cell.means.items() if k != "auto"), default=float("nan"))
        ours = cell.means.get("auto", float("nan"))
        print(
            f"{cell.network:22} B={cell.batch_size} {cell.client:10} auto {ours:6.2f} "
            f"best fixed {best:6.2f} {cell.notes}",
            flush=True,
        )
        keep(cells, options)


if __name__ == "__main__":
    main()
