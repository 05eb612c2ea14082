"""What defenses let through and what they cost: accuracy beside the strongest attack.

    python -m benchmarks.defenses --part utility --device cuda [--only 'prune 0.9,noise 0.01']
    python -m benchmarks.defenses --part attack --device cuda
    python -m benchmarks.defenses --part table [--sources FOLDER FOLDER ...]
    python -m benchmarks.defenses --scale small --part utility

Needs CIFAR-10 in SEEPAGE_DATA, or MNIST for the small scale. Rows are written as they come, and
rows of an earlier run that are not asked for again are kept; several runs at once need a folder
each. Both parts see the same networks and the same defenses; attacks meet the network before it is
trained. "table" joins what the other two left, accounts for DP-SGD where the training could not,
which needs Opacus, adds guesses that need no update, and draws the figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

import seepage as sp
from benchmarks.defense_rows import ROWS, SCALES, Row, Scale, loaded, network
from benchmarks.defense_table import DELTA, gathered, join
from benchmarks.provenance import RESULTS, save
from seepage.audit import Record
from seepage.core import Attack, Protection, SideBySide
from seepage.core.errors import Diverged, NotApplicable
from seepage.core.task import batchnorm_layers
from seepage.scoring import METRICS, applicable, pair
from seepage.utility import OneCycle, Training, noise_multiplier, train

Result = dict[str, object]


def utility(name: str, scale: Scale, device: str) -> Result:
    """Train behind the defense, at every learning rate that is tried."""
    row = ROWS[name]
    defense = row.defend(scale.batch_size)
    seen, unseen = loaded(scale.data, "train"), loaded(scale.data, "test")
    # Poisson batches differ in size, and each size would be timed anew.
    torch.backends.cudnn.benchmark = not row.is_private
    account = importlib.util.find_spec("opacus") is not None
    tried = []
    for share in row.lr:
        plan = Training(
            epochs=scale.private_epochs if row.is_private else scale.epochs,
            batch_size=scale.batch_size,
            lr=scale.lr * share,
            weight_decay=5e-4,
            schedule=OneCycle(),
            sampling="poisson" if row.is_private else "shuffled",
            augment=scale.augment,
        )
        try:
            got = train(
                network(scale, row, device),
                seen.batch(scale.examples),
                held_out=unseen.batch(scale.held_out),
                plan=plan,
                defense=defense,
                precision="tf32" if row.is_private else "bf16",
                delta=DELTA if account else None,
                rng=sp.rng(0),
            )
        except Diverged as error:
            if share == row.lr[-1] and not tried:
                raise
            print(f"{name}: {error}", flush=True)
            continue
        steps = plan.count_steps(scale.examples)
        tried.append(got.plain() | {"lr": plan.lr, "steps": steps})
    losses = [one["training_loss"] for one in tried]
    best = min(range(len(tried)), key=lambda i: (losses[i] is None, losses[i] or 0.0))
    return tried[best] | {
        "noise_multiplier": noise_multiplier(defense),
        "sample_rate": scale.batch_size / scale.examples,
        "tried": [{key: one[key] for key in ("lr", "accuracy", "training_loss")} for one in tried],
    }


def attack(name: str, scale: Scale, device: str) -> Result:
    """Attack the first people of the test set behind the defense, with everything there is."""
    row = ROWS[name]
    task, defense = network(scale, row, device), row.defend(scale.attacked)
    client = sp.Client(sp.Gradient(), defense)
    images = loaded(scale.data, "test")
    starts = range(0, scale.people, scale.attacked)
    batches = [images.batch(scale.attacked, start=start) for start in starts]
    records, seconds = [], {}
    for label, (threat, adversary) in attacks(task, row, scale).items():
        seen = [
            threat.observe(client, task, batch.to(device=device), rng=sp.rng(i))
            for i, batch in enumerate(batches)
        ]
        began = time.perf_counter()
        try:
            guesses = attacked(adversary, seen)
        except NotApplicable as error:
            print(f"{label}: {error}", flush=True)
            continue
        seconds[label] = round(time.perf_counter() - began, 1)
        for start, batch, guess in zip(starts, batches, guesses, strict=True):
            people = tuple(range(start, start + len(batch)))
            records.append(
                Record(
                    data=scale.data,
                    people=people,
                    model=task.name,
                    local=repr(client.local),
                    defense=name,
                    threat=repr(threat),
                    attack=label,
                    seed=0,
                    scores=scored(guess, batch),
                )
            )
    return {"seconds": seconds, "records": [record.plain() for record in records]}


def attacks(task: sp.Task, row: Row, scale: Scale) -> dict[str, tuple[sp.Threat, Attack]]:
    """A weak prior and a strong one, adapted to the defense."""
    strongest = sp.Threat.strongest()
    layerwise, joint = searches(task, scale.steps)
    if row.is_private:
        slow, _ = searches(task, scale.private_steps)
        unaware = replace(strongest, knows_defense=False, knows_mixing=False)
        return {
            f"layerwise, adapted, {scale.private_steps} steps": (
                strongest,
                sp.attacks.adaptive(slow),
            ),
            "joint, unaware": (unaware, joint),
        }
    # Behind strong noise both adapted searches would be the same posterior.
    adapted = joint if is_noise(row.defend(1)) else sp.attacks.adaptive(joint)
    return {
        "layerwise, adapted": (strongest, sp.attacks.adaptive(layerwise)),
        "joint": (strongest, adapted),
    }


def searches(task: sp.Task, steps: int) -> tuple[Attack, Attack]:
    """By the cosine of each layer with a weak prior, and by the joint cosine with a strong one."""
    options = {"steps": steps, "restarts": 1, "tv": 1e-4, "layerwise": 2.5}
    joint = sp.attacks.inverting_gradients(steps=steps, restarts=1, tv=1e-2)
    if batchnorm_layers(task.model):
        return sp.attacks.gradattack_strongest(**options), joint
    return sp.attacks.inverting_gradients(**options), joint


def is_noise(defense: Protection) -> bool:
    return isinstance(defense, sp.AddGaussian)


def attacked(adversary: Attack, seen: Sequence[sp.Observation]) -> Sequence[sp.Reconstruction]:
    """Side by side where that can be done, since a card is better used."""
    keys = [sp.rng(1000 + i) for i in range(len(seen))]
    if isinstance(adversary, SideBySide):
        return adversary.many(seen, rngs=keys)
    return [adversary(one, rng=key) for one, key in zip(seen, keys, strict=True)]


def scored(guess: sp.Reconstruction, batch: sp.Batch) -> dict[str, tuple[float, ...]]:
    paired = pair(sp.Reconstruction(guess.inputs.cpu().float()), batch)
    fitting = {metric.name for metric in applicable(paired)}
    names = [name for name in ("psnr", "lpips") if name in fitting]
    return {name: tuple(METRICS[name](paired).tolist()) for name in names}


PARTS = {"utility": utility, "attack": attack}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", required=True, choices=[*PARTS, "table"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scale", default="full", choices=list(SCALES))
    parser.add_argument("--only", default=",".join(ROWS), help="rows, by comma")
    parser.add_argument("--epochs", type=int, help="of all but DP-SGD, instead of the scale's")
    parser.add_argument("--steps", type=int, help="of attacks, instead of the scale's")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result")
    parser.add_argument("--sources", type=Path, nargs="+", help="folders the table is made from")
    options = parser.parse_args(arguments)
    suffix = "" if options.scale == "full" else f"-{options.scale}"
    if options.part == "table":
        join(options.sources or [options.out], options.out, SCALES[options.scale], suffix)
        return
    asked = {name: getattr(options, name) for name in ("epochs", "steps")}
    scale = replace(SCALES[options.scale], **{n: v for n, v in asked.items() if v is not None})
    file = f"defenses-{options.part}{suffix}"
    rows = gathered(options.part, [options.out], suffix)["rows"]
    for name in options.only.split(","):
        began = time.perf_counter()
        rows[name] = PARTS[options.part](name, scale, options.device)
        rows[name]["wall_seconds"] = round(time.perf_counter() - began, 1)
        # After every row, so that nothing is lost to a time limit.
        path = save(file, options.device, {"scale": options.scale, "rows": rows}, options.out)
        shown = {k: v for k, v in rows[name].items() if k not in ("records", "loss", "evaluated")}
        print(name, shown, flush=True)
    print(path)


if __name__ == "__main__":
    main()
