"""What comes back of rows of a table by `tableak`, and of texts by `dager`.

    python -m benchmarks.tabular_text [--only tabular,text]

Both data sets are bundled. Batch i is made of consecutive people and goes through a network of
seed i. The server knows the labels of rows, and of texts no more than how many there are. Beside
each score stands that of the better guess without an update: the mean and the commonest of other
people, or others drawn at random.
"""

from __future__ import annotations

import statistics
import time

import torch

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.core import Reconstruction
from seepage.domains import Categorical
from seepage.scoring import FeatureAccuracy, Scores, baseline_scores, pair
from seepage.search import GradientMatching

STEPS, MEMBERS = 1_000, 10
# People in a batch, and batches.
TABLES = ((1, 8), (8, 3), (16, 2), (32, 2))
TEXTS = ((1, 8), (2, 4), (4, 4), (8, 4))
NOISE = (1e-6, 1e-5, 1e-4, 1e-2)


def others(data: sp.data.Dataset, start: int, people: int) -> torch.Tensor:
    keep = torch.ones(len(data), dtype=torch.bool)
    keep[start : start + people] = False
    return data.inputs[keep]


def scored(
    data: sp.data.Dataset, guess: Reconstruction, batch: sp.Batch, start: int, metric: str
) -> tuple[Scores, float]:
    """Scores of a guess, and the mean of the better one without an update."""
    pool = others(data, start, len(batch))
    trivial = baseline_scores(batch, pool=pool, rng=sp.rng(start), domain=data.domain)
    best = max(float(scores[metric].mean()) for scores in trivial.values())
    return sp.score(guess, batch, domain=data.domain), best


def quarters(right: torch.Tensor, sure: torch.Tensor) -> list[float]:
    """Accuracy by confidence, the surest quarter first."""
    order = sure.argsort(descending=True)
    return [round(float(right[part].mean()), 4) for part in order.chunk(4)]


def table_row(people: int, batches: int) -> dict[str, object]:
    data = sp.data.load("voters")
    attack = sp.attacks.tableak(steps=STEPS, members=MEMBERS)
    kinds = torch.tensor([isinstance(c, Categorical) for c in data.domain.columns])
    ours, single, trivial, exact, seconds = [], [], [], [], []
    right, sure = [], []
    for i in range(batches):
        start = i * people
        task = sp.zoo.mlp(hidden=(100, 100), classes=2, domain=data.domain, seed=i)
        batch = data.batch(people, start=start)
        threat = sp.Threat(knows_labels=True)
        seen = threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(i))
        began = time.process_time()
        guess = attack(seen, rng=sp.rng(1000 + i))
        seconds.append(time.process_time() - began)
        scores, best = scored(data, guess, batch, start, "feature_accuracy")
        ours.append(float(scores["feature_accuracy"].mean()))
        exact.extend(scores["exact"].tolist())
        trivial.append(best)
        paired = pair(guess, batch, domain=data.domain)
        right.append(FeatureAccuracy().by_column(paired))
        sure.append(guess.confidence[list(paired.assignment)])
        if people == 16:
            alone = GradientMatching(attack.search, attack.engine)(seen, rng=sp.rng(1000 + i))
            alone_scores, _ = scored(data, alone, batch, start, "feature_accuracy")
            single.append(float(alone_scores["feature_accuracy"].mean()))
    hits, trust = torch.cat(right), torch.cat(sure)
    return {
        "part": "tabular",
        "people": people,
        "batches": batches,
        "steps": STEPS,
        "members": MEMBERS,
        "feature_accuracy": round(statistics.fmean(ours), 4),
        "categories": round(float(hits[:, kinds].mean()), 4),
        "numbers": round(float(hits[:, ~kinds].mean()), 4),
        "without_update": round(statistics.fmean(trivial), 4),
        "whole_rows": round(float((hits.mean(1) == 1).double().mean()), 4),
        "exact": round(statistics.fmean(exact), 4),
        "best_member_alone": round(statistics.fmean(single), 4) if single else None,
        "categories_by_confidence": quarters(hits[:, kinds].flatten(), trust[:, kinds].flatten()),
        "numbers_by_confidence": quarters(hits[:, ~kinds].flatten(), trust[:, ~kinds].flatten()),
        "seconds_median": round(statistics.median(seconds), 2),
    }


def text_row(
    people: int, batches: int, *, embeddings: bool, noise: float = 0.0
) -> dict[str, object]:
    data = sp.data.load("hamlet")
    tokens, exact, labels, trivial, seconds, residuals = [], [], [], [], [], []
    certified = 0
    for i in range(batches):
        start = i * people
        task = sp.zoo.gpt(classes=2, domain=data.domain, embeddings=embeddings, seed=i)
        batch = data.batch(people, start=start)
        client = sp.Client(sp.Gradient(), sp.AddGaussian(noise) if noise else sp.chain())
        seen = sp.Threat().observe(client, task, batch, rng=sp.rng(i))
        began = time.process_time()
        guess = sp.attacks.dager()(seen, rng=sp.rng(1000 + i))
        seconds.append(time.process_time() - began)
        scores, best = scored(data, guess, batch, start, "token_accuracy")
        tokens.extend(scores["token_accuracy"].tolist())
        exact.extend(scores["exact"].tolist())
        labels.extend(scores["label_accuracy"].tolist())
        trivial.append(best)
        residuals.append(guess.certificate.residual)
        certified += bool(guess.certificate.unique)
    return {
        "part": "text",
        "people": people,
        "batches": batches,
        "embeddings": "trained" if embeddings else "frozen",
        "noise": noise,
        "exact_sequences": round(statistics.fmean(exact), 4),
        "token_accuracy": round(statistics.fmean(tokens), 4),
        "without_update": round(statistics.fmean(trivial), 4),
        "labels_right": round(statistics.fmean(labels), 4),
        "certified_batches": certified,
        "residual_largest": max(residuals),
        "seconds_median": round(statistics.median(seconds), 2),
    }


def main() -> None:
    options = parse_options(__doc__, only="tabular,text")
    wanted = set(options.only.split(","))
    rows: list[dict[str, object]] = []
    if "text" in wanted:
        for people, batches in TEXTS:
            for embeddings in (True, False):
                rows.append(text_row(people, batches, embeddings=embeddings))
                print(rows[-1], flush=True)
        for noise in NOISE:
            rows.append(text_row(1, 4, embeddings=False, noise=noise))
            print(rows[-1], flush=True)
    if "tabular" in wanted:
        for people, batches in TABLES:
            rows.append(table_row(people, batches))
            print(rows[-1], flush=True)
    print(save("tabular_text", "cpu", {"rows": rows}, options.out))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
