"""What theory allows, checked: `python -m benchmarks.bounds [--part resnet18 [--device cuda]]`.

By default: the Cramér-Rao bound on two-layer networks is reached by maximum likelihood, scales as
Theorem 3.2 of Liu et al. says and changes with clipping, dropout and pruning as their appendix E
says; from products alone it is what it is from the whole matrix. Part `resnet18` times it on one
CIFAR-10 image: estimated on a CPU, computed on a card.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from scipy.optimize import least_squares

import seepage as sp
from benchmarks.bounds_resnet18 import resnet18
from benchmarks.provenance import parse_options, save
from benchmarks.two_layer import Derivatives, on_the_sphere, two_layer
from seepage.bounds import Bound, CramerRao, CramerRaoRelaxed, Inversion, VanTrees, pruned_share
from seepage.core import Protection

SUM = sp.Gradient(reduction="sum")
SEEDS = range(5)


def noisy(std: float, *links: Protection) -> sp.Client:
    return sp.Client(SUM, sp.chain(*links, sp.AddGaussian(std)))


def reached(inputs: int, width: int, people: int, *, std: float = 1e-3, draws: int = 300) -> dict:
    """Root mean squared error of maximum likelihood from noisy gradients, over what is allowed."""
    task, batch = two_layer(inputs, width), on_the_sphere(people, inputs)
    truth, signs = batch.inputs.double().numpy()[:, 0], 1 - 2 * batch.labels.numpy()
    derivatives = Derivatives.of(task)
    clean = derivatives.gradient(truth, signs)
    noise = np.random.default_rng(0).normal(size=(draws, clean.size)) * std
    misses = [
        least_squares(
            lambda x, seen=clean + row: derivatives.gradient(x.reshape(truth.shape), signs) - seen,
            truth.ravel(),
            jac=lambda x: derivatives.jacobian(x.reshape(truth.shape), signs),
            method="lm",
        ).x.reshape(truth.shape)
        - truth
        for row in noise
    ]
    errors = np.sqrt((np.stack(misses) ** 2).mean((0, 2)))
    allowed = CramerRao()(noisy(std), task, batch, rng=sp.rng(0)).value.numpy()
    return {
        "inputs": inputs,
        "width": width,
        "people": people,
        "draws": draws,
        "allowed": _rounded(allowed),
        "reached_over_allowed": _rounded(errors / allowed),
    }


def risk(bound: Bound, client: sp.Client, inputs: int, width: int, people: int) -> float:
    """R = sqrt(mean_i ||guess_i - x_i||^2) that is allowed, geometric mean over networks."""
    found = []
    for seed in SEEDS:
        task, batch = two_layer(inputs, width, seed=seed), on_the_sphere(people, inputs, seed=seed)
        rmse = bound(client, task, batch, rng=sp.rng(0)).value
        found.append(math.sqrt(inputs * float(rmse.square().mean())))
    return math.exp(float(np.mean(np.log(found))))


def scaling() -> list[dict]:
    """Log-log slopes of Eq. 28 and Eq. 29 beside those of Theorem 3.2."""
    axes = {
        "d": ([8, 16, 32, 64], 0.5, lambda v: (0.01, v, 1024, 1)),
        "m": ([128, 256, 512, 1024], -0.5, lambda v: (0.01, 16, v, 1)),
        "sigma": ([1e-3, 1e-2, 1e-1], 1.0, lambda v: (v, 16, 256, 1)),
        "B": ([1, 2, 4, 8], 0.0, lambda v: (0.01, 16, 512, v)),
    }
    rows = []
    for axis, (values, predicted, sizes) in axes.items():
        row: dict = {"in": axis, "values": values, "theorem_3.2": predicted}
        for bound in (CramerRao(), CramerRaoRelaxed()):
            risks = []
            for value in values:
                std, inputs, width, people = sizes(value)
                risks.append(risk(bound, noisy(std), inputs, width, people))
            slope = np.polyfit(np.log(values), np.log(risks), 1)[0]
            row[bound.name] = {"risk": _rounded(risks), "slope": round(float(slope), 3)}
        print(row, flush=True)
        rows.append(row)
    return rows


def defended(inputs: int = 12, width: int = 100, people: int = 2, std: float = 0.01) -> list[dict]:
    """The bound behind a defense over the bound without, beside appendix E."""
    task, batch = two_layer(inputs, width), on_the_sphere(people, inputs)
    norm = float(sp.Client(SUM).expected(task, batch.inputs, batch.labels).norm())
    edge = inputs / (inputs + 1)
    links: list[tuple[Protection, float | None]] = [
        *((sp.Clip(norm / ratio), ratio) for ratio in (0.5, 2, 10)),
        *((sp.Dropout(rate), (1 - rate) ** -0.5) for rate in (0.3, 0.5, 0.9)),
        *(
            (sp.Prune(round(ratio, 4), scope="update"), None)
            for ratio in (0.3, 0.6, 0.9, edge - 0.005, edge + 0.01, edge + 0.02, edge + 0.04, 0.98)
        ),
    ]
    rows = []
    for link, predicted in links:
        row: dict = {"defense": repr(link)}
        client = noisy(std, link)
        if predicted is None:
            share = pruned_share(client, task, batch)
            row["p_hat"], predicted = round(share, 4), (1 - share) ** -0.5
        row["appendix_e"] = round(max(1.0, predicted), 3)
        for bound in (CramerRao(), CramerRaoRelaxed()):
            plain, behind = (bound(c, task, batch, rng=sp.rng(0)) for c in (noisy(std), client))
            ratio = float(behind.value.square().mean().sqrt() / plain.value.square().mean().sqrt())
            row[bound.name] = round(ratio, 3) if math.isfinite(ratio) else behind.remark
        print(row, flush=True)
        rows.append(row)
    return rows


def products() -> list[dict]:
    """From products alone, against the whole matrix."""
    photos = sp.data.bundled("photos", size=1)
    domain = sp.domains.Image((3, 16, 16), mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
    one = sp.Batch(torch.nn.functional.avg_pool2d(photos.inputs, 2), photos.labels)
    client, rows = sp.Client(sp.Gradient(), sp.AddGaussian(0.01)), []
    smooth = sp.zoo.mlp(hidden=(12,), activation="sigmoid", domain=domain)
    for task in (smooth, sp.zoo.lenet(domain=domain)):
        for kind in (CramerRao, VanTrees):
            row: dict = {"network": task.name, "bound": kind.name}
            for way, inversion in (("whole", Inversion()), ("products", Inversion(held=0))):
                began = time.perf_counter()
                found = kind(inversion=inversion)(client, task, one, rng=sp.rng(0))
                seconds = round(time.perf_counter() - began, 1)
                row[way] = {"rmse": round(float(found.value), 5), "seconds": seconds}
            row["ratio"] = round(row["products"]["rmse"] / row["whole"]["rmse"], 4)
            print(row, flush=True)
            rows.append(row)
    return rows


def main() -> None:
    asked = parse_options(__doc__, part=("checks", "resnet18"), device=("cpu", "cuda"))
    if asked.part == "resnet18":
        name = "bounds-resnet18-cuda" if asked.device == "cuda" else "bounds-resnet18"
        print(save(name, asked.device, {"row": resnet18(asked.device)}, asked.out))
        return
    monte_carlo = [reached(*sizes) for sizes in ((6, 30, 1), (8, 64, 2), (10, 100, 3))]
    print(*monte_carlo, sep="\n", flush=True)
    content = {
        "monte_carlo": monte_carlo,
        "scaling": scaling(),
        "defended": defended(),
        "products": products(),
    }
    print(save("bounds", "cpu", content, asked.out))


def _rounded(values: np.ndarray | list[float]) -> list[float]:
    return [float(f"{v:.4g}") for v in values]


if __name__ == "__main__":
    main()
