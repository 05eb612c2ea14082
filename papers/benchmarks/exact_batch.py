"""How many people of a batch come back exactly, by each search of `exact_batch`.

    python -m benchmarks.exact_batch [--table exact_batch-engines] [--batches 10] [--only NAMES]

Needs MNIST and CIFAR-10 in SEEPAGE_DATA. Batch i is made of consecutive test images and goes
through a network of seed i. Nothing but the update reaches the adversary: neither labels nor, of
course, the images; exact means that no pixel in [0, 1] is off by more than 1e-4.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.attacks.exact_batch import (
    Complementarity,
    ExactBatch,
    KernelSampling,
    SparseDirections,
)
from seepage.core import Defense, LocalComputation
from seepage.core.errors import NotApplicable
from seepage.scoring import METRICS, pair

EXACT = 1e-4
SEARCHES = {
    "both": (Complementarity(), KernelSampling()),
    "auto": ExactBatch().searches,
    "least squares": (Complementarity(),),
    "least squares, 1 round": (Complementarity(rounds=1),),
    "least squares, 4 rounds": (Complementarity(rounds=4),),
    "sparse": (SparseDirections(),),
    "sampling": (KernelSampling(),),
}


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    part: str
    data: str
    people: int
    hidden: tuple[int, ...]
    dtype: torch.dtype = torch.float64
    search: str = "both"
    local: LocalComputation = field(default_factory=sp.Gradient)
    defense: Defense = field(default_factory=sp.chain)
    batches: int | None = None


def on_cpu() -> Iterator[Case]:
    widths = (2, 64), (4, 64), (8, 24), (8, 64), (16, 64), (16, 256), (32, 256)
    for data in ("mnist", "cifar10"):
        for people, width in widths:
            yield Case("widths", data, people, (width,))
        for people, width in ((8, 64), (16, 256)):
            yield Case("float32", data, people, (width,), torch.float32)
    yield Case("deeper", "cifar10", 16, (256, 128, 64))
    for people, width in ((2, 64), (4, 64), (8, 128), (16, 256)):
        for search in ("least squares", "sampling"):
            yield Case("searches", "cifar10", people, (width,), search=search)
    base = Case("updates", "mnist", 8, (128,))
    yield replace(base, local=sp.FedAvg(lr=0.01, steps=1))
    yield replace(base, local=sp.FedAvg(lr=0.01, steps=5))
    yield replace(base, defense=sp.chain(sp.ClipEach(0.1), sp.Mean()))
    for std in (1e-6, 1e-4, 1e-2):
        yield replace(base, defense=sp.AddGaussian(std))


def engines() -> Iterator[Case]:
    """Engines side by side, against batch size and width."""
    for data in ("mnist", "cifar10"):
        for people, width in ((16, 256), (24, 384), (32, 256), (32, 512)):
            for search in ("least squares", "sparse", "sampling"):
                yield Case("engines", data, people, (width,), search=search)
    base = Case("local steps", "cifar10", 24, (384, 128), local=sp.FedAvg(lr=0.01, steps=5))
    for search in ("least squares", "sparse"):
        yield replace(base, search=search)


def many() -> Iterator[Case]:
    """More people than least squares was made for, which is stopped early here."""
    for data in ("mnist", "cifar10"):
        for search in ("sparse", "least squares, 1 round", "sampling"):
            yield Case("many", data, 64, (1024, 256), search=search)
    for search in ("sparse", "least squares, 4 rounds"):
        yield Case("many", "cifar10", 48, (768,), search=search)


def least_squares() -> Iterator[Case]:
    """The same with all the rounds least squares may take; a batch of 64 takes a minute."""
    yield Case("many", "cifar10", 48, (768,), search="least squares")
    yield Case("many", "cifar10", 64, (1024, 256), search="least squares", batches=3)


def most() -> Iterator[Case]:
    yield Case("most", "cifar10", 128, (2048, 256), search="sparse")


def on_card() -> Iterator[Case]:
    """Sizes that take a CPU minutes a batch by sampling, then sizes that only a card can hold."""
    for data in ("mnist", "cifar10"):
        for people, width in ((16, 256), (20, 320), (32, 512)):
            yield Case("card", data, people, (width,))
        for people, width in ((64, 1024), (100, 2048)):
            yield Case("card-many", data, people, (width,))
    for people in (16, 20):
        yield Case("card", "cifar10", people, (512,), search="sampling")


TABLES = {
    "exact_batch": on_cpu,
    "exact_batch-engines": engines,
    "exact_batch-many": many,
    "exact_batch-many-least_squares": least_squares,
    "exact_batch-most": most,
    "exact_batch-cuda": on_card,
}


def run(case: Case, batches: int, device: torch.device) -> dict[str, object]:
    data = sp.data.load(case.data)
    # Seconds of the processor, which others may be sharing; on a card, seconds of the wall clock.
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    off, labels, seconds, residuals, psnr = [], [], [], [], []
    whole = certified = refused = 0
    for i in range(batches):
        task = sp.zoo.mlp(hidden=case.hidden, domain=data.domain, seed=i)
        task = task.to(device=device, dtype=case.dtype)
        batch = data.batch(case.people, start=i * case.people)
        private = batch.to(device=device, dtype=case.dtype)
        client = sp.Client(case.local, case.defense)
        seen = sp.Threat().observe(client, task, private, rng=sp.rng(i))
        attack = ExactBatch(searches=SEARCHES[case.search])
        began = clock()
        try:
            guess = attack(seen, rng=sp.rng(1000 + i))
        except NotApplicable:
            refused += 1
            seconds.append(clock() - began)
            continue
        seconds.append(clock() - began)
        paired = pair(guess, private)
        worst = (paired.guess - paired.truth).abs().flatten(1).amax(1)
        off.extend(worst.tolist())
        labels.extend(METRICS["label_accuracy"](paired).tolist())
        psnr.extend(METRICS["psnr"](paired).clamp(max=200).tolist())
        residuals.append(guess.certificate.residual)
        whole += bool((worst < EXACT).all())
        certified += bool(guess.certificate.unique)
    return {
        "part": case.part,
        "data": case.data,
        "people": case.people,
        "hidden": list(case.hidden),
        "dtype": str(case.dtype).removeprefix("torch."),
        "search": case.search,
        "local": str(case.local),
        "defense": str(case.defense),
        "batches": batches,
        "refused_batches": refused,
        "exact_people": sum(value < EXACT for value in off),
        "exact_batches": whole,
        "certified_batches": certified,
        "largest_error": max(off, default=None),
        "psnr_mean": round(statistics.fmean(psnr), 2) if psnr else None,
        "labels_right": round(statistics.fmean(labels), 4) if labels else None,
        "residual_median": statistics.median(residuals) if residuals else None,
        "seconds_median": round(statistics.median(seconds), 2),
        "seconds_most": round(max(seconds), 2),
    }


def main() -> None:
    tables, devices = tuple(TABLES), ("cpu", "cuda")
    options = parse_options(__doc__, table=tables, device=devices, batches=10, only="")
    wanted = set(filter(None, options.only.split(",")))
    cases = TABLES[options.table]()
    rows = []
    for case in cases:
        if wanted and case.part not in wanted:
            continue
        row = run(case, case.batches or options.batches, torch.device(options.device))
        rows.append(row)
        print(row, flush=True)
    print(save(options.table, options.device, {"exact_below": EXACT, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
