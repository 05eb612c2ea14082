"""The strong attack of Liu et al. (2024) beside those it is compared with, on a card.

    python -m benchmarks.systematic --device cuda [--scale smoke] [--features exact_features]

Needs CIFAR-10 in SEEPAGE_DATA. The network is `wide_head_resnet18`, trained by SGD for as many
steps as one epoch of CIFAR-10 has, on the 20 000 images there are; its random neurons are put back
as they were drawn. Labels and batch statistics are known to every attack. `comparison` has four
attacks at batches of 4, 8, 16 and 32 test images; `ablation` the three rows of the paper's Table 6,
on pixels: the joint cosine without feature matching, the reweighted one without, and with it. Truth
and guesses are drawn, one above the other, into `--sheets`. `--scale smoke` runs the same code with
a narrow network and a few steps, to see that it works.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import seepage as sp
from benchmarks.provenance import save
from seepage.attacks.feature_recovery import (
    FeatureRecovery,
    cocktail_party,
    exact_features,
    tensor_features,
)
from seepage.attacks.gradient_matching import Cosine, TotalVariation
from seepage.attacks.systematic import Systematic
from seepage.core import Attack, Paired, Task
from seepage.scoring import METRICS, pair
from seepage.utility import Training, train

SEEN = ("psnr", "lpips")
FEATURES = {recipe.__name__: recipe for recipe in (exact_features, tensor_features, cocktail_party)}


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    width: int
    neurons: int
    trained: int
    training: int
    sizes: tuple[int, ...]
    batches: int
    steps: int
    prior: int


SCALES = {
    "paper": Scale(64, 16_384, 2_048, 782, (4, 8, 16, 32), 2, 10_000, 64),
    "smoke": Scale(2, 64, 16, 2, (2,), 1, 3, 8),
}


def network(scale: Scale, device: str) -> Task:
    """ResNet-18 with the wide head after one epoch's worth of steps of 64 images."""
    data = sp.data.load("cifar10", split="train")
    task = sp.zoo.wide_head_resnet18(
        width=scale.width, neurons=scale.neurons, trained=scale.trained, domain=data.domain
    ).to(device=device)
    count = min(20_000, 64 * scale.training)
    known, unseen = data.batch(count), sp.data.load("cifar10").batch(256, start=1000)
    plan = Training(steps=scale.training, batch_size=64, lr=0.1, momentum=0.9)
    made = train(
        task,
        known.to(device=device),
        held_out=unseen.to(device=device),
        plan=plan,
        delta=None,
        rng=sp.rng(0),
    )
    return replace(made.task, model=_with_drawn_neurons(made.task, task, scale.trained))


def _with_drawn_neurons(trained: Task, drawn: Task, first: int) -> torch.nn.Module:
    model = copy.deepcopy(trained.model)
    with torch.no_grad():
        for name, rows in (("fc.hidden.weight", True), ("fc.head.weight", False)):
            ours, theirs = model.get_parameter(name), drawn.parameters[name]
            if rows:
                ours[first:] = theirs[first:]
            else:
                ours[:, first:] = theirs[:, first:]
    return model


def comparison(scale: Scale, features: FeatureRecovery) -> Iterator[tuple[str, Attack]]:
    steps, attacks = scale.steps, sp.attacks
    yield "inverting_gradients", attacks.inverting_gradients(steps=steps, restarts=1, tv=1e-2)
    yield "gradattack_strongest", attacks.gradattack_strongest(steps=steps)
    yield "systematic, pixels", attacks.systematic(features=features, steps=steps)
    prior = attacks.PriorNetwork(width=scale.prior)
    yield "systematic, prior", attacks.systematic(features=features, prior=prior, steps=steps)


def ablation(scale: Scale, features: FeatureRecovery) -> Iterator[tuple[str, Attack]]:
    plain = sp.attacks.systematic(steps=scale.steps)
    assert isinstance(plain, Systematic)
    _, *others = plain.search.terms
    joint = replace(plain.search, terms=(Cosine(), *others))
    assert any(isinstance(term, TotalVariation) for term in others)
    yield "without reweighting and features", replace(plain, search=joint)
    yield "without features", plain
    yield "full", replace(plain, features=features)


PARTS = {"comparison": comparison, "ablation": ablation}


def run(attack: Attack, task: Task, people: int, batches: int, sheet: Path | None) -> dict:
    data, threat = sp.data.load("cifar10"), sp.Threat(knows_labels=True, batchnorm="exact")
    device = next(iter(task.parameters.values())).device
    scores: dict[str, list[float]] = {name: [] for name in SEEN}
    began = time.perf_counter()
    for i in range(batches):
        batch = data.batch(people, start=i * people).to(device=device)
        seen = threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(i))
        paired = pair(attack(seen, rng=sp.rng(1000 + i)), batch)
        for name, values in scores.items():
            values += METRICS[name](paired).tolist()
        if sheet is not None:
            draw(paired, sheet.with_name(f"{sheet.name}-{i}.png"))
    means = {name: round(statistics.fmean(values), 4) for name, values in scores.items()}
    return {**means, "seconds": round(time.perf_counter() - began, 1)}


def draw(paired: Paired, path: Path) -> None:
    """The truth above what was guessed of it."""
    rows = [torch.cat(list(images.cpu()), dim=2) for images in (paired.truth, paired.guess)]
    whole: Tensor = torch.cat(rows, dim=1).clamp(0, 1).mul(255).byte().permute(1, 2, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(whole.numpy()).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--scale", default="paper", choices=list(SCALES))
    parser.add_argument("--features", default="exact_features", choices=list(FEATURES))
    parser.add_argument("--only", default="", help="parts, separated by commas")
    parser.add_argument("--sheets", type=Path, default=None, help="folder for pictures")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(","))) or set(PARTS)
    scale = SCALES[options.scale]
    task = network(scale, options.device)
    rows = []
    for part, attacks in PARTS.items():
        if part not in wanted:
            continue
        for people in scale.sizes:
            for name, attack in attacks(scale, FEATURES[options.features]()):
                sheet = options.sheets and options.sheets / f"{part}-{people}-{name}"
                made = run(attack, task, people, scale.batches, sheet)
                rows.append({"part": part, "people": people, "attack": name, **made})
                print(rows[-1], flush=True)
    about = {"scale": options.scale, "features": options.features, "network": task.name}
    name = "systematic" if options.scale == "paper" else f"systematic-{options.scale}"
    print(save(name, options.device, {**about, "rows": rows}, options.out))


if __name__ == "__main__":
    main()
