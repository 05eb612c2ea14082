r"""Why one pruned training ends below a more heavily pruned one: unlucky, or a rule of pruning.

    python -m benchmarks.pruned_training
    python -m benchmarks.pruned_training --scale full --device cuda --epochs 8 --ratios 0.9,0.99 \
        --seeds 0,1 --arms 'plain;clipped'

Needs CIFAR-10 in SEEPAGE_DATA. The first took 20 minutes on one busy core; the second, eight
trainings, should take two to three on a card. Trainings are those of `benchmarks.defenses`, on
other seeds, of weights and of batches alike. It takes a higher learning rate to shake a narrow
network, so that is trained at eight times the rate as well: as it is, without weight decay, and
with the pruned gradient clipped, which leaves most but the outbreaks alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

import seepage as sp
from benchmarks.defense_rows import SCALES, Scale, loaded
from benchmarks.provenance import save
from seepage.utility import OneCycle, Training, train

NETWORKS = {"full": sp.zoo.resnet18, "narrow": partial(sp.zoo.resnet18, width=8)}


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Args:
        share: Of the scale's learning rate.
        decay: Of weights.
        clip: Norm that pruned gradients are clipped to.
    """

    share: float = 1.0
    decay: float = 5e-4
    clip: float | None = None

    def defense(self, ratio: float) -> sp.defenses.Chain:
        links = [sp.Prune(ratio)] if ratio else []
        return sp.chain(*links, *([sp.Clip(self.clip)] if self.clip else []))


ARMS: Mapping[str, Arm] = {
    "plain": Arm(),
    "clipped": Arm(clip=1.0),
    "fifth": Arm(share=0.2),
    "eightfold": Arm(share=8.0),
    "eightfold, clipped": Arm(share=8.0, clip=1.0),
    "eightfold, no decay": Arm(share=8.0, decay=0.0),
}
DEFAULT = ("plain", "eightfold", "eightfold, clipped", "eightfold, no decay")


def trained(scale: Scale, name: str, arm: Arm, ratio: float, seed: int, device: str) -> dict:
    """One training: accuracy and loss after every epoch, and how much its filters have grown."""
    task = NETWORKS[name](seed=seed).to(device=device)
    got = train(
        task,
        loaded(scale.data, "train").batch(scale.examples),
        held_out=loaded(scale.data, "test").batch(scale.held_out),
        plan=Training(
            epochs=scale.epochs,
            batch_size=scale.batch_size,
            lr=scale.lr * arm.share,
            weight_decay=arm.decay,
            schedule=OneCycle(),
            augment=scale.augment,
        ),
        defense=arm.defense(ratio),
        precision="bf16",
        delta=None,
        rng=sp.rng(seed),
    )
    return {
        "ratio": ratio,
        "seed": seed,
        "lr": scale.lr * arm.share,
        "accuracy": [round(value, 4) for value in got.accuracy],
        "loss": [round(value, 2) for value in got.loss],
        "training_loss": round(got.training_loss, 3),
        "growth": round(filters(got.task) / filters(task), 2),
        "seconds": round(got.seconds, 1),
    }


def filters(task: sp.Task) -> float:
    """Norm of the filters, whose scale batch normalisation takes out of the output."""
    squares = [weight.square().sum() for weight in task.parameters.values() if weight.ndim == 4]
    return float(torch.stack(squares).sum().sqrt())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", default="narrow", choices=list(NETWORKS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--arms", default=";".join(DEFAULT), help="by semicolon")
    parser.add_argument("--ratios", default="0,0.9,0.99", help="by comma")
    parser.add_argument("--seeds", default="0,1,2", help="by comma")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result")
    parser.add_argument("--epochs", type=int, help="instead of the scale's")
    options = parser.parse_args()
    scale, rows = SCALES[options.scale], []
    scale = replace(scale, epochs=options.epochs or scale.epochs)
    if options.device == "cpu":
        torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    name = f"pruned_training-{options.scale}"
    for arm in options.arms.split(";"):
        for ratio in map(float, options.ratios.split(",")):
            for seed in map(int, options.seeds.split(",")):
                row = trained(scale, options.scale, ARMS[arm], ratio, seed, options.device)
                rows.append({"arm": arm, **row})
                print(rows[-1], flush=True)
                # After every row, so that nothing is lost to a time limit.
                path = save(name, options.device, {"rows": rows}, options.out)
    print(path)


if __name__ == "__main__":
    main()
