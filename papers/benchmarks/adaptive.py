"""What knowing the defense is worth: the same search, unaware, informed and adapted.

    python -m benchmarks.adaptive [--only pruning,mixing,...] [--steps 200] [--people 8]

About a minute for each part on one quiet core. What an earlier run found is kept for the parts that
are not asked for, and every row names the commit and the machine that it comes from.

CIFAR-10 test images 0 to 7, from SEEPAGE_DATA, on an untrained cnn3-v3; the constants of the
adapted attack were chosen on images 100 to 102. Unaware is `Threat(knows_defense=False)`, informed
simulates the deterministic part of the defense, and adapted reads off the update what it can. All
three search alike, for the same number of steps, once. The adversary's choices never use the truth.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn.functional import one_hot

import seepage as sp
from benchmarks.provenance import RESULTS, commit, machine, parse_options, save
from seepage.attacks import adaptive, unmix
from seepage.core import Attack, Protection

Row = dict[str, object]

GUARDED: Mapping[str, Protection] = {
    "pruning": sp.Prune(0.9),
    "dropout": sp.Dropout(0.7),
    "noise": sp.AddGaussian(0.1),
    "precode": sp.Precode(64),
    "soteria": sp.Soteria(0.8),
    "sign": sp.Sign(),
    "top-k": sp.TopK(2_000),
    "laplace": sp.AddLaplace(0.07),
    "dp-sgd": sp.dp_sgd(max_norm=1.0, noise_multiplier=0.01, batch_size=1),
}


class Bench:
    """Who is attacked, and what came back."""

    def __init__(self, people: int, steps: int) -> None:
        self.images = sp.data.load("cifar10")
        self.task = sp.zoo.cnn(variant="cnn3-v3", domain=self.images.domain)
        self.people = people
        self.search = sp.attacks.inverting_gradients(steps=steps, restarts=1, tv=1e-4)
        self.squares = sp.attacks.dlg(iterations=max(1, steps // 20))
        self.rows: list[Row] = []

    def guarded(self, defense: Protection, attack: Attack, name: str) -> None:
        """One person at a time behind one defense, attacked by all three."""
        batches = [self.images.batch(1, start=i) for i in range(self.people)]
        arms = {
            "unaware": (sp.Threat(knows_labels=True, knows_defense=False), attack),
            "informed": (sp.Threat(knows_labels=True), attack),
            "adapted": (sp.Threat(knows_labels=True), adaptive(attack, defense)),
        }
        for arm, (threat, chosen) in arms.items():
            self._attacked(name, defense, arm, threat, chosen, batches)

    def mixed(self) -> None:
        """Four people at a time behind MixUp, searched for directly or by way of the mixtures."""
        defense = sp.MixUp(4)
        batches = [self.images.batch(4, start=i) for i in range(0, self.people, 4)]
        unaware = sp.Threat(knows_labels=True, knows_defense=False)
        knowing = sp.Threat(knows_labels=True, knows_mixing=True)
        arms = {
            "unaware": (unaware, self.search),
            "adapted": (knowing, adaptive(self.search, defense)),
            "mixtures found, then unmixed": (knowing, self._by_way_of_mixtures),
        }
        for arm, (threat, chosen) in arms.items():
            self._attacked("inverting_gradients", defense, arm, threat, chosen, batches)

    def _by_way_of_mixtures(self, observation: sp.Observation, *, rng: sp.Rng) -> sp.Reconstruction:
        mixing, simulation = observation.mixing, observation.simulate
        assert mixing is not None
        assert observation.labels is not None
        labels = one_hot(observation.labels, self.task.classes).float()
        mixtures = replace(
            observation,
            simulate=simulation.with_mixing(None),
            labels=mixing.coefficients.float() @ labels,
            mixing=None,
        )
        found = self.search(mixtures, rng=rng)
        solved = self.images.domain.project(unmix(found.inputs, mixing, rng=rng))
        return sp.Reconstruction(solved, observation.labels)

    def _attacked(
        self,
        name: str,
        defense: Protection,
        adversary: str,
        threat: sp.Threat,
        attack: Attack,
        batches: Sequence[sp.Batch],
    ) -> None:
        client, began, psnr = sp.Client(sp.Gradient(), defense), time.perf_counter(), []
        for seed, batch in enumerate(batches):
            seen = threat.observe(client, self.task, batch, rng=sp.rng(seed))
            guess = attack(seen, rng=sp.rng(1000 + seed))
            psnr += [round(value, 2) for value in sp.score(guess, batch)["psnr"].tolist()]
        row: Row = {
            "commit": commit(),
            "machine": machine("cpu"),
            "attack": name,
            "defense": repr(defense),
            "adversary": adversary,
            "psnr_mean": round(sum(psnr) / len(psnr), 2),
            "psnr": psnr,
            "seconds": round(time.perf_counter() - began, 1),
        }
        self.rows = [old for old in self.rows if _case(old) != _case(row)] + [row]
        print(row, flush=True)


def _case(row: Row) -> tuple[object, ...]:
    return tuple(row[key] for key in ("attack", "defense", "adversary"))


def kept(folder: Path | None, steps: int) -> list[Row]:
    """The rows of an earlier run with as many steps."""
    path = (folder or RESULTS) / "adaptive.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    rows = found.get("rows", []) if found.get("steps") == steps else []
    origin = {key: found[key] for key in ("commit", "machine") if key in found}
    return [origin | row for row in rows]


def main() -> None:
    known = ["pruning", "dropout", "clipping", "mixing", *list(GUARDED)[2:]]
    options = parse_options(__doc__, only=",".join(known), steps=200, people=8)
    torch.set_num_threads(1)
    bench = Bench(options.people, options.steps)
    bench.rows = kept(options.out, options.steps)
    for part in options.only.split(","):
        if part == "mixing":
            bench.mixed()
        elif part == "clipping":
            bench.guarded(sp.Clip(2.0), bench.search, "inverting_gradients")
            bench.guarded(sp.Clip(2.0), bench.squares, "dlg")
        else:
            bench.guarded(GUARDED[part], bench.search, "inverting_gradients")
        # After every part, so that nothing is lost to a time limit.
        path = save("adaptive", "cpu", {"steps": options.steps, "rows": bench.rows}, options.out)
    print(path)


if __name__ == "__main__":
    main()
