"""How much of the features of a ResNet-18 comes back through a wide head: 001, Table 2.

    python -m benchmarks.feature_recovery --only undefended|trained|defenses|width|local
                                          [--steps 782] [--device cuda]

Needs CIFAR-10 in SEEPAGE_DATA. The batch is test images 0 to B - 1 behind `wide_head_resnet18`
with 512 features and 16384 neurons, of which 14336 are random. "error" is the paper's: the mean
norm of the part of a true feature, of length one, that lies outside the recovered span. "cosine"
is that of each recovered feature with its own, paired one to one afterwards. "public" is the
error of a span that needs no update: the mean feature of 64 other images.

The network is untrained; "trained" repeats the first part after `--steps` of 64 images, of as many
training images as they see once and 20 000 at most. Two threads train it, and it goes on where it
was interrupted if `--keep` names a folder. "local" asks it which learning rate of local steps does
to the moments what the paper prints, with batch statistics known as in its table; both parts in one
run share the training. "width" also draws its errors, as docs/pictures/feature_width.svg or beside
the result if `--out` names a folder.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import seepage as sp
from benchmarks.provenance import RESULTS, save
from benchmarks.width_chart import chart, slopes
from seepage.attacks.feature_recovery import ExactFeatures, Features, TensorFeatures
from seepage.audit._run_spec import pick_device
from seepage.core import LocalComputation, Protection
from seepage.core._checkpoint import checkpointing
from seepage.utility import Training, Utility, train

LAYER = "fc.hidden"
OTHERS = 64, 1000
PICTURES = RESULTS.parents[1] / "docs" / "pictures"
TENSOR, REDUCED, EXACT = TensorFeatures(), TensorFeatures(reduced=True), ExactFeatures()
# The paper gives no learning rate for its local steps; at 1e-2 the first of them overshoots.
LR = 1e-4
PAPER = {
    "none": (0.171, 0.171, 0.174, 0.175),
    "Prune(0.3)": (0.173, 0.171, 0.186, 0.188),
    "Prune(0.5)": (0.173, 0.218, 0.277, 0.266),
    "Prune(0.7)": (0.248, 0.443, 0.483, 0.425),
    "Clip(2.0)": (0.173, 0.169, 0.174, 0.179),
    "Clip(4.0)": (0.173, 0.169, 0.175, 0.179),
    "Clip(8.0)": (0.173, 0.170, 0.177, 0.179),
    "AddGaussian(0.001)": (0.172, 0.166, 0.190, 0.198),
    "AddGaussian(0.01)": (0.174, 0.252, 0.252, 0.499),
    "AddGaussian(0.1)": (0.259, 0.850, 0.714, 0.953),
    "3 steps": (0.181, 0.186, 0.192, 0.202),
    "5 steps": (0.213, 0.210, 0.218, 0.223),
}


@dataclass(frozen=True)
class Case:
    """One row."""

    people: int
    method: TensorFeatures | ExactFeatures
    name: str = "none"
    defense: Protection = field(default_factory=sp.chain)
    local: LocalComputation = field(default_factory=sp.Gradient)
    neurons: int = 16384
    trained: int = 2048
    threat: sp.Threat = field(default_factory=lambda: sp.Threat(knows_labels=True))


def undefended() -> Iterator[Case]:
    for people in (1, 2, 4, 8, 16, 32):
        for method in (TENSOR, REDUCED, EXACT):
            yield Case(people, method)


def defended() -> Iterator[Case]:
    defenses = [sp.Prune(p) for p in (0.3, 0.5, 0.7)]
    # Clipped updates differ in scale alone, which no method sees: one threshold stands for all.
    defenses += [sp.Clip(2.0)]
    defenses += [sp.AddGaussian(s) for s in (0.001, 0.01, 0.1)]
    for people in (1, 2, 4, 8):
        for method in (TENSOR, EXACT):
            for defense in defenses:
                yield Case(people, method, repr(defense), defense)
            for steps in (3, 5):
                yield Case(people, method, f"{steps} steps", local=sp.FedAvg(lr=LR, steps=steps))


def widths() -> Iterator[Case]:
    for power in range(11, 17):
        for people in (1, 4):
            for method in (TENSOR, REDUCED):
                yield Case(people, method, neurons=2**power, trained=0)


def local() -> Iterator[Case]:
    exact = sp.Threat(knows_labels=True, batchnorm="exact")
    for people in (1, 2, 4, 8):
        yield Case(people, TENSOR, threat=exact)
        for steps in (3, 5):
            for lr in (1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
                average = sp.FedAvg(lr=lr, steps=steps)
                yield Case(people, TENSOR, f"{steps} steps", local=average, threat=exact)


PARTS = {
    "undefended": undefended,
    "trained": undefended,
    "defenses": defended,
    "width": widths,
    "local": local,
}
TRAINED = {"trained", "local"}


@lru_cache(maxsize=1)
def untrained(neurons: int, trained: int, device: str) -> sp.Task:
    return sp.zoo.wide_head_resnet18(neurons=neurons, trained=trained).to(device=device)


def schooled(steps: int, keep: Path | None, device: str) -> Utility:
    """The victim after so many steps; its random neurons stay as they were drawn."""
    seen = sp.data.load("cifar10", split="train").batch(min(20_000, 64 * steps))
    unseen = sp.data.load("cifar10").batch(500, start=1000)
    plan = Training(steps=steps, batch_size=64, lr=0.1, momentum=0.9)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with nullcontext() if keep is None else checkpointing(keep, every=10):
        made = train(
            sp.zoo.wide_head_resnet18().to(device=device),
            seen,
            held_out=unseen,
            plan=plan,
            delta=None,
            rng=sp.rng(0),
        )
    torch.set_num_threads(threads)
    return made


def features(task: sp.Task, inputs: Tensor) -> Tensor:
    """What the wide layer reads, of length one."""
    seen: list[Tensor] = []
    layer = dict(task.network.named_modules())[LAYER]
    handle = layer.register_forward_pre_hook(lambda _, read: seen.append(read[0]))
    with torch.no_grad():
        task.outputs(task.parameters, inputs)
    handle.remove()
    return torch.nn.functional.normalize(seen[0].double(), dim=1).cpu()


def outside(truth: Tensor, span: Tensor) -> Tensor:
    return (truth - (truth @ span) @ span.T).norm(dim=1)


def cosines(truth: Tensor, found: Features) -> list[float]:
    """Of each person with the feature paired to it; zero for whom nothing came back."""
    table = truth @ torch.nn.functional.normalize(found.values.double().cpu(), dim=1).T
    rows, columns = linear_sum_assignment(table.abs().numpy(), maximize=True)
    own = torch.zeros(len(truth), dtype=truth.dtype)
    own[rows] = table[rows, columns].abs()
    return own.tolist()


def run(case: Case, victim: Utility | None, device: str) -> dict[str, object]:
    data = sp.data.load("cifar10")
    task = victim.task if victim else untrained(case.neurons, case.trained, device)
    batch, others = (
        data.batch(n, start=s).to(device=device) for n, s in ((case.people, 0), OTHERS)
    )
    client = sp.Client(case.local, case.defense)
    seen = case.threat.observe(client, task, batch, rng=sp.rng(0))
    began = time.perf_counter()
    try:
        found = case.method.recover(seen, rng=sp.rng(1))
    except sp.SeepageError as error:
        # Somebody without a gradient; the others come back when the rank may speak.
        print(error)
        found = case.method.recover(replace(seen, batch_size=None, labels=None), rng=sp.rng(1))
    # A number from the card says that it is done.
    residual = float(found.residual)
    seconds = time.perf_counter() - began
    truth = features(seen.task, batch.inputs)
    mean = features(seen.task, others.inputs).mean(0, keepdim=True)
    public = torch.nn.functional.normalize(mean, dim=1).T
    own = cosines(truth, found)
    column = {1: 0, 2: 1, 4: 2, 8: 3}.get(case.people)
    error = float(outside(truth, found.span.double().cpu()).mean())
    return {
        "people": case.people,
        "method": repr(case.method) if case.method is not EXACT else "ExactFeatures()",
        "defense": case.name,
        "local": repr(case.local),
        "neurons": case.neurons,
        "error": round(error, 6),
        "paper": None if column is None or case.trained == 0 else PAPER[case.name][column],
        "public": round(float(outside(truth, public).mean()), 4),
        "cosine_mean": round(sum(own) / len(own), 6),
        "cosine_least": round(min(own), 6),
        "above_0.9999": sum(value > 0.9999 for value in own),
        "found": len(found.values),
        "residual": residual,
        "seconds": round(seconds, 1),
    }


def record(
    part: str, victim: Utility | None, device: str, options: argparse.Namespace
) -> list[dict[str, object]]:
    """Run a part; it is saved after every row, so that a run that is stopped leaves what it has."""
    rows: list[dict[str, object]] = []
    for case in PARTS[part]():
        rows.append(run(case, victim, device))
        print(rows[-1], flush=True)
        content: dict[str, object] = {"local_lr": LR, "rows": rows}
        if part == "width":
            content["slopes"] = slopes(rows)
        if victim is not None:
            content["victim"] = {"steps": options.steps, "batch_size": 64, **victim.plain()}
        path = save(f"feature_recovery-{part}", device, content, options.out)
    print(path)
    return rows


def draw(rows: list[dict[str, object]], folder: Path) -> None:
    for line in slopes(rows):
        print(line)
    picture = folder / "feature_width.svg"
    picture.write_text(chart(rows, inputs=512) + "\n", encoding="utf-8")
    print(picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", required=True, nargs="+", choices=list(PARTS))
    parser.add_argument("--steps", type=int, default=782, help="of training")
    parser.add_argument("--keep", type=Path, default=None, help="folder for its checkpoints")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    parser.add_argument("--device", default="cpu", choices=["auto", "cpu", "cuda"])
    options = parser.parse_args()
    device = pick_device(options.device)
    victim = None
    if TRAINED & set(options.only):
        victim = schooled(options.steps, options.keep, device)
    for part in options.only:
        rows = record(part, victim if part in TRAINED else None, device, options)
        if part == "width":
            draw(rows, options.out or PICTURES)


if __name__ == "__main__":
    main()
