"""The rows of the benchmark of defenses: which ones, on what, and with how much effort."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

import seepage as sp
from seepage.core import Protection
from seepage.core._task import batchnorm_layers
from seepage.utility import CropAndFlip, Training, noise_multiplier, train


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is trained and attacked.

    Args:
        data: Name of the data set.
        network: What is trained, and attacked before.
        examples: To train on.
        held_out: To judge by.
        epochs: Passes over the examples.
        private_epochs: The same for DP-SGD, whose steps take several times as long.
        batch_size: Of the training.
        lr: The highest learning rate of the cycle.
        augment: What is done to examples first.
        people: How many are attacked.
        attacked: How many share a batch.
        steps: Of every attack.
        private_steps: Of attacks that clip every example's gradient as DP-SGD does.
        schooled: Passes over the examples that the attacked network has had, without a defense.
    """

    data: str
    network: Callable[[], sp.Task]
    examples: int
    held_out: int
    epochs: int
    private_epochs: int
    batch_size: int
    lr: float
    augment: CropAndFlip | None
    people: int
    attacked: int
    steps: int
    private_steps: int
    schooled: int = 0


def mnist_cnn() -> sp.Task:
    return sp.zoo.cnn(variant="cnn2-v2", domain=sp.domains.MNIST)


FULL = Scale(
    data="cifar10",
    network=sp.zoo.resnet18,
    examples=20_000,
    held_out=1_500,
    epochs=10,
    private_epochs=4,
    batch_size=256,
    lr=0.2,
    augment=CropAndFlip(),
    people=16,
    attacked=4,
    steps=600,
    private_steps=150,
)
SMALL = Scale(
    data="mnist",
    network=mnist_cnn,
    examples=320,
    held_out=200,
    epochs=4,
    private_epochs=4,
    batch_size=32,
    lr=0.05,
    augment=None,
    people=4,
    attacked=4,
    steps=40,
    private_steps=10,
)
TINY = replace(
    FULL,
    network=lambda: sp.zoo.resnet18(width=4),
    examples=96,
    held_out=32,
    epochs=1,
    private_epochs=1,
    batch_size=32,
    people=8,
    steps=3,
    private_steps=2,
)
# Few minutes on a CPU, for questions about the training alone.
NARROW = replace(
    FULL,
    network=lambda: sp.zoo.resnet18(width=8),
    examples=2_560,
    held_out=500,
    epochs=5,
    batch_size=64,
)
SCALES = {"full": FULL, "small": SMALL, "tiny": TINY, "narrow": NARROW}


@dataclass(frozen=True)
class Row:
    """A defense, as clients with batches of some size use it.

    Args:
        defend: From the batch size to the defense.
        group_norm: Whether batch normalisation gives way to group normalisation.
        lr: Shares of the learning rate that are tried; the lowest training loss counts.
    """

    defend: Callable[[int], Protection]
    group_norm: bool = False
    lr: tuple[float, ...] = (1.0,)

    @property
    def is_private(self) -> bool:
        """Whether it is DP-SGD."""
        return noise_multiplier(self.defend(1)) is not None


def fixed(defense: Protection, *, lr: tuple[float, ...] = (1.0,)) -> Row:
    return Row(lambda _size: defense, lr=lr)


def private(multiplier: float) -> Row:
    def defend(size: int) -> Protection:
        return sp.dp_sgd(max_norm=1.0, noise_multiplier=multiplier, batch_size=size)

    return Row(defend, group_norm=True, lr=(0.2, 0.05))


# Steps behind strong noise or few entries need a smaller learning rate; both papers say so.
ROWS: Mapping[str, Row] = {
    "none": fixed(sp.chain()),
    "prune 0.5": fixed(sp.Prune(0.5)),
    "prune 0.9": fixed(sp.Prune(0.9), lr=(1.0, 0.2)),
    "prune 0.99": fixed(sp.Prune(0.99), lr=(1.0, 0.2)),
    "noise 0.001": fixed(sp.AddGaussian(0.001)),
    "noise 0.01": fixed(sp.AddGaussian(0.01), lr=(1.0, 0.1)),
    "noise 0.1": fixed(sp.AddGaussian(0.1), lr=(0.1, 0.01)),
    "clip 2": fixed(sp.Clip(2.0)),
    "clip 4": fixed(sp.Clip(4.0)),
    "clip 8": fixed(sp.Clip(8.0)),
    "dropout 0.5": fixed(sp.Dropout(0.5)),
    "dropout 0.9": fixed(sp.Dropout(0.9)),
    "MixUp 4": fixed(sp.MixUp(4)),
    "InstaHide 4": fixed(sp.InstaHide(4)),
    "group norm": Row(lambda _size: sp.chain(), group_norm=True),
    "DP-SGD 0.65": private(0.65),
    "DP-SGD 1.0": private(1.0),
}


@cache
def loaded(name: str, split: str) -> sp.data.Dataset:
    return sp.data.load(name, split=split)


def network(scale: Scale, row: Row, device: str) -> sp.Task:
    task = scale.network()
    return (with_group_norm(task) if row.group_norm else task).to(device=device)


def victim(scale: Scale, row: Row, device: str, keep: Path | None = None) -> sp.Task:
    """The network that is attacked: taught as much as the scale says, once for all rows alike."""
    return _taught(scale, "group norm" if row.group_norm else "none", device, keep)


@cache
def _taught(scale: Scale, name: str, device: str, keep: Path | None) -> sp.Task:
    task = network(scale, ROWS[name], device)
    if not scale.schooled:
        return task
    # On a card no two trainings end alike, and rows of one table are to be about one network.
    kept = None if keep is None else keep / f"{name} {scale.schooled}.safetensors".replace(" ", "-")
    if kept is not None and kept.is_file():
        return sp.zoo.load_weights(task, kept)
    plan = Training(epochs=scale.schooled, batch_size=64, lr=0.1)
    seen, unseen = loaded(scale.data, "train"), loaded(scale.data, "test")
    taught = train(
        task,
        seen.batch(scale.examples),
        held_out=unseen.batch(scale.held_out),
        plan=plan,
        rng=sp.rng(0),
    )
    print(f"attacked at an accuracy of {taught.accuracy[-1]:.3f}", flush=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".partial")
        state = taught.task.model.state_dict()
        # Trained on a card, weights lie there as its convolutions like them.
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, partial)
        partial.replace(kept)
    return taught.task


def with_group_norm(task: sp.Task) -> sp.Task:
    """The same network with group normalisation, which keeps examples apart."""
    model = copy.deepcopy(task.model)
    for name, layer in batchnorm_layers(model).items():
        channels = layer.num_features
        model.set_submodule(name, nn.GroupNorm(min(32, channels), channels))
    return replace(task, model=model, name=f"{task.name}, group norm")
