"""How many people of a batch come back by blind separation, through any activation.

    python -m benchmarks.cocktail_party [--only batches,contrast,defenses]

Needs CIFAR-10 in SEEPAGE_DATA. Batch i is made of consecutive test images and goes through an
untrained network of seed i: the flattened input, 256 neurons, ten classes. Nothing but the update
reaches the adversary. Filters and weights were chosen on images 100 to 227, which `contrast` shows,
and looked at on 1000 to 1063; all other parts begin at 300.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.attacks.feature_recovery import CocktailParty
from seepage.core import Protection
from seepage.scoring import METRICS, pair

RECOVERED = 20.0
WIDTH = 256
ATTACK = CocktailParty()


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    part: str
    people: int
    batches: int
    first: int
    activation: str = "tanh"
    attack: CocktailParty = ATTACK
    defense: Protection = field(default_factory=sp.chain)


def cases() -> Iterator[Case]:
    for people, batches in ((8, 8), (16, 4), (64, 2)):
        for activation in ("tanh", "relu"):
            yield Case("batches", people, batches, 300, activation)
    eight = Case("contrast", 8, 4, 100)
    yield replace(eight, attack=replace(ATTACK, contrast="pixels", bounds=0.0))
    yield replace(eight, attack=replace(ATTACK, contrast="pixels"))
    yield replace(eight, attack=replace(ATTACK, bounds=0.0))
    yield eight
    defended = Case("defenses", 8, 4, 300)
    for defense in (sp.AddGaussian(1e-4), sp.AddGaussian(1e-3), sp.Prune(0.5), sp.Prune(0.9)):
        yield replace(defended, defense=defense)


def run(case: Case) -> dict[str, object]:
    data = sp.data.load("cifar10")
    psnr, labels, seconds = [], [], []
    for i in range(case.batches):
        task = sp.zoo.mlp(hidden=(WIDTH,), activation=case.activation, domain=data.domain, seed=i)
        batch = data.batch(case.people, start=case.first + i * case.people)
        client = sp.Client(sp.Gradient(), case.defense)
        seen = sp.Threat().observe(client, task, batch, rng=sp.rng(i))
        # Seconds of the processor, which others may be sharing.
        began = time.process_time()
        guess = case.attack(seen, rng=sp.rng(1000 + i))
        seconds.append(time.process_time() - began)
        paired = pair(guess, batch)
        psnr += METRICS["psnr"](paired).tolist()
        labels += METRICS["label_accuracy"](paired).tolist()
    return {
        "part": case.part,
        "people": case.people,
        "batches": case.batches,
        "first": case.first,
        "activation": case.activation,
        "attack": str(case.attack),
        "defense": str(case.defense),
        "share_recovered": round(sum(value > RECOVERED for value in psnr) / len(psnr), 4),
        "psnr_mean": round(statistics.fmean(psnr), 2),
        "psnr_least": round(min(psnr), 2),
        "labels_right": round(statistics.fmean(labels), 4),
        "seconds_median": round(statistics.median(seconds), 2),
    }


def main() -> None:
    options = parse_options(__doc__, only="")
    wanted = set(filter(None, options.only.split(",")))
    torch.set_num_threads(1)
    rows = []
    for case in cases():
        if wanted and case.part not in wanted:
            continue
        rows.append(run(case))
        print(rows[-1], flush=True)
    print(save("cocktail_party", "cpu", {"recovered_above": RECOVERED, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
