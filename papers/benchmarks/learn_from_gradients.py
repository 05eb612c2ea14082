"""How many units a batch needs: `python -m benchmarks.learn_from_gradients [--only PART,...]`.

The experiments of Qian and Hansen (2020) on MNIST and CIFAR-100, in double precision, on images
chosen by index before the run. L1 is the paper's: the sum over the entries of an image in
[0, 1]. Needs MNIST, CIFAR-100 and heart beats in SEEPAGE_DATA.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.attacks.labels import CountAware, InferLabels
from seepage.domains import Image
from seepage.scoring import count_error
from seepage.search import GradientMatching

Row = dict[str, object]


def attacked(task: sp.Task, batch: sp.Batch, attack: sp.Attack, device: str) -> Row:
    """What came back, person by person."""
    task = task.to(dtype=torch.float64, device=device)
    batch = batch.to(dtype=torch.float64, device=device)
    client = sp.Client(sp.Gradient())
    seen = sp.Threat(knows_labels=False).observe(client, task, batch, rng=sp.rng(0))
    began = time.perf_counter()
    guess = attack(seen, rng=sp.rng(1))
    assert guess.labels is not None
    batch, labels = batch.to(device="cpu"), guess.labels.cpu()
    scores = sp.score(sp.Reconstruction(guess.inputs.cpu(), labels), batch)
    entries = batch.inputs[0].numel()
    l1 = [value * entries for value in scores["l1"].tolist()]
    return {
        "l1_mean": round(sum(l1) / len(l1), 4),
        "l1": [round(value, 4) for value in l1],
        "psnr": [round(min(value, 200.0), 2) for value in scores["psnr"].tolist()],
        "label_accuracy": float(scores["label_accuracy"].mean()),
        "label_count_error": count_error(labels, batch.labels),
        "objective": min(guess.trace.finals),
        "steps": guess.trace.steps,
        "seconds": round(time.perf_counter() - began, 1),
    }


def newton(steps: int, restarts: int = 1) -> sp.Attack:
    return sp.attacks.learn_from_gradients(
        regulariser="none", optimiser="lbfgs", line_search=True, steps=steps, restarts=restarts
    )


def filters(device: str) -> list[Row]:
    """Table 6f: one convolution, one CIFAR-100 image; twelve filters are needed."""
    image = sp.data.load("cifar100").batch(1)
    rows = []
    for count in (1, 5, 8, 11, 12):
        task = sp.zoo.single_conv(filters=count, classes=100, domain=Image((3, 32, 32)))
        rows.append({"filters": count, **attacked(task, image, newton(3000), device)})
        print(rows[-1], flush=True)
    return rows


def hidden(device: str) -> list[Row]:
    """Figure 5a: eight MNIST digits, one hidden layer; eight units are needed.

    The first digit of each label from 0 to 7, with labels counted off the update before the search.
    """
    data = sp.data.load("mnist", pixels=32)
    first = torch.stack([(data.labels == label).nonzero()[0, 0] for label in range(8)])
    digits = sp.Batch(data.inputs[first], data.labels[first])
    rows = []
    for units in (4, 6, 7, 8, 10, 12):
        task = sp.zoo.fc(hidden=units, domain=Image((1, 32, 32)))
        attack = InferLabels(labelled(newton(500, restarts=4)), rule=CountAware())
        rows.append({"hidden": units, **attacked(task, digits, attack, device)})
        print(rows[-1], flush=True)
    return rows


def labelled(attack: sp.Attack) -> sp.Attack:
    """The same search with labels that are given."""
    assert isinstance(attack, GradientMatching)
    return replace(attack, search=replace(attack.search, seek_labels=False))


def orthogonality(device: str) -> list[Row]:
    """Figure 4: four MNIST digits, four hidden units, with and without the regulariser."""
    digits = sp.data.load("mnist", pixels=32).batch(4)
    task = sp.zoo.fc(hidden=4, domain=Image((1, 32, 32)))
    choices: tuple[Literal["orthogonality", "none"], ...] = ("orthogonality", "none")
    rows = []
    for regulariser in choices:
        attack = sp.attacks.learn_from_gradients(
            regulariser=regulariser, factor=0.9, every=1_000, step_size=0.02, steps=60_000
        )
        rows.append({"regulariser": regulariser, **attacked(task, digits, attack, device)})
        print(rows[-1], flush=True)
    return rows


def fading(device: str) -> list[Row]:
    """What a few rules for the regulariser bring back of eight heart beats in few steps.

    The beats are those from number 100 on, which Figure 1 is not about.
    """
    data = sp.data.load("ecg")
    task = sp.zoo.fc(hidden=16, domain=data.domain, classes=data.classes)
    task = task.to(dtype=torch.float64, device=device)
    beats = [data.batch(1, start=100 + i).to(dtype=torch.float64) for i in range(8)]
    client, threat = sp.Client(sp.Gradient()), sp.Threat(knows_labels=False)
    seen = [threat.observe(client, task, b.to(device=device), rng=sp.rng(0)) for b in beats]
    rows: list[Row] = []
    for steps in (100, 200, 400):
        rules: dict[str, dict[str, Any]] = {
            "no regulariser": {"regulariser": "none"},
            "to 0.9 every 2000 steps": {"factor": 0.9, "every": 2_000},
            "to 0.9 every step": {"factor": 0.9, "every": 1},
            "to 0.3 every 5 steps": {"factor": 0.3, "every": 5},
            "to 0.1 every 10 steps": {"every": 10},
            "to 0.1 every 20 steps": {"every": 20},
            "to 0.1, ten times": {"every": steps // 10},
            "the default": {},
            "the default, with a line search": {"line_search": True},
        }
        attacks = {"DLG": sp.attacks.dlg(iterations=steps // 20, line_search=False)} | {
            name: sp.attacks.learn_from_gradients(optimiser="lbfgs", steps=steps, **rule)
            for name, rule in rules.items()
        }
        for name, attack in attacks.items():
            assert isinstance(attack, GradientMatching)
            guesses = attack.many(seen, rngs=[sp.rng(1000 + i) for i in range(len(seen))])
            psnr = [_psnr(guess, beat) for guess, beat in zip(guesses, beats, strict=True)]
            mean, least = round(sum(psnr) / len(psnr), 1), min(psnr)
            rows.append({"steps": steps, "rule": name, "mean": mean, "least": least, "psnr": psnr})
            print(rows[-1], flush=True)
    return rows


def _psnr(guess: sp.Reconstruction, batch: sp.Batch) -> float:
    found = sp.Reconstruction(guess.inputs.cpu(), batch.labels)
    return round(min(float(sp.score(found, batch)["psnr"]), 200.0), 1)


PARTS: dict[str, Callable[[str], list[Row]]] = {
    part.__name__: part for part in (filters, hidden, orthogonality, fading)
}


def main() -> None:
    options = parse_options(__doc__, only=",".join(PARTS), device=("cpu", "cuda"))
    results: dict[str, object] = {}
    for name in options.only.split(","):
        results[name] = PARTS[name](options.device)
        # After every part, so that nothing is lost when a long one is stopped.
        name = f"learn_from_gradients-{'-'.join(results)}"
        print(save(name, options.device, results, options.out))


if __name__ == "__main__":
    main()
