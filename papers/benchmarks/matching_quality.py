"""What the matching attacks recover, on images chosen by index before the run.

    python -m benchmarks.matching_quality --device cuda [--only convnet,ablation,...] [--scale 0.1]

Needs CIFAR-10 and the trained ResNet-20 in SEEPAGE_DATA. The adversary's choices never use the
truth. PSNR is printed in both conventions: images in [0, 1], and 003's normalised space.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

import seepage as sp
from benchmarks.provenance import parse_options, save
from seepage.core import SideBySide
from seepage.domains import CIFAR10, IMAGENET, Image
from seepage.scoring import METRICS, applicable, pair
from seepage.search import (
    L2,
    LBFGS,
    Adam,
    Constant,
    Cosine,
    Engine,
    GradientDescent,
    GradientMatching,
    Search,
    StepDecay,
    TotalVariation,
)
from seepage_papers.chosen import gradient_norms
from seepage_papers.legacy import psnr_normalised_003

Row = dict[str, object]
Sheets = dict[str, tuple[Tensor, Tensor]]


class Bench:
    """Where to run, how much of the budget to spend, and what was seen."""

    def __init__(self, device: str, scale: float) -> None:
        self.device = torch.device(device)
        self.scale = scale
        self.rows: list[Row] = []
        self.sheets: Sheets = {}
        self.images = sp.data.load("cifar10")

    def steps(self, count: int) -> int:
        return max(2, int(count * self.scale))

    def batches(self, count: int, size: int = 1, start: int = 0) -> list[sp.Batch]:
        count = max(1, int(count * min(1.0, self.scale * 4)))
        return [self.images.batch(size, start=start + i * size) for i in range(count)]

    def attack(
        self,
        name: str,
        attack: SideBySide,
        task: sp.Task,
        batches: Sequence[sp.Batch],
        *,
        local: sp.FedAvg | None = None,
        threat: sp.Threat | None = None,
        note: str = "",
        groups: Mapping[str, int] | None = None,
        effort: Row | None = None,
    ) -> None:
        """Attack every batch, all together, and keep what came back, a row for each group."""
        threat = threat or sp.Threat(knows_labels=True)
        client = sp.Client(local or sp.Gradient())
        seen = [
            threat.observe(client, task, b.to(device=self.device), rng=sp.rng(i))
            for i, b in enumerate(batches)
        ]
        began = time.perf_counter()
        guesses = attack.many(seen, rngs=[sp.rng(1000 + i) for i in range(len(seen))])
        seconds = time.perf_counter() - began
        if isinstance(attack, GradientMatching):
            search = attack.search
            effort = {"steps": search.steps, "restarts": search.restarts}
        start = 0
        for group, size in (groups or {"": len(batches)}).items():
            some = slice(start, start + size)
            start += size
            row = self._scored(f"{name}{group}", task, batches[some], guesses[some], note)
            norms = [float(f"{float(one.update.norm()):.3g}") for one in seen[some]]
            row |= {**(effort or {}), "seconds": round(seconds, 1), "gradient_norms": norms}
            self.rows.append(row)
            told = {k: v for k, v in row.items() if k not in ("psnr", "objective")}
            print(told, flush=True)

    def _scored(
        self,
        name: str,
        task: sp.Task,
        batches: Sequence[sp.Batch],
        guesses: Sequence[sp.Reconstruction],
        note: str,
    ) -> Row:
        psnr, normalised, ssim, lpips, labels = [], [], [], [], []
        truth, found = [], []
        for batch, guess in zip(batches, guesses, strict=True):
            labels_on_cpu = None if guess.labels is None else guess.labels.cpu()
            paired = pair(sp.Reconstruction(guess.inputs.cpu().float(), labels_on_cpu), batch)
            psnr.extend(METRICS["psnr"](paired).tolist())
            normalised.extend(psnr_normalised_003(paired, task.domain).tolist())
            ssim.extend(METRICS["ssim"](paired).tolist())
            labels.extend(METRICS["label_accuracy"](paired).tolist())
            if any(metric.name == "lpips" for metric in applicable(paired)):
                lpips.extend(METRICS["lpips"](paired).tolist())
            truth.append(paired.truth)
            found.append(paired.guess)
        self.sheets[name] = torch.cat(truth), torch.cat(found)
        return {
            "case": name,
            "note": note,
            "people": len(psnr),
            "psnr_mean": _mean(psnr),
            "psnr_normalised_mean": _mean(normalised),
            "ssim_mean": _mean(ssim),
            "lpips_mean": _mean(lpips) if lpips else None,
            "label_accuracy": _mean(labels),
            "above_40_db": sum(value > 40 for value in psnr),
            "psnr": [round(min(value, 200.0), 2) for value in psnr],
            "objective": [min(guess.trace.finals) for guess in guesses],
            "diverged": sum(guess.trace.diverged for guess in guesses),
        }


# Chosen on CIFAR-10 test images 100 to 107, which no part scores.
POWER = 2.5


def convnet(bench: Bench) -> None:
    task = sp.zoo.convnet(width=64, domain=CIFAR10).to(device=bench.device)
    attack = sp.attacks.inverting_gradients(steps=bench.steps(4000), restarts=8)
    bench.attack("ConvNet-64, setting A, 8 restarts", attack, task, bench.batches(16))


def layerwise(bench: Bench) -> None:
    """Setting A with the tensors compared one by one."""
    task = sp.zoo.convnet(width=64, domain=CIFAR10).to(device=bench.device)
    attack = sp.attacks.inverting_gradients(steps=bench.steps(4000), restarts=8, layerwise=POWER)
    name = f"ConvNet-64, setting A, 8 restarts, layerwise {POWER:g}"
    bench.attack(name, attack, task, bench.batches(16))


def powers(bench: Bench) -> None:
    """How `POWER` was chosen: images 100 to 107, one restart."""
    task = sp.zoo.convnet(width=64, domain=CIFAR10).to(device=bench.device)
    for power in (0.0, 1.0, 2.0, 2.5, 3.0):
        attack = sp.attacks.inverting_gradients(
            steps=bench.steps(4000), restarts=1, layerwise=power
        )
        name = f"ConvNet-64, one restart, layerwise {power:g}"
        bench.attack(name, attack, task, bench.batches(8, start=100))


def precision(bench: Bench) -> None:
    """What the card's rounding and the weight of the total variation cost."""
    task = sp.zoo.convnet(width=64, domain=CIFAR10).to(device=bench.device)
    for rounding, tv in (("tf32", 1e-8), ("float32", 1e-8), ("float32", 1e-6)):
        attack = sp.attacks.inverting_gradients(
            steps=bench.steps(4000), restarts=1, tv=tv, engine=Engine(precision=rounding)
        )
        name = f"ConvNet-64, one restart, {rounding}, TV {tv:g}"
        bench.attack(name, attack, task, bench.batches(8))


def ablation(bench: Bench) -> None:
    """003 Table 1, row by row, one restart each."""
    task = sp.zoo.convnet(width=64, domain=CIFAR10).to(device=bench.device)
    steps = bench.steps(4000)

    def search(**changes: object) -> GradientMatching:
        options: dict[str, object] = {
            "terms": (Cosine(), TotalVariation(weight=1e-8)),
            "optimiser": Adam(),
            "schedule": StepDecay(),
            "steps": steps,
        }
        return GradientMatching(Search(**{**options, **changes}))  # type: ignore[arg-type]

    variants = {
        "basic setup": search(),
        "without signed gradients": search(optimiser=Adam(sign="none")),
        "without total variation": search(terms=(Cosine(),)),
        "gradient descent instead of Adam": search(optimiser=GradientDescent()),
        "without box constraints": search(boxed=False),
        "L-BFGS instead of Adam": search(
            optimiser=LBFGS(history=20), schedule=Constant(), steps=max(2, steps // 4)
        ),
        "L2 instead of cosine": search(terms=(L2(), TotalVariation(weight=1e-8))),
    }
    for name, attack in variants.items():
        bench.attack(f"003 Table 1: {name}", attack, task, bench.batches(16))


def lenet(bench: Bench) -> None:
    task = sp.zoo.lenet(domain=Image((3, 32, 32))).to(device=bench.device)
    attack = sp.attacks.dlg(iterations=max(1, int(150 * bench.scale)), restarts=8)
    bench.attack("LeNet, DLG, 8 restarts", attack, task, bench.batches(16))


def fedavg(bench: Bench) -> None:
    task = sp.zoo.convnet(width=64, domain=CIFAR10).to(device=bench.device)
    for steps, images, budget in ((5, 2, 2000), (20, 1, 1000)):
        attack = sp.attacks.inverting_gradients(
            steps=bench.steps(budget), restarts=1, tv=1e-6, layerwise=POWER
        )
        bench.attack(
            f"ConvNet-64, FedAvg {steps} steps at 1e-4, layerwise {POWER:g}",
            attack,
            task,
            bench.batches(images),
            local=sp.FedAvg(lr=1e-4, steps=steps),
        )


# Two rows of the head are permuted, those of cats and dogs, so these are the people.
FLIPPED = (3, 5)
# Test images among which they are sought; a trial of the code takes fewer.
AMONG = 1000


def trained(bench: Bench) -> None:
    """003 Fig. 6 and 8: the smallest and the largest gradients, and two rows permuted.

    Cats and dogs among the first 1000 test images, 8 of each end; honest, flipped, and honest with
    the gradient at the logits read off the last layer.
    """
    weights = sp.data.data_root() / "weights" / "cifar10_resnet20-12fca82f.safetensors"
    domain = Image((3, 32, 32), mean=IMAGENET.mean, std=IMAGENET.std)
    task = sp.zoo.load_weights(sp.zoo.resnet20(domain=domain), weights).to(device=bench.device)
    norms = gradient_norms(bench.images, task, AMONG if bench.scale > 0.1 else 50)
    pets = [i for i in range(len(norms)) if int(bench.images.labels[i]) in FLIPPED]
    order = sorted(pets, key=norms.__getitem__)
    count = min(8, len(order) // 2)
    chosen = [*order[:count], *order[-count:]]
    batches = [bench.images.batch(1, start=i) for i in chosen]
    for power in (None, POWER):
        steps, fidelity = bench.steps(3000), "" if power is None else f", layerwise {power:g}"
        search = sp.attacks.inverting_gradients(steps=steps, restarts=1, tv=1e-3, layerwise=power)
        flip = sp.attacks.label_flip(attack=search, rows=FLIPPED)
        arms: dict[str, tuple[SideBySide, sp.Task]] = {
            "honest": (search, task),
            "flipped": (flip, flip.plant(task, rng=sp.rng(0))),
            "logits read": (sp.attacks.ReadLogits(search), task),
        }
        for arm, (attack, victim) in arms.items():
            bench.attack(
                f"trained ResNet-20, {arm}{fidelity}",
                attack,
                victim,
                batches,
                note=f"images {chosen}",
                groups={", smallest": count, ", largest": count},
                effort={"steps": steps, "restarts": 1},
            )


def resnet18(bench: Bench) -> None:
    task = sp.zoo.resnet18(domain=CIFAR10).to(device=bench.device)
    for size, power in product((4, 8), (None, POWER)):
        attack = sp.attacks.gradattack_strongest(
            steps=bench.steps(3000), restarts=4, tv=1e-4, layerwise=power
        )
        fidelity = "" if power is None else f", layerwise {power:g}"
        bench.attack(
            f"ResNet-18, B={size}, exact batch statistics and labels known{fidelity}",
            attack,
            task,
            bench.batches(1, size=size),
            threat=sp.Threat(knows_labels=True, batchnorm="exact"),
        )


PARTS: dict[str, Callable[[Bench], None]] = {
    part.__name__: part
    for part in (
        convnet,
        layerwise,
        powers,
        precision,
        ablation,
        lenet,
        resnet18,
        fedavg,
        trained,
    )
}


def _mean(values: Sequence[float]) -> float:
    finite = [min(value, 200.0) for value in values]
    return round(sum(finite) / len(finite), 4)


def save_sheet(sheets: Sheets, path: Path) -> None:
    """Truth above reconstruction, a pair of rows per case."""
    from PIL import Image as Pillow

    width = max(len(truth) for truth, _ in sheets.values())
    strips = []
    for truth, found in sheets.values():
        for images in (truth, found.clamp(0, 1)):
            strip = torch.ones(3, 34, 34 * width)
            for i, image in enumerate(images):
                strip[:, 1:33, 34 * i + 1 : 34 * i + 33] = image
            strips.append(strip)
    sheet = (torch.cat(strips, dim=1).permute(1, 2, 0) * 255).byte().numpy()
    Pillow.fromarray(sheet).save(path)


def main() -> None:
    options = parse_options(__doc__, device=("cpu", "cuda"), only=",".join(PARTS), scale=1.0)
    bench = Bench(options.device, options.scale)
    chosen = options.only.split(",")
    for name in chosen:
        PARTS[name](bench)
        # After every part, so that nothing is lost to a time limit.
        file = f"matching_quality-{'-'.join(chosen)}"
        path = save(file, options.device, {"rows": bench.rows}, options.out)
        save_sheet(bench.sheets, path.with_suffix(".png"))
    print(path)


if __name__ == "__main__":
    main()
