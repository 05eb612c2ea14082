"""Networks that have to be trained before they can be attacked, trained once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from seepage import __version__
from seepage.audit import _spec_entries as entries
from seepage.core import Batch, Protection, Rng, Task
from seepage.core._checkpoint import checkpointing
from seepage.core._construct import construct
from seepage.core._digest import digest
from seepage.defenses import chain
from seepage.utility import CropAndFlip, Drops, OneCycle, Training, train
from seepage.zoo._wide_head import random_weights
from seepage_papers.place import Place, Trained


@dataclass(frozen=True, kw_only=True)
class Schooling:
    """How a victim is trained.

    Args:
        epochs: Passes over the examples; give this or `steps`.
        steps: Updates instead of epochs.
        examples: How many, the first of the training split.
        held_out: How many of the test split measure it, the last of them; no more than taught it.
        batch_size: Examples per step.
        lr: Learning rate.
        momentum: Of the descent.
        weight_decay: Of the weights.
        drops: A tenth of the learning rate after each quarter, as the papers have it.
        one_cycle: Rise and fall instead: after a few epochs of drops a network has learned little.
        augmented: Crops and mirror images.
        inserted: Random neurons (`random_weights`) are put in after the training, as Liu et al.
            do; otherwise the network is trained with them.
        behind: Train it behind the cell's own defense, as a network under that defense is.
        seed: Of the order of the examples.
    """

    epochs: int | None = None
    steps: int | None = None
    examples: int = 20_000
    held_out: int = 1_000
    batch_size: int = 128
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    drops: bool = True
    one_cycle: bool = False
    augmented: bool = True
    inserted: bool = False
    behind: bool = False
    seed: int = 0

    def plan(self, like: Batch) -> Training:
        """The training, for examples like these."""
        options: dict[str, Any] = {"schedule": Drops()} if self.drops else {}
        if self.one_cycle:
            options["schedule"] = OneCycle()
        if self.augmented and like.inputs.ndim == 4:
            options["augment"] = CropAndFlip()
        return Training(
            epochs=self.epochs,
            steps=self.steps,
            batch_size=min(self.batch_size, len(like)),
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            **options,
        )


def trained(
    scenario: Mapping[str, Any], place: Place, *, defense: Protection | None = None
) -> Trained:
    """The network of a scenario after its training, from the folder if it is there.

    Args:
        scenario: Its `models` has a table `schooling`, of `Schooling`.
        place: Where to train, and where networks are kept by a hash of all that decides them.
        defense: What clients do while it is trained; nothing by default.

    Raises:
        Diverged: There is no network to keep; nothing is written.

    References:
        Liu et al., 2024, appendix F (liu2024systematic)
    """
    model = dict(scenario["models"])
    schooling = construct("schooling", Schooling, model.pop("schooling"))
    plain = {k: scenario["data"][k] for k in entries.DATASET if k in scenario["data"]}
    if schooling.behind:
        (defense,) = entries.read_defenses(scenario.get("defenses", [[]]))
    defense = chain() if defense is None else defense
    wanted = repr((plain, model, schooling, defense))
    if wanted not in place.trained:
        place.trained[wanted] = _trained(plain, model, schooling, defense, place)
    return place.trained[wanted]


def _trained(
    plain: Mapping[str, Any],
    model: Mapping[str, Any],
    schooling: Schooling,
    defense: Protection,
    place: Place,
) -> Trained:
    seen, unseen = (place.find({**plain, "split": split}) for split in ("train", "test"))
    task = entries.read_model(model, seen)
    data = seen.batch(min(schooling.examples, len(seen)))
    measured = min(schooling.held_out, schooling.examples, len(unseen))
    held_out = unseen.batch(measured, start=len(unseen) - measured)
    words = json.dumps([__version__, asdict(schooling), repr(defense), repr(task.domain)])
    name = digest(words, task.digest, data.inputs, data.labels, held_out.inputs)
    folder = place.folder
    path = folder / f"{model['name']}-{name}.safetensors"
    report = path.with_suffix(".json")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(path.with_suffix(".lock")), checkpointing(folder / "checkpoints"):
        if not report.is_file():
            drawn = [weights.clone() for weights in random_weights(task.model)]
            if schooling.inserted:
                for weights in random_weights(task.model):
                    weights.zero_()
            utility = train(
                task.to(device=place.device),
                data,
                held_out=held_out,
                plan=schooling.plan(data),
                defense=defense,
                delta=None,
                rng=Rng(schooling.seed),
            )
            made = utility.task.to(device="cpu")
            for weights, first in zip(random_weights(made.model), drawn, strict=True):
                weights.copy_(first)
            _save(made, path)
            kept = {"accuracy": utility.accuracy[-1], "training_loss": utility.training_loss}
            _write(report, json.dumps(kept))
    return Trained(path, **json.loads(report.read_text(encoding="utf-8")))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait for other processes that train the same network; afterwards it is there."""
    import fcntl

    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _save(task: Task, path: Path) -> None:
    state = {name: tensor.contiguous() for name, tensor in task.model.state_dict().items()}
    partial = path.with_suffix(".partial")
    save_file(state, partial)
    partial.replace(path)


def _write(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
