"""Audit a real Flower federation: what its updates give away, and what protects them.

    python examples/flower_audit.py --out flower-audit

Runs the federation of flower_federation.py three times under Flower's simulation: with a defense
as a mod, before and behind which it listens; with Flower's own local differential privacy; and
with its SecAgg+. The updates of one client in rounds 1 and 5 are captured where they cross the
wire, attacked, and reported on one page.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flower_federation import (
    CLIENTS,
    DIGITS,
    EXAMPLES,
    LR,
    network,
    newer_strategy,
    older_strategy,
    private,
    simulate,
    simulate_secagg,
)
from flwr.clientapp.mod import LocalDpMod
from safetensors.torch import save_file

import seepage as sp
from seepage.capture import Setting
from seepage.core._chain import OnAggregate
from seepage.integrations.flower import Recorder, as_mod, capture_mod, masked_mod, recorded

ROUNDS, CLIENT = (1, 5), 0
# Of all digits, the first ones are those of the clients.
USED = CLIENTS * max(ROUNDS) * EXAMPLES
DEFENSE = [{"name": "Clip", "max_norm": 1.0}, {"name": "AddGaussian", "std": 0.01}]
# Flower adds noise of sensitivity * sqrt(2 log(1.25 / delta)) / epsilon to every parameter.
LOCAL_DP = LocalDpMod(clipping_norm=1.0, sensitivity=0.1, epsilon=8.0, delta=1e-5)
LOCAL_DP_LINKS = [
    {"name": "Clip", "max_norm": 1.0},
    {"name": "AddGaussian", "std": round(0.1 * math.sqrt(2 * math.log(1.25 / 1e-5)) / 8.0, 4)},
]
MASKS = [{"name": "flower_audit:SecAggMasks"}]
SUM = [{"name": "SecureAggregation", "clients": CLIENTS}]


@dataclass(frozen=True, repr=False)
class SecAggMasks(OnAggregate):
    """What the masks of SecAgg+ do to the update of one client: every entry is drawn anew."""

    def __call__(self, update: sp.Update, *, rng: sp.Rng) -> sp.Update:
        """Draw every entry, whatever it was."""
        flat = update.flat()
        return update.unflatten(2 * rng.uniform(flat.shape, like=flat) - 1)

    def expected(self, update: sp.Update) -> sp.Update:
        """Return the update: who does not have the masks can only guess that there are none."""
        return update


@dataclass(frozen=True)
class View:
    """One place where somebody may listen.

    Args:
        words: What the report calls it.
        recorder: Of what passes there.
        client: Whose update, or the "sum" of all.
        defense: What the client did to it, as a spec says it.
    """

    words: str
    recorder: Recorder
    client: int | str = CLIENT
    defense: Sequence[dict[str, object]] = ()


def federations(folder: Path) -> list[View]:
    """Run all three, and say what was captured where."""
    domain = DIGITS.domain
    setting = Setting(lr=LR, steps=1, shape=domain.shape, mean=domain.mean, std=domain.std)

    def recorder(name: str, *, one: bool = True) -> Recorder:
        names = tuple(network().state_dict())
        clients = (CLIENT,) if one else None
        return Recorder(folder / name, setting, rounds=ROUNDS, clients=clients, names=names)

    plain, defended, server = recorder("plain"), recorder("defended"), recorder("server", one=False)
    mod = as_mod(sp.chain(sp.Clip(1.0), sp.AddGaussian(0.01)))
    _say("a federation, and a defense as a mod")
    simulate([capture_mod(defended), mod, capture_mod(plain)], recorded(newer_strategy(), server))

    private_ = recorder("local-dp")
    _say("the same with Flower's local differential privacy")
    simulate([capture_mod(private_), LOCAL_DP], newer_strategy())

    masked, summed = recorder("masked"), recorder("summed", one=False)
    _say("the same with Flower's SecAgg+")
    simulate_secagg([masked_mod(masked)], recorded(older_strategy(), summed))
    return [
        View("as it is", plain),
        View("behind a mod", defended, defense=DEFENSE),
        View("behind Flower's LocalDpMod", private_, defense=LOCAL_DP_LINKS),
        View("what one client sends under SecAgg+", masked, defense=MASKS),
        View("the sum under SecAgg+", summed, client="sum", defense=SUM),
    ]


def spec(views: Sequence[View], folder: Path) -> str:
    """Every capture as a scenario; the truth lies beside it, for scoring alone.

    A guess must pick its person among digits that no client trains on.
    """
    lines = ['title = "A Flower federation"', 'metrics = ["ssim", "exact", "label_accuracy"]']
    others = DIGITS.batch(len(DIGITS) - USED, start=USED)
    np.savez(folder / "others.npz", inputs=others.inputs, labels=others.labels)
    for view in views:
        for number in ROUNDS:
            capture = view.recorder.path(number, view.client)
            truth = folder / f"truth-{view.recorder.folder.name}-{number}.safetensors"
            batch = _people(view.client, number)
            save_file({"inputs": batch.inputs, "labels": batch.labels}, truth)
            data = {
                "capture": str(capture),
                "truth": str(truth),
                "name": f"round {number}, {view.words}",
                "batch_size": len(batch),
                "public": f"npz:{folder / 'others.npz'}",
            }
            lines += [
                "",
                "[[scenario]]",
                f"data = {_table(data)}",
                'models = { name = "flower_federation:network" }',
                f"defenses = [[{', '.join(map(_table, view.defense))}]]",
                "attacks = [",
                '  { name = "exact_batch" },',
                '  { name = "inverting_gradients", steps = 300, restarts = 1, tv = 1e-4, '
                "infer_labels = true },",
                "]",
            ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run, write the spec, and audit it as anybody would."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("flower-audit"))
    out = parser.parse_args().out.resolve()
    began = time.perf_counter()
    captures = out / "captures"
    captures.mkdir(parents=True, exist_ok=True)
    written = out / "flower.toml"
    written.write_text(spec(federations(captures), captures), encoding="utf-8")
    _say("the audit")
    command = [sys.executable, "-m", "seepage", "audit", str(written), "--plain", "--overwrite"]
    here = Path(__file__).parent
    done = subprocess.run([*command, "--out", str(out / "audit")], cwd=here, check=False)
    _say(f"done in {time.perf_counter() - began:.0f} s; see {out / 'audit' / 'report.html'}")
    return done.returncode


def _people(client: int | str, number: int) -> sp.Batch:
    clients = range(CLIENTS) if client == "sum" else [int(client)]
    batches = [private(each, number) for each in clients]
    inputs = torch.cat([batch.inputs for batch in batches])
    return sp.Batch(inputs, torch.cat([batch.labels for batch in batches]))


def _table(values: dict[str, object]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()) + " }"


def _say(words: str) -> None:
    print(f"--- {words}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
