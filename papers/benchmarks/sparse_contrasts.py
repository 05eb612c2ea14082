"""Which measure of sparsity finds people: one round of 128 starts, and l4 over orthogonal matrices.

    python -m benchmarks.sparse_contrasts [--batches 10]

Needs MNIST and CIFAR-10 in SEEPAGE_DATA. Every search starts from the whitened span of dL/dW of an
untrained network, runs 150 steps and is made exact by the same least trimmed squares; found are
the people to whom a direction then has a cosine of 1 up to 1e-9. Nobody is taken out. The last
rows are of random columns in place of images, every second entry zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.attacks.exact_batch._span_factors import factorise_gradient
from seepage.attacks.exact_batch._sparse_directions import (
    descend_from_starts,
    fit_trimmed,
    normalise_rows,
    whiten_rows,
)

STARTS, STEPS = 128, 150
QUIET = 0.3


def polar(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    product: Tensor = left @ right
    return product


def l4(white: Tensor, starts: Tensor) -> Tensor:
    """Matching, stretching, projection: A <- polar((A Y)^3 Y^T), from as many orthogonal A."""
    people = white.shape[1]
    ends = []
    for group in range(max(1, len(starts) // people)):
        a = polar(starts[group * people : (group + 1) * people])
        for _ in range(STEPS):
            a = polar((a @ white.T).pow(3) @ white)
        ends.append(a)
    return torch.cat(ends)


def one_by_one(bend: Callable[[Tensor, float], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Descent on the sphere, where `bend` is the derivative of what is summed over entries."""

    def search(white: Tensor, starts: Tensor) -> Tensor:
        c = normalise_rows(starts)
        for step in range(STEPS):
            width = 0.3 * (0.005 / 0.3) ** (step / (STEPS - 1))
            slope = bend(c @ white.T, width) @ white / len(white)
            c = normalise_rows(c - 0.5 * (slope - (slope * c).sum(1, keepdim=True) * c))
        return c

    return search


CONTRASTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l4, orthogonal": l4,
    "l4, one by one": one_by_one(lambda d, _: -d.pow(3) / 3),
    "l1": one_by_one(lambda d, width: d / d.abs().clamp_min(width)),
    "log cosh": one_by_one(lambda d, width: torch.tanh(d / width)),
    "smoothed count": lambda white, starts: descend_from_starts(white, starts, steps=STEPS),
}


def images(name: str, people: int, width: int, number: int) -> tuple[Tensor, Tensor]:
    """The span of a batch's gradient, and everybody's direction in it."""
    data = sp.data.load(name)
    task = sp.zoo.mlp(hidden=(width,), domain=data.domain, seed=number).to(dtype=torch.float64)
    batch = data.batch(people, start=number * people).to(dtype=torch.float64)
    gradient = sp.Client(sp.Gradient())(task, batch, rng=sp.rng(number)).tensors
    factors = factorise_gradient(
        gradient["hidden1.weight"], gradient["hidden1.bias"], batch_size=people
    )
    inputs = task.domain.normalise(batch.inputs).flatten(1)
    directions = torch.linalg.lstsq(inputs.T, factors.mixtures.T).solution
    return factors.span[factors.live], normalise_rows(directions)


def columns(people: int, width: int, number: int) -> tuple[Tensor, Tensor]:
    """Normal entries, half of them zero."""
    key, like = sp.rng(number), torch.zeros(0, dtype=torch.float64)
    entries = key.fork("entries").normal((width, people), like=like)
    active = key.fork("active").uniform((width, people), like=like) >= 0.5
    span, mixing = torch.linalg.qr(entries * active)
    return span[active.any(1)], normalise_rows(mixing.T)


def found(span: Tensor, directions: Tensor, contrast: str, number: int) -> int:
    people = span.shape[1]
    loudness = span.norm(dim=1, keepdim=True)
    rows = span / loudness.clamp_min(QUIET * (people / len(span)) ** 0.5)
    white, there = whiten_rows(rows, people)
    starts = sp.rng(1000 + number).normal((STARTS, people), like=white)
    ends = fit_trimmed(white, CONTRASTS[contrast](white, starts), silent=0.35, steps=6)
    cosines = (normalise_rows(ends @ there.T) @ directions.T).abs()
    return int((cosines.amax(0) > 1 - 1e-9).sum())


def main() -> None:
    options = parse_options(__doc__, batches=10)
    sources: dict[str, Callable[[int], tuple[Tensor, Tensor]]] = {
        "mnist 32 512": lambda i: images("mnist", 32, 512, i),
        "cifar10 32 512": lambda i: images("cifar10", 32, 512, i),
        "cifar10 16 2048": lambda i: images("cifar10", 16, 2048, i),
        "half zero 32 512": lambda i: columns(32, 512, i),
    }
    rows = []
    for source, make in sources.items():
        made = [make(i) for i in range(options.batches)]
        for contrast in CONTRASTS:
            began = time.process_time()
            counts = [found(*case, contrast, i) for i, case in enumerate(made)]
            seconds = (time.process_time() - began) / options.batches
            people = sum(len(directions) for _, directions in made)
            row = {"source": source, "contrast": contrast, "found": sum(counts), "people": people}
            rows.append({**row, "seconds_mean": round(seconds, 2)})
            print(rows[-1], flush=True)
    print(save("sparse_contrasts", "cpu", {"batches": options.batches, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
