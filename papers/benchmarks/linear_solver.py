"""The linear systems of one network, solved with their matrices and without.

Each solution is computed in a process of its own, whose peak of memory is read from the kernel.
Seconds are of processor time, summed over the threads: others may be using the machine.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import seepage as sp
from seepage.attacks.linear_systems._rgap import Step, walk_back
from seepage.core import Domain
from seepage.numerics._least_squares import minimum_norm
from seepage.probing._layer_stack import Stack, read_stack
from seepage.zoo._convnets import CNN_VARIANTS

THREADS = 2
Array = NDArray[np.float64]
Solved = tuple[Array, float, float]


def compare(variant: str, domain: Domain) -> Iterator[dict[str, object]]:
    """Time, memory and difference of both ways, for each convolution of a variant."""
    for index in reversed(range(len(CNN_VARIANTS[variant]))):
        x, seconds, peak = _apart(_without_matrix, variant, domain, index)
        reference, dense_seconds, dense_peak = _apart(_with_matrix, variant, domain, index)
        yield {
            "variant": variant,
            "layer": index + 1,
            "seconds": round(seconds, 3),
            "dense_seconds": round(dense_seconds, 3),
            "faster": round(dense_seconds / seconds, 1),
            "mib": round(peak, 1),
            "dense_mib": round(dense_peak, 1),
            "less_memory": round(dense_peak / peak, 1),
            "difference": float(np.linalg.norm(x - reference) / np.linalg.norm(reference)),
        }


def _apart(solve: Callable[[str, Domain, int], Solved], *arguments: object) -> Solved:
    with get_context("spawn").Pool(1) as pool:
        return pool.apply(solve, arguments)


def _without_matrix(variant: str, domain: Domain, index: int) -> Solved:
    step = _step(variant, domain, index)
    with _Peak() as peak:
        began = time.process_time()
        x = minimum_norm(step.system, step.target)
        seconds = time.process_time() - began
    return x.numpy(), seconds, peak.mib


def _with_matrix(variant: str, domain: Domain, index: int) -> Solved:
    step = _step(variant, domain, index)
    with _Peak() as peak:
        columns = torch.eye(step.system.shape[1], dtype=torch.float64).split(64)
        matrix = np.concatenate([step.system.apply(c).numpy() for c in columns]).T
        began = time.process_time()
        x = np.linalg.lstsq(matrix, step.target.numpy(), rcond=1e-10)[0]
        seconds = time.process_time() - began
    return x, seconds, peak.mib


def _step(variant: str, domain: Domain, index: int) -> Step:
    """What R-GAP has to solve at one layer, for the first test image."""
    torch.set_num_threads(THREADS)
    task = sp.zoo.cnn(variant=variant, domain=domain).to(dtype=torch.float64)
    batch = sp.data.load("cifar10").batch(1).to(dtype=torch.float64)
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    rest = Stack(read_stack(task).layers[index:])
    walk = (seen.update, seen.update.tensors["head.bias"])
    return walk_back(rest, [walk], damping=0.0)[0]


class _Peak:
    """By how much the resident memory of this process rose at most, in MiB."""

    mib: float

    def __enter__(self) -> _Peak:
        # What was freed before must not serve as room for what is measured.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        self._before = _kib("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        # The kernel counts in batches of pages: below a MiB nothing can be told from something.
        self.mib = max(_kib("VmHWM") - self._before, 1024) / 1024


def _kib(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1])
