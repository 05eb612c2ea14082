"""One round of InstaHide, from the gradient of an MLP to the private images.

    python -m benchmarks.instahide

Needs CIFAR-10 in SEEPAGE_DATA; about a minute on a CPU. Batches of consecutive test images behind
`InstaHide(4)`, seen by an adversary who knows labels and mixing; batch i goes through an MLP of
seed i and is mixed with key i.
"""

from __future__ import annotations

import torch

import seepage as sp
from benchmarks.provenance import save
from seepage.scoring import METRICS, baseline_scores

BATCHES, SIZES = 16, (4, 6)
POOL = 2_000


def psnr(inputs: torch.Tensor, batch: sp.Batch) -> torch.Tensor:
    return sp.score(sp.Reconstruction(inputs), batch, metrics=[METRICS["psnr"]])["psnr"]


def attacked(size: int) -> dict[str, object]:
    """Encodings, and what was made of them, as PSNR of each person."""
    images = sp.data.load("cifar10", split="test")
    pool = sp.data.load("cifar10", split="train").batch(POOL).inputs
    client = sp.Client(sp.Gradient(), sp.InstaHide(4))
    rows = []
    for i in range(BATCHES):
        batch = images.batch(size, start=i * size)
        task = sp.zoo.mlp(hidden=(64,), seed=i)
        seen = sp.Threat.strongest().observe(client, task, batch, rng=sp.rng(i))
        encodings = sp.attacks.exact_batch()(seen, rng=sp.rng(1))
        inputs = sp.attacks.Unmixed(sp.attacks.exact_batch())(seen, rng=sp.rng(1)).inputs
        guesses = baseline_scores(batch, pool=pool, metrics=[METRICS["psnr"]], rng=sp.rng(i))
        rows.append(
            {
                "condition": round(float(torch.linalg.cond(seen.mixing.coefficients)), 1),
                "encodings": psnr(encodings.inputs, batch).tolist(),
                "inputs": psnr(inputs, batch).tolist(),
                "negatives": psnr(1 - inputs, batch).tolist(),
                "guess": guesses["mean"]["psnr"].tolist(),
            }
        )
    return {"batches": rows, **summary(rows)}


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """Means over people, and how many batches came back as they are or as negatives."""
    kinds = ("encodings", "inputs", "negatives", "guess")
    mean = {kind: torch.tensor([row[kind] for row in rows]).mean(1) for kind in kinds}
    nearer = torch.maximum(mean["inputs"], mean["negatives"])
    return {
        "mean": {kind: round(float(value.mean()), 2) for kind, value in mean.items()},
        "mean_up_to_negatives": round(float(nearer.mean()), 2),
        "least_up_to_negatives": round(float(nearer.min()), 2),
        "as_they_are": int((mean["inputs"] > mean["negatives"]).sum()),
        "above_20_db": sum(value > 20 for row in rows for value in row["inputs"]),
        "people": sum(len(row["inputs"]) for row in rows),
    }


def main() -> None:
    content = {str(size): attacked(size) for size in SIZES}
    for size, found in content.items():
        print(size, {key: value for key, value in found.items() if key != "batches"})
    print(save("instahide", "cpu", {"sizes": content}))


if __name__ == "__main__":
    main()
