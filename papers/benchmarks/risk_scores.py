"""How well scores without an attack rank people by risk: `python -m benchmarks.risk_scores`.

Thirty-two CIFAR-10 images of 16 pixels, each attacked alone by inverting gradients, on two
networks, without a defense and behind noise. Each score is turned so that more means more risk, and
ranked against the PSNR that came back (Spearman), with a 95 % interval by bootstrap over people.
PSNR follows the contrast of an image too, so the same is told of what came back above the mean
image.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.stats import spearmanr

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.bounds.risk import RISKS

DRAWS = 2_000


def main() -> None:
    asked = parse_options(__doc__, people=32, steps=300, pixels=16, std=0.01)
    data = sp.data.load("cifar10", pixels=asked.pixels)
    tasks = {
        "lenet": sp.zoo.lenet(domain=data.domain, classes=data.classes),
        "convnet": sp.zoo.convnet(width=8, domain=data.domain, classes=data.classes),
    }
    rows = [
        row
        for network, task in tasks.items()
        for defense in (sp.chain(), sp.AddGaussian(asked.std))
        for row in measured(network, task, defense, data, asked)
    ]
    setting = {name: getattr(asked, name) for name in ("people", "pixels", "steps", "std")}
    print(save("risk_scores", "cpu", {**setting, "rows": rows}, asked.out))


def measured(network, task, defense, data, asked) -> list[dict[str, object]]:
    client = sp.Client(sp.Gradient(), defense)
    attack = sp.attacks.inverting_gradients(steps=asked.steps, restarts=1)
    psnr, above = [], []
    began = time.perf_counter()
    for person in range(asked.people):
        batch = data.batch(1, start=person)
        seen = sp.Threat(knows_labels=True).observe(client, task, batch, rng=sp.rng(person))
        found = sp.score(attack(seen, rng=sp.rng(1_000 + person)), batch)["psnr"].item()
        mean = sp.Reconstruction(data.inputs.mean(0, keepdim=True), batch.labels)
        psnr.append(found)
        above.append(found - sp.score(mean, batch)["psnr"].item())
    attacked = time.perf_counter() - began
    task = task.in_mode("eval")
    rows = []
    for name, kind in RISKS.items():
        began = time.perf_counter()
        score = kind()
        values = [
            score(client, task, data.batch(1, start=p), rng=sp.rng(p)).item()
            for p in range(asked.people)
        ]
        risk = np.asarray(values) * (1 if score.higher_leaks_more else -1)
        row = {
            "network": network,
            "behind": repr(defense),
            "score": name,
            "psnr": ranked(risk, np.asarray(psnr)),
            "above_the_mean_image": ranked(risk, np.asarray(above)),
            "seconds_per_person": round((time.perf_counter() - began) / asked.people, 3),
            "attack_seconds_per_person": round(attacked / asked.people, 2),
            "median_psnr": round(float(np.median(psnr)), 2),
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def ranked(risk: np.ndarray, reached: np.ndarray) -> dict[str, float]:
    """Spearman's rank correlation and its percentile interval over resampled people."""
    rng = np.random.default_rng(0)
    draws = [rng.integers(len(risk), size=len(risk)) for _ in range(DRAWS)]
    again = [spearmanr(risk[d], reached[d]).statistic for d in draws]
    low, high = np.quantile(again, [0.025, 0.975])
    middle = float(spearmanr(risk, reached).statistic)
    return {"rho": round(middle, 3), "low": round(float(low), 3), "high": round(float(high), 3)}


if __name__ == "__main__":
    main()
