"""Whole batches of CIFAR-10 images out of a ResNet-18, by everybody's feature maps.

    python -m benchmarks.feature_maps [--device cuda] [--epochs 20] [--sizes 4 8 16 24 30]
        [--modes eval train] [--firsts 200 700 1200] [--steps 2000] [--learn 15]

The network is trained on the first 8000 training images by SGD with momentum, one cycle of the
learning rate, in bfloat16 where there is a GPU; the decoder of `feature_maps` learns from the same
images in --learn passes. The people are test images from number --firsts on, which nothing was
chosen on. Each row is one batch: how many people were told apart, the PSNR of each person (of those
who were missed, that of the mean public image), that of the mean public image for all, and seconds
without and with what the decoder takes once for each network and batch size. Rows are written as
they come. Needs CIFAR-10 in SEEPAGE_DATA.
"""

from __future__ import annotations

import argparse
import time
import warnings
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import seepage as sp
from benchmarks.provenance import save
from seepage.attacks.feature_recovery._features import NotToldApartWarning
from seepage.core.errors import NotApplicable
from seepage.data import Dataset

PUBLIC, BATCH, RECOGNISABLE = 8_000, 128, 20.0


def train(model: nn.Module, data: Dataset, epochs: int, device: str) -> nn.Module:
    torch.manual_seed(0)
    public = data.batch(PUBLIC)
    inputs, labels = data.domain.normalise(public.inputs).to(device), public.labels.to(device)
    each = PUBLIC // BATCH
    optimiser = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.2, total_steps=epochs * each)
    model.train()
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(PUBLIC)[: each * BATCH], BATCH):
            images = inputs[chosen.to(device)]
            images = images.flip(-1) if torch.rand(()) < 0.5 else images
            images = images.roll(tuple(torch.randint(-4, 5, (2,)).tolist()), (-1, -2))
            with torch.autocast(device, torch.bfloat16, device == "cuda"):
                loss = cross_entropy(model(images), labels[chosen.to(device)])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            plan.step()
    return model.eval()


def measure(
    task: sp.Task, batch: sp.Batch, public: Tensor, options: argparse.Namespace, *, learned: bool
) -> dict[str, object]:
    threat = sp.Threat(batchnorm="unknown" if task.mode == "train" else "running")
    seen = threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    decoder = sp.Decoder(sp.PublicData(public), options.learn)
    attack = sp.attacks.feature_maps(decoder=decoder, steps=options.steps)
    typical = task.domain.typical(public).expand_as(batch.inputs)
    mean = sp.score(sp.Reconstruction(typical), batch, domain=task.domain)["psnr"].mean()
    row: dict[str, object] = {"mean_image": round(float(mean), 1)}
    try:
        seconds = []
        for _ in range(1 if learned else 2):
            began = time.perf_counter()
            guess = attack(seen, rng=sp.rng(1))
            seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        maps = attack.recover(seen, rng=sp.rng(1).fork("maps"))
        linear = time.perf_counter() - began
    except NotApplicable as error:
        return row | {"refused": str(error)}
    psnr = sp.score(guess, batch, domain=task.domain)["psnr"]
    misfits = maps.misfits
    return row | {
        "told_apart": len(maps),
        "psnr": [round(one, 1) for one in sorted(psnr.tolist())],
        "mean": round(float(psnr.mean()), 2),
        "least": round(float(psnr.min()), 2),
        "above_20": int((psnr > RECOGNISABLE).sum()),
        "outside": float(maps.outside.median()),
        "misfit": None if misfits is None else float(misfits.median()),
        "seconds": round(seconds[-1], 1),
        "seconds_maps": round(linear, 1),
        "seconds_learning": None if learned else round(seconds[0] - seconds[-1], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--epochs", type=int, default=20, help="of the network")
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 8, 16, 24, 30])
    parser.add_argument("--modes", nargs="+", default=["eval", "train"])
    parser.add_argument("--firsts", type=int, nargs="+", default=[200, 700, 1200])
    parser.add_argument("--steps", type=int, default=2_000, help="of the search")
    parser.add_argument("--learn", type=int, default=15, help="passes of the decoder")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--name", default="feature_maps", help="of the result")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotToldApartWarning)
    ends = time.monotonic() + options.limit
    data, people = sp.data.load("cifar10", split="train"), sp.data.load("cifar10", split="test")
    model = sp.zoo.resnet18().model.to(options.device)
    model = train(model, data, options.epochs, options.device) if options.epochs else model
    held = people.batch(1_000)
    with torch.no_grad():
        guessed = [
            model(people.domain.normalise(part.to(options.device))).argmax(1).cpu()
            for part in torch.split(held.inputs, 100)
        ]
    accuracy = float((torch.cat(guessed) == held.labels).float().mean())
    public = data.batch(PUBLIC).inputs.contiguous().to(options.device)
    rows: list[dict[str, object]] = []
    learned: set[tuple[str, int | None]] = set()
    for size, mode, first in product(options.sizes, options.modes, options.firsts):
        if time.monotonic() > ends:
            break
        task = sp.Task(model, sp.cross_entropy, people.domain, mode=mode)
        batch = task.move_batch(people.batch(size, start=first))
        row = {"mode": mode, "batch": size, "first": first}
        group = size if mode == "train" else None
        rows.append(row | measure(task, batch, public, options, learned=(mode, group) in learned))
        learned.add((mode, group))
        print(rows[-1], flush=True)
        memory = torch.cuda.max_memory_allocated() / 2**30 if options.device == "cuda" else None
        content: dict[str, object] = {
            "accuracy": round(accuracy, 3),
            "gigabytes": memory,
            "rows": rows,
        }
        save(options.name, options.device, content, options.out)


if __name__ == "__main__":
    main()
