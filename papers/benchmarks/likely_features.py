"""What is left of a defended last gradient: estimated shares, and what an attack makes of them.

    python -m benchmarks.likely_features [--people 8] [--steps 300]

Test images of CIFAR-10 in batches of four, a ResNet-18 of 16 channels after 782 steps of training.
For each defense: how far softmax(U A^T + b) - Y of the features of `estimated_features` is
from the truth, relative to its length, over 32 people, beside what the mean feature of noise gives;
and PSNR and LPIPS of `teacher_forced`, adapted to the defense, with such features and without any,
for the first people. Needs CIFAR-10 in SEEPAGE_DATA.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import one_hot

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.attacks.feature_recovery import NotToldApartWarning, estimated_features
from seepage.audit import Audit, select_targets, serial
from seepage.core import Protection
from seepage.probing._heads import classifier_head
from seepage.search._feature_matching import features_at
from seepage.utility import Training, train

Row = dict[str, object]
SIZE = 4
BATCHES = 8
DEFENSES: Mapping[str, Protection] = {
    "none": sp.chain(),
    "prune 0.5": sp.Prune(0.5),
    "prune 0.9": sp.Prune(0.9),
    "dropout 0.5": sp.Dropout(0.5),
    "dropout 0.9": sp.Dropout(0.9),
    "noise 0.01": sp.AddGaussian(0.01),
    "noise 0.1": sp.AddGaussian(0.1),
}


def taught() -> sp.Task:
    made = train(
        sp.zoo.resnet18(width=16),
        sp.data.load("cifar10", split="train").batch(20_000),
        held_out=sp.data.load("cifar10").batch(500, start=1000),
        plan=Training(steps=782, batch_size=64, lr=0.1),
        rng=sp.rng(0),
    )
    print(f"attacked at an accuracy of {made.accuracy[-1]:.3f}", flush=True)
    return made.task


def estimated(task: sp.Task, defense: Protection) -> Row:
    """Median error of the shares in a batch: by likely features, and by the mean one of noise."""
    likely, crude = [], []
    for number in range(BATCHES):
        batch = sp.data.load("cifar10").batch(SIZE, start=SIZE * number)
        client = sp.Client(sp.Gradient(), defense)
        seen = sp.Threat.strongest().observe(client, task, batch, rng=sp.rng(number))
        found = estimated_features().recover(seen, rng=sp.rng(1000 + number))
        true = _shares(seen, features_at(seen.task, found.layer, batch.inputs), batch.labels)
        assert seen.labels is not None
        mean = classifier_head(seen.task).features.mean(0).expand_as(found.values)
        likely.append(_apart(_shares(seen, found.values, seen.labels), true))
        crude.append(_apart(_shares(seen, mean, seen.labels), true))
    middle = BATCHES // 2
    return {"likely": round(sorted(likely)[middle], 3), "noise": round(sorted(crude)[middle], 3)}


def _shares(seen: sp.Observation, features: Tensor, labels: Tensor) -> Tensor:
    head, tensors = classifier_head(seen.task), seen.task.parameters
    assert head.bias is not None
    logits = features @ tensors[head.weight].T + tensors[head.bias]
    return (torch.softmax(logits, 1) - one_hot(labels, seen.task.classes)).detach()


def _apart(found: Tensor, true: Tensor) -> float:
    """Relative distance of two sets of shares, each person's to his own."""
    distances = torch.cdist(true, found)
    order = linear_sum_assignment(distances.square().numpy())[1]
    return float((found[order] - true).norm() / true.norm())


def recovered(task: sp.Task, defense: Protection, people: int, steps: int) -> Row:
    """What comes back with estimated features, and with none."""
    forced = sp.attacks.teacher_forced(steps=steps)
    row: Row = {}
    for called, attack in (("estimated", forced), ("none", replace(forced, features=None))):
        audit = Audit(
            tasks=[task],
            defenses=[defense],
            attacks={called: sp.attacks.adaptive(attack)},
            threats=[sp.Threat.strongest()],
        )
        cases = audit.cases(
            select_targets(sp.data.load("cifar10"), people=people, batch_size=SIZE, start=0)
        )
        # Without the run unaware of the defense that an audit puts beside it.
        found = list(serial([case for case in cases if case.attack_name == called]))
        for metric in ("psnr", "lpips"):
            scores = [score for one in found for score in one.record.scores[metric]]
            row[f"{metric}, {called}"] = round(fmean(scores), 3)
    return row


def main() -> None:
    options = parse_options(__doc__, people=8, steps=300)
    warnings.simplefilter("ignore", NotToldApartWarning)
    task, rows = taught(), []
    for name, defense in DEFENSES.items():
        row: Row = {"defense": name, "shares": estimated(task, defense)}
        attacked = recovered(task, defense, options.people, options.steps) if options.people else {}
        rows.append(row | attacked)
        print(rows[-1], flush=True)
        asked = {"people": options.people, "steps": options.steps}
        path = save("likely_features", "cpu", asked | {"rows": rows}, options.out)
    print(path)


if __name__ == "__main__":
    main()
