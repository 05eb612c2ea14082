"""Restart-iterations per second, Seepage and a peer side by side in one run.

    python -m benchmarks.speed --device cuda [--peer] [--fuse]

With `--peer` the peer `breaching` must be importable. Seepage's steps are timed after capture and
warm-up, the peer's by the difference of two runs, so neither is charged for its set-up. `--fuse`
times steps compiled to fewer kernels as well, and how long it took until they were. On a CPU,
whose clock and neighbours vary more, both take three turns and the median of each counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

import seepage as sp
from benchmarks.provenance import save
from seepage.core._progress import listen
from seepage.search import Engine

TV = 1e-4
LONG = 4_000


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    model: str
    batch_size: int
    restarts: int
    giga: float
    local: sp.FedAvg | None = None
    steps: int = 250


# `giga` is GFLOP of one image and iteration, seven times a forward pass: the pass itself, two input
# gradients, the weight gradient, and three convolutions to differentiate that; times local steps.
ON_CARD = (
    Case("ConvNet-64, B=1, one restart", "convnet64", 1, 1, 26.0),
    Case("ConvNet-64, B=1, 32 restarts", "convnet64", 1, 32, 26.0),
    Case("ResNet-18 (CIFAR), B=1, one restart", "resnet18", 1, 1, 7.8),
    Case("ResNet-18 (CIFAR), B=1, 32 restarts", "resnet18", 1, 32, 7.8),
    Case("ResNet-18 (CIFAR), B=8, 32 restarts", "resnet18", 8, 32, 7.8),
    Case(
        "ConvNet-64, FedAvg 5 steps, B=1",
        "convnet64",
        1,
        1,
        130.0,
        sp.FedAvg(lr=1e-4, steps=5),
    ),
)
ON_CPU = (
    Case("LeNet, B=1, one restart", "lenet", 1, 1, 0.0, steps=600),
    Case("LeNet, B=1, eight restarts", "lenet", 1, 8, 0.0, steps=600),
    Case("ConvNet-16, B=1, one restart", "convnet16", 1, 1, 0.0, steps=120),
    Case("ConvNet-16, B=1, eight restarts", "convnet16", 1, 8, 0.0, steps=40),
)


def build(name: str, device: str) -> sp.Task:
    photos = sp.data.load("photos")
    factories = {
        "convnet64": lambda: sp.zoo.convnet(width=64, domain=photos.domain),
        "convnet16": lambda: sp.zoo.convnet(width=16, domain=photos.domain),
        "resnet18": lambda: sp.zoo.resnet18(domain=photos.domain),
        "lenet": lambda: sp.zoo.lenet(domain=photos.domain),
    }
    return factories[name]().to(device=torch.device(device))


def observe(task: sp.Task, case: Case, device: str) -> sp.Observation:
    batch = sp.data.load("photos").batch(case.batch_size).to(device=torch.device(device))
    client = sp.Client(case.local or sp.Gradient())
    return sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(0))


@dataclass(frozen=True)
class Pace:
    """How one run went: restart-iterations per second, seconds before the first, peak GiB."""

    rate: float
    before: float
    peak: float


class Enough(Exception):  # noqa: N818 - it ends a run that has been timed
    """Raised by who listens."""


def ours(case: Case, seen: sp.Observation, *, fuse: bool) -> Pace:
    """Time the first steps of a long run, from the second report of its progress on."""
    on_card = next(iter(seen.update)).is_cuda
    if on_card:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    heard: list[tuple[int, float]] = []

    def hear(step: int, *_: float) -> None:
        # A report reads the objective, so all steps before it are done by then.
        heard.append((step, time.perf_counter()))
        if step >= case.steps:
            raise Enough

    attack = sp.attacks.inverting_gradients(
        steps=LONG,
        restarts=case.restarts,
        tv=TV,
        engine=Engine(rows=case.restarts, fuse=fuse),
    )
    began = time.perf_counter()
    with listen(hear), suppress(Enough):
        attack(seen, rng=sp.rng(0))
    (_, ready), (first, start), *_, (last, end) = heard
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_card else 0.0
    return Pace(case.restarts * (last - first) / (end - start), ready - began, peak)


def matrix_rate() -> float:
    """TFLOP/s of a large TF32 matrix product."""
    torch.backends.cuda.matmul.allow_tf32 = True
    a = torch.randn(8192, 8192, device="cuda")
    for _ in range(3):
        a @ a
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
    return 10 * 2 * 8192**3 / (time.perf_counter() - began) / 1e12


def timed(case: Case, options: argparse.Namespace) -> dict[str, list[Pace]]:
    """Everybody in turn, as often as there are turns."""
    task = build(case.model, options.device)
    seen = observe(task, case, options.device)
    paces: dict[str, list[Pace]] = {"plain": [], "fused": [], "peer": []}
    for _ in range(1 if options.device == "cuda" else 3):
        paces["plain"].append(ours(case, seen, fuse=False))
        if options.fuse:
            paces["fused"].append(ours(case, seen, fuse=True))
        if options.peer:
            from benchmarks.peer import iterations_per_second

            theirs = iterations_per_second(
                task, seen, tv=TV, steps=case.steps // 2, local=case.local
            )
            paces["peer"].append(Pace(theirs, 0.0, 0.0))
    return paces


def row(case: Case, paces: dict[str, list[Pace]], tf32: float | None) -> dict[str, object]:
    """One line of the table."""
    plain, fused, peer = (
        statistics.median(pace.rate for pace in paces[name]) if paces[name] else None
        for name in ("plain", "fused", "peer")
    )
    assert plain is not None
    best = max(plain, fused or 0.0)
    return {
        "case": case.name,
        "seepage": round(plain, 1),
        "fused": fused and round(fused, 1),
        "fused_after_seconds": fused and round(paces["fused"][0].before, 1),
        "peer": peer and round(peer, 1),
        "ratio": peer and round(plain / peer, 1),
        "ratio_fused": peer and fused and round(fused / peer, 1),
        "share_of_tf32": tf32 and round(best * case.batch_size * case.giga / 1e3 / tf32, 3),
        "peak_gib": round(paces["plain"][0].peak, 1),
        "peak_gib_fused": fused and round(paces["fused"][0].peak, 1),
        "turns": {name: [round(p.rate, 1) for p in turns] for name, turns in paces.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--peer", action="store_true", help="time the peer beside")
    parser.add_argument("--fuse", action="store_true", help="time compiled steps as well")
    parser.add_argument("--cases", default="", help="of the rows, by number from 0, by comma")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    on_card = options.device == "cuda"
    rate = matrix_rate() if on_card else None
    rows = []
    cases = ON_CARD if on_card else ON_CPU
    chosen = [int(place) for place in options.cases.split(",") if place] or range(len(cases))
    for case in (cases[place] for place in chosen):
        rows.append(row(case, timed(case, options), rate))
        print(rows[-1], flush=True)
        # After every case, so that nothing is lost to a time limit.
        content = {"unit": "restart-iterations per second", "tf32_tflops": rate, "rows": rows}
        path = save(f"speed-{options.device}", options.device, content, options.out)
    print(path)


if __name__ == "__main__":
    main()
