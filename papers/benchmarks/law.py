"""Does knowing a defense ever lower what is reported: two ways to make sure, person by person.

    python -m benchmarks.law [--steps 100] [--people 8]

Two to five minutes on one core. Bundled photos of 16 pixels on an untrained cnn2-v1, one start.
"Adapted" and "unaware" are one attack each. "Chosen" is an adversary who keeps the one of the two
guesses of a batch that explains the update better, by the residual under the client simulated as it
acted. "Reported" is what an audit does: both are attacks, and each person meets the worse.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import torch

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.attacks._adaptive import adapt_to_defense
from seepage.attacks._agreement import residual
from seepage.core import Attack, Protection

KNOWING = sp.Threat(knows_labels=True, knows_mixing=True)
# Each with as many people to a batch as it mixes.
BEHIND: tuple[tuple[Protection, int], ...] = (
    (sp.Prune(0.9), 1),
    (sp.TopK(1_193), 1),
    (sp.Dropout(0.7), 1),
    (sp.Clip(2.0), 1),
    (sp.AddGaussian(0.01), 1),
    (sp.AddGaussian(0.1), 1),
    (sp.dp_sgd(max_norm=1.0, noise_multiplier=0.05, batch_size=1), 1),
    (sp.Sign(), 1),
    (sp.Quantize(4), 1),
    (sp.Soteria(0.8), 1),
    (sp.Precode(32), 1),
    (sp.MixUp(4), 4),
    (sp.InstaHide(4), 4),
    (sp.chain(sp.InstaHide(4), sp.AddGaussian(0.1)), 4),
)


def attacked(
    search: Attack, task: sp.Task, defense: Protection, batch: sp.Batch, seed: int
) -> tuple[list[float], list[float], bool]:
    """PSNR of everybody by the adapted and the unaware attack, and whether the first is chosen."""
    client = sp.Client(sp.Gradient(), defense)
    known, ignored = (
        threat.observe(client, task, batch, rng=sp.rng(seed))
        for threat in (KNOWING, KNOWING.forget_defense())
    )
    plan = adapt_to_defense(search, known)
    first = plan.attack(plan.observation, rng=sp.rng(1000 + seed))
    second = search(ignored, rng=sp.rng(1000 + seed))
    # What the unaware attack found are encodings, which the client did not mix again.
    as_found = replace(plan.observation, simulate=plan.observation.simulate.with_mixing(None))
    explained = (
        unexplained(plan.observation, first, known),
        unexplained(as_found, second, ignored),
    )
    scores = [sp.score(guess, batch)["psnr"].tolist() for guess in (first, second)]
    return scores[0], scores[1], explained[0] <= explained[1]


def unexplained(simulated: sp.Observation, guess: sp.Reconstruction, seen: sp.Observation) -> float:
    labels = seen.labels if guess.labels is None else guess.labels
    assert labels is not None
    return residual(simulated, guess.inputs, labels)


def law(defense: Protection, together: int, *, steps: int, people: int) -> dict[str, object]:
    """Means over people, and what the unluckiest of them would be under-reported by."""
    photos = sp.data.load("photos", pixels=16)
    task = sp.zoo.cnn(variant="cnn2-v1", domain=photos.domain)
    search = sp.attacks.inverting_gradients(steps=steps, restarts=1, tv=1e-4)
    found: dict[str, list[float]] = {"unaware": [], "adapted": [], "chosen": []}
    for start in range(0, people, together):
        batch = photos.batch(together, start=start)
        knowing, unaware, preferred = attacked(search, task, defense, batch, start)
        found["adapted"] += knowing
        found["unaware"] += unaware
        found["chosen"] += knowing if preferred else unaware
    found["reported"] = [max(two) for two in zip(found["adapted"], found["unaware"], strict=True)]
    return {
        "defense": repr(defense),
        "psnr_mean": {name: round(fmean(values), 2) for name, values in found.items()},
        "least_gain": {
            name: round(min(v - u for v, u in zip(values, found["unaware"], strict=True)), 2)
            for name, values in found.items()
        },
        "psnr": {name: [round(value, 2) for value in values] for name, values in found.items()},
    }


def main() -> None:
    options = parse_options(__doc__, steps=100, people=8)
    torch.set_num_threads(1)
    rows = []
    for defense, together in BEHIND:
        rows.append(law(defense, together, steps=options.steps, people=options.people))
        print(rows[-1]["defense"], rows[-1]["psnr_mean"], rows[-1]["least_gain"], flush=True)
    print(save("law", "cpu", {"steps": options.steps, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
