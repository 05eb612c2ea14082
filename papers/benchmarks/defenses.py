"""What defenses let through and what they cost: accuracy beside the strongest attack.

    python -m benchmarks.defenses --part utility --device cuda [--only 'prune 0.9,noise 0.01']
    python -m benchmarks.defenses --part attack --device cuda [--schooled 8 --keep FOLDER]
    python -m benchmarks.defenses --part table [--sources FOLDER FOLDER ...]
    python -m benchmarks.defenses --scale small --part utility

Needs CIFAR-10 in SEEPAGE_DATA, or MNIST for the small scale. Rows are written as they come, and
rows of an earlier run that are not asked for again are kept; several runs at once need a folder
each, and the same `--keep` if they attack a network that is taught first. Both parts see the same
networks and the same defenses; attacks meet the network before it is trained, or after `--schooled`
epochs without a defense. "table" joins what the other two left,
accounts for DP-SGD where the training could not, which needs Opacus, adds guesses that need no
update, and draws the figures.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

import seepage as sp
from benchmarks.defense_rows import ROWS, SCALES, Row, Scale, loaded, network, victim
from benchmarks.defense_table import DELTA, gathered, join
from benchmarks.provenance import RESULTS, origin, save
from seepage.audit import Case, select_targets, side_by_side
from seepage.core import Attack
from seepage.core._construct import Component
from seepage.core._task import batchnorm_layers
from seepage.core.errors import Diverged, UnknownName
from seepage.scoring import METRICS
from seepage.utility import OneCycle, Training, noise_multiplier, train

Result = dict[str, object]
Keep = Callable[[Mapping[str, Result]], None]


def utilities(names: Sequence[str], scale: Scale, device: str, keep: Keep, _: Path | None) -> None:
    """Train behind each defense."""
    for name in names:
        began = time.perf_counter()
        row = utility(name, scale, device)
        row["wall_seconds"] = round(time.perf_counter() - began, 1)
        print(name, {k: v for k, v in row.items() if k not in ("loss", "evaluated")}, flush=True)
        keep({name: row})


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


def leaks(names: Sequence[str], scale: Scale, device: str, keep: Keep, taught: Path | None) -> None:
    """Attack the first people of the test set behind each defense, with everything there is."""
    cases = {
        case.id: (case, name) for name in names for case in attempts(name, scale, device, taught)
    }
    left = Counter(name for _, name in cases.values())
    rows: dict[str, Result] = {name: {"seconds": Counter(), "records": []} for name in names}
    for outcome in side_by_side([case for case, _ in cases.values()]):
        record = outcome.record
        _, name = cases[record.case]
        left[name] -= 1
        print(f"{name}, {record.attack}: {record.error or record.scores}", flush=True)
        if record.error is None:
            rows[name]["seconds"][str(record.attack)] += float(record.effort["seconds"])
            rows[name]["records"].append(replace(record, defense=(Component(name),)).plain())
        # Only whole rows, so that a run that is broken off leaves those of an earlier one alone.
        if not left[name] and rows[name]["records"]:
            keep({name: rows[name]})


def attempts(name: str, scale: Scale, device: str, taught: Path | None = None) -> list[Case]:
    """Every attack on every batch behind one defense."""
    row, images = ROWS[name], loaded(scale.data, "test")
    task = victim(scale, row, device, taught)
    client = sp.Client(sp.Gradient(), row.defend(scale.attacked))
    wanted = ("psnr", "lpips") if images.domain.shape[0] == 3 else ("psnr",)
    measured = [METRICS[metric] for metric in wanted]
    batches = select_targets(images, people=scale.people, batch_size=scale.attacked, start=0)
    return [
        Case(task, client, threat, adversary, label, batch, seed=0, metrics=measured)
        for label, (threat, adversary) in attacks(task, row, scale).items()
        for batch in batches
    ]


def attacks(task: sp.Task, row: Row, scale: Scale) -> dict[str, tuple[sp.Threat, Attack]]:
    """A weak prior and a strong one, adapted to the defense, and features where they are known."""
    strongest = sp.Threat.strongest()
    layerwise, joint = searches(task, scale.steps)
    if row.is_private:
        slow, _ = searches(task, scale.private_steps)
        return {
            f"layerwise, adapted, {scale.private_steps} steps": (
                strongest,
                sp.attacks.adaptive(slow),
            ),
            "joint, unaware": (strongest.forget_defense(), joint),
        }
    defense = row.defend(scale.attacked)
    found = {"layerwise, adapted": (strongest, sp.attacks.adaptive(layerwise))}
    # Behind strong noise both adapted searches would be the same posterior.
    if isinstance(defense, sp.AddGaussian):
        found["joint"] = strongest, joint
    else:
        found["joint, adapted"] = strongest, sp.attacks.adaptive(joint)
    forced = sp.attacks.teacher_forced(steps=scale.steps)
    found["teacher forced, adapted"] = strongest, sp.attacks.adaptive(forced)
    return found


def searches(task: sp.Task, steps: int) -> tuple[Attack, Attack]:
    """By the cosine of each layer with a weak prior, and by the joint cosine with a strong one."""
    options = {"steps": steps, "restarts": 1, "tv": 1e-4, "layerwise": 2.5}
    joint = sp.attacks.inverting_gradients(steps=steps, restarts=1, tv=1e-2)
    if batchnorm_layers(task.model):
        return sp.attacks.gradattack_strongest(**options), joint
    return sp.attacks.inverting_gradients(**options), joint


PARTS = {"utility": utilities, "attack": leaks}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", required=True, choices=[*PARTS, "table"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scale", default="full", choices=list(SCALES))
    parser.add_argument("--only", default=",".join(ROWS), help="rows, by comma")
    parser.add_argument("--epochs", type=int, help="of all but DP-SGD, instead of the scale's")
    parser.add_argument("--steps", type=int, help="of attacks, instead of the scale's")
    parser.add_argument("--schooled", type=int, help="epochs that the attacked network has had")
    parser.add_argument("--keep", type=Path, help="folder for attacked networks, to go on with")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the result")
    parser.add_argument("--sources", type=Path, nargs="+", help="folders the table is made from")
    options = parser.parse_args(arguments)
    suffix = "" if options.scale == "full" else f"-{options.scale}"
    if options.part == "table":
        join(options.sources or [options.out], options.out, SCALES[options.scale], suffix)
        return
    asked = {name: getattr(options, name) for name in ("epochs", "steps", "schooled")}
    scale = replace(SCALES[options.scale], **{n: v for n, v in asked.items() if v is not None})
    wanted = options.only.split(",")
    for name in wanted:
        if name not in ROWS:
            raise UnknownName("row", name, ROWS)
    before = gathered(options.part, [options.out], suffix)
    rows, runs = before["rows"], before["runs"]

    made: list[str] = []

    # As rows come, so that nothing is lost to a time limit.
    def keep(found: Mapping[str, Result]) -> None:
        rows.update({name: row | {"asked": asked} for name, row in found.items()})
        made.extend(found)
        now = origin(options.device, __name__) | {"rows": made}
        content = {"scale": options.scale, "runs": [*_without(made, runs), now], "rows": rows}
        save(f"defenses-{options.part}{suffix}", options.device, content, options.out)

    PARTS[options.part](wanted, scale, options.device, keep, options.keep)


def _without(names: Sequence[str], runs: Sequence[Result]) -> list[Result]:
    """What runs were that have left rows which were not made again."""
    left = [run | {"rows": [row for row in run["rows"] if row not in names]} for run in runs]
    return [run for run in left if run["rows"]]


if __name__ == "__main__":
    main()
