"""The Cramér-Rao bound on a network of eleven million parameters: time, memory, conditioning."""

from __future__ import annotations

import math
import resource
import time

import torch

import seepage as sp
from seepage.bounds import (
    Bound,
    CramerRao,
    CramerRaoRelaxed,
    Identifiability,
    Inversion,
    MutualInformation,
)
from seepage.core._progress import listen

STD = 0.01
NOISY = sp.Client(sp.Gradient(), sp.AddGaussian(STD))


def resnet18(device: str, probes: int = 2, steps: int = 64) -> dict:
    """One CIFAR-10 image behind noise of 0.01, on ResNet-18 of width 64.

    On a card I is formed product by product and nothing is estimated.
    """
    batch = sp.data.load("cifar10").batch(1).to(device=device)
    task = sp.zoo.resnet18().to(device=device)
    on_card = device == "cuda"
    row: dict = {
        "network": task.name,
        "parameters": sum(p.numel() for p in task.parameters.values()),
        "unknowns": batch.inputs.numel(),
    }
    bounds: list[Bound] = [
        CramerRaoRelaxed(held=2**36) if on_card else CramerRaoRelaxed(probes=16),
        CramerRao() if on_card else CramerRao(inversion=Inversion(probes=probes, steps=steps)),
    ]
    for bound in bounds:
        row[bound.name] = timed(bound, task, batch)
    if not on_card:
        return row
    row["information"] = singularity(task, batch)
    # VanTrees refuses the ReLU of this network.
    row["mutual_information"] = timed(MutualInformation(), task, batch)
    return row


def timed(bound: Bound, task: sp.Task, batch: sp.Batch) -> dict:
    """What a bound says of one image, in which time and memory."""
    if batch.inputs.is_cuda:
        torch.cuda.reset_peak_memory_stats()
    began, used = time.perf_counter(), time.process_time()
    with listen(_printed):
        found = bound(NOISY, task, batch, rng=sp.rng(0))
    value = float(found.value)
    row = {
        "bound": repr(bound),
        "rmse": round(value, 5) if math.isfinite(value) else repr(value),
        "said": [*found.assumptions, found.remark],
        "seconds": round(time.perf_counter() - began, 1),
        "seconds_of_cpu": round(time.process_time() - used),
        "peak_gigabytes": round(_peak(batch), 2),
    }
    print(row, flush=True)
    return row


def singularity(task: sp.Task, batch: sp.Batch) -> dict:
    """Eigenvalues of I and the directions that it does not determine, and how long that took."""
    began = time.perf_counter()
    with listen(_printed):
        found = Identifiability().determined(NOISY, task, batch, rng=sp.rng(0))
    least, most = float(found.singular_values[0]), found.largest
    row = {
        "smallest_eigenvalue": float(f"{(least / STD) ** 2:.4g}"),
        "largest_eigenvalue": float(f"{(most / STD) ** 2:.4g}"),
        "smallest_over_largest": float(f"{(least / most) ** 2:.3g}"),
        "not_determined": found.unknowns - found.rank,
    }
    seconds = time.perf_counter() - began
    print(row, f"{seconds:.1f} s", flush=True)
    return row


def _printed(step: int, _: int, __: float) -> None:
    print(step, end=" ", flush=True)


def _peak(batch: sp.Batch) -> float:
    """Gigabytes held at most: on the card since they were counted, else by this process ever."""
    if batch.inputs.is_cuda:
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
