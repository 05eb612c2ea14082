"""What linear systems recover from the eight networks of Chen and Campbell, and what they cost.

    python -m benchmarks.linear_systems --device cuda [--only quality,solver,consistency]
        [--images 10] [--scale 1.0] [--weights untrained,trained] [--variants cnn2-v1,...]
        [--attacks dlg,cosine_tv,rgap,hybrid]

Needs CIFAR-10 in SEEPAGE_DATA. Images are the first of the test split, in [-0.5, 0.5] as in the
paper's code; those of one network are attacked side by side. Trained networks have seen the shared
training images once, in a seeded order; their weights are kept under build/. `--scale` shortens
every search and lengthens its steps. Filters cut a run into parts for processes of their own; each
result is named by what ran.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

import seepage as sp
from benchmarks.linear_solver import THREADS, compare
from benchmarks.provenance import parse_options, save
from seepage.core import SideBySide
from seepage.core.errors import NotApplicable
from seepage.domains import Image
from seepage.scoring import METRICS, pair
from seepage.zoo._convnets import CNN_VARIANTS

SHIFTED = Image((3, 32, 32), mean=(0.5, 0.5, 0.5))
# Table 1 of the paper: the rank deficiency of all layers, weighted by their place.
METRIC = dict(zip(CNN_VARIANTS, (0, -1470, -2266, -1995, 0, -2146, -2772, -6211), strict=True))
CACHE = Path(__file__).parents[2] / "build" / "linear_systems"

WEIGHTS = "untrained,trained"

Row = dict[str, object]


def attacks(scale: float) -> dict[str, sp.Attack]:
    """The paper's four, with its numbers of iterations."""

    def share(count: int) -> int:
        return max(2, round(count * scale))

    return {
        "dlg": sp.attacks.dlg(iterations=share(300)),
        "cosine_tv": sp.attacks.inverting_gradients(steps=share(4_800), restarts=1, tv=1e-2),
        "rgap": sp.attacks.rgap(),
        "hybrid": sp.attacks.hybrid(
            steps=(share(10_000), share(8_000), share(1_000)), step_size=min(1e-2, 1e-3 / scale)
        ),
    }


def run(attack: sp.Attack, seen: Sequence[sp.Observation]) -> list[sp.Reconstruction]:
    rngs = [sp.rng(1000 + i) for i in range(len(seen))]
    assert isinstance(attack, SideBySide)
    return attack.many(seen, rngs=rngs)


def quality(options: argparse.Namespace) -> None:
    """Every variant, untrained and trained, attacked in four ways."""
    images = sp.data.load("cifar10")
    batches = [images.batch(1, start=i) for i in range(options.images)]
    rows: list[Row] = []
    for weights in options.weights.split(","):
        for variant in listed(options.variants, CNN_VARIANTS):
            task = build(variant, weights, options.device)
            client, threat = sp.Client(sp.Gradient()), sp.Threat(knows_labels=True)
            seen = [
                threat.observe(client, task, batch.to(device=options.device), rng=sp.rng(i))
                for i, batch in enumerate(batches)
            ]
            known = attacks(options.scale)
            for name in listed(options.attacks, known):
                rows.append(attacked(name, known[name], variant, weights, seen, batches))
                print(rows[-1], flush=True)
            # After every variant, so that nothing is lost to a time limit.
            content = {"scale": options.scale, "rows": rows, "summary": summary(rows)}
            path = save(title(options), options.device, content, options.out)
    print(summary(rows), path, sep="\n")


def listed(words: str, known: Iterable[str]) -> list[str]:
    """The names of a list by comma, all if it is empty."""
    chosen = [word for word in words.split(",") if word] or list(known)
    if unknown := set(chosen) - set(known):
        raise SystemExit(f"expected names among {list(known)}, got {sorted(unknown)}")
    return chosen


def title(options: argparse.Namespace) -> str:
    """What ran, as the name of a file: every filter that leaves something out."""
    weights = "" if options.weights == WEIGHTS else options.weights
    chosen = (weights, options.variants, options.attacks)
    kept = [words.replace(",", "+") for words in chosen if words]
    return "-".join(["linear_systems-quality", *kept, options.device])


def attacked(
    name: str,
    attack: sp.Attack,
    variant: str,
    weights: str,
    seen: Sequence[sp.Observation],
    batches: Sequence[sp.Batch],
) -> Row:
    began = time.perf_counter()
    row: Row = {"variant": variant, "weights": weights, "attack": name, "c": METRIC[variant]}
    try:
        guesses = run(attack, seen)
    except NotApplicable as error:
        return row | {"failed": str(error)}
    psnr = [
        float(METRICS["psnr"](pair(sp.Reconstruction(guess.inputs.cpu(), batch.labels), batch)))
        for guess, batch in zip(guesses, batches, strict=True)
    ]
    certified = [g.certificate for g in guesses if g.certificate is not None]
    return row | {
        "psnr_mean": round(sum(min(p, 200.0) for p in psnr) / len(psnr), 2),
        "psnr": [round(min(p, 200.0), 2) for p in psnr],
        "unique": sum(c.unique is True for c in certified),
        "residual": [float(f"{c.residual:.2e}") for c in certified],
        "seconds": round(time.perf_counter() - began, 1),
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """For each kind of weights: does the hybrid lose to R-GAP anywhere, and does c(M) rank them."""
    from scipy.stats import spearmanr

    found: list[Row] = []
    for weights in dict.fromkeys(row["weights"] for row in rows):
        mine = [row for row in rows if row["weights"] == weights and "psnr_mean" in row]
        by = {(row["variant"], row["attack"]): row["psnr_mean"] for row in mine}
        variants = [v for v in CNN_VARIANTS if (v, "hybrid") in by and (v, "rgap") in by]
        entry: Row = {
            "weights": weights,
            "variants": len(variants),
            "hybrid_below_rgap": [v for v in variants if by[v, "hybrid"] < by[v, "rgap"]],
            "exact": [v for v in variants if by[v, "hybrid"] > 60],
        }
        if len(variants) > 2:
            for name in ("dlg", "cosine_tv", "rgap", "hybrid"):
                reached = [by.get((v, name), 0.0) for v in variants]
                if len(set(reached)) > 1:
                    rank = spearmanr([METRIC[v] for v in variants], reached).statistic
                    entry[f"spearman_{name}"] = round(float(rank), 3)
        found.append(entry)
    return found


def build(variant: str, weights: str, device: str) -> sp.Task:
    task = sp.zoo.cnn(variant=variant, domain=SHIFTED)
    if weights == "trained":
        path = CACHE / f"{variant}.safetensors"
        if not path.exists():
            train(task, path, device)
        task = sp.zoo.load_weights(task, path)
    return task.to(device=device)


def train(task: sp.Task, path: Path, device: str) -> None:
    """One epoch of Adam over the shared training images, in an order drawn once."""
    images = sp.data.load("cifar10", split="train").batch(20_000)
    model = task.to(device=device).model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for chosen in sp.rng(0).permutation(len(images)).split(64):
        inputs = task.domain.normalise(images.inputs[chosen].to(device))
        loss = sp.cross_entropy(model(inputs), images.labels[chosen].to(device)).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({n: t.contiguous().cpu() for n, t in model.state_dict().items()}, path)
    print(f"trained {task.name}: last loss {float(loss):.3f}", flush=True)


def solver(options: argparse.Namespace) -> None:
    """Matrix-free against dense least squares, on every layer of the largest network."""
    rows: list[Row] = []
    for row in compare("cnn4-v2", SHIFTED):
        rows.append(row)
        print(row, flush=True)
        path = save("linear_systems-solver", "cpu", {"threads": THREADS, "rows": rows}, options.out)
    print(path)


def consistency(options: argparse.Namespace) -> None:
    """Do the equations between a layer's weights and gradients, which no system holds, help?"""
    from benchmarks.linear_consistency import measure

    rows = measure(SHIFTED, images=options.images)
    print(save("linear_systems-consistency", "cpu", {"rows": rows}, options.out))


PARTS = {part.__name__: part for part in (quality, solver, consistency)}


def main() -> None:
    options = parse_options(
        __doc__,
        device=("cpu", "cuda"),
        only=",".join(PARTS),
        images=10,
        scale=1.0,
        weights=WEIGHTS,
        variants="",
        attacks="",
    )
    for name in options.only.split(","):
        PARTS[name](options)


if __name__ == "__main__":
    main()
