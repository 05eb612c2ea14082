"""How often a guess that ignores the update is called identified, and a degraded truth is not.

    python -m benchmarks.identification --processes 2

For each data set, people are hidden among strangers of their own label. Four kinds of guesses know
the label and public people of it, and nothing of the update: the mean, the public person nearest to
the mean, an image generated from the mean and covariance, and twenty public people at once. Then
the truth itself, degraded as an eye forgives, in the first round. Rates with Clopper-Pearson
intervals. For noise, `nearest` counts the people whom the candidate nearest to the noisy truth
names: no rule finds more of them under normal noise.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

import seepage as sp
from benchmarks.provenance import save
from seepage.core import Batch
from seepage.data.dataset import Dataset
from seepage.scoring.identification import STRANGERS, Gallery, identify
from seepage.scoring.similarity import warp

DATA = ("faces", "mnist", "cifar10", "cells", "ecg", "voters", "hamlet")
ROUNDS, PEOPLE = 4, 125
Guess = Callable[[Dataset, int, Tensor, torch.Generator], Tensor]


def mean_guess(data: Dataset, _: int, public: Tensor, generator: torch.Generator) -> Tensor:
    """The mean of the label; of texts the most frequent word at each place."""
    del generator
    rows = data.inputs[public]
    if not rows.is_floating_point():
        return torch.mode(rows, 0).values[None]
    return data.domain.project(rows.mean(0))[None]


def typical_guess(data: Dataset, person: int, public: Tensor, generator: torch.Generator) -> Tensor:
    """The public person nearest to the mean of the label."""
    middle = mean_guess(data, person, public, generator)
    apart = (data.inputs[public].float() - middle.float()).flatten(1).norm(dim=1)
    return data.inputs[public[apart.argmin()]][None]


def generated_guess(data: Dataset, _: int, public: Tensor, generator: torch.Generator) -> Tensor:
    """A draw with the mean and covariance of the label; of texts a mixture of two of them."""
    rows = data.inputs[public]
    weights = torch.randn(len(rows), generator=generator) / max(1, len(rows) - 1) ** 0.5
    if not rows.is_floating_point():
        first, second = rows[weights.argsort()[:2]] if len(rows) > 1 else (rows[0], rows[0])
        return torch.where(torch.rand(first.shape, generator=generator) < 0.5, first, second)[None]
    middle = rows.mean(0)
    drawn = middle + torch.einsum("n,n...->...", weights, rows - middle)
    return data.domain.project(drawn)[None]


def twenty_guesses(data: Dataset, _: int, public: Tensor, generator: torch.Generator) -> Tensor:
    """Twenty public people of the label, the best of whom counts."""
    return data.inputs[public[torch.randperm(len(public), generator=generator)[:20]]]


def noisy(share: float) -> Guess:
    """The truth with noise of a share of the range of values."""

    def guess(data: Dataset, person: int, _: Tensor, generator: torch.Generator) -> Tensor:
        truth = data.inputs[person : person + 1]
        low, high = data.domain.bounds
        return truth + share * (high - low) * torch.randn(truth.shape, generator=generator)

    return guess


def changed(change: Callable[[Tensor], Tensor]) -> Guess:
    """The truth, changed."""

    def guess(data: Dataset, person: int, _: Tensor, generator: torch.Generator) -> Tensor:
        del generator
        return change(data.inputs[person : person + 1])

    return guess


def half_right(data: Dataset, person: int, public: Tensor, generator: torch.Generator) -> Tensor:
    """Half of the columns or words of the truth, the rest of a public person."""
    truth, other = data.inputs[person], data.inputs[public[0]]
    columns = getattr(data.domain, "places", None) or [slice(i, i + 1) for i in range(len(truth))]
    mixed = other.clone()
    for place in columns:
        if torch.rand((), generator=generator) < 0.5:
            mixed[place] = truth[place]
    return mixed[None]


def keep_half(*, side: str, fill: str) -> Guess:
    """One half of the truth is right; the other is grey or noise."""

    def guess(data: Dataset, person: int, _: Tensor, generator: torch.Generator) -> Tensor:
        truth = data.inputs[person : person + 1]
        low, high = data.domain.bounds
        drawn = torch.rand(truth.shape, generator=generator) if fill == "noise" else 0.5
        shown = torch.zeros_like(truth) + low + (high - low) * drawn
        axis = -1 if side in ("left", "right") else -2
        length = truth.shape[axis] // 2
        start = 0 if side in ("left", "top") else truth.shape[axis] - length
        shown.narrow(axis, start, length).copy_(truth.narrow(axis, start, length))
        return shown

    return guess


IGNORANT: dict[str, Guess] = {
    "same-label mean": mean_guess,
    "nearest to the mean": typical_guess,
    "generated": generated_guess,
    "best of 20": twenty_guesses,
}
PICTURES: dict[str, Guess] = {
    "noise 0.1": noisy(0.1),
    "noise 0.2": noisy(0.2),
    "inverted": changed(lambda x: 1 - x),
    "shifted by 2": changed(lambda x: torch.roll(x, 2, -1)),
    "left half, grey": keep_half(side="left", fill="grey"),
    "right half, noise": keep_half(side="right", fill="noise"),
}
IMAGES: dict[str, Guess] = {
    "mirrored": changed(lambda x: x.flip(-1)),
    "cropped by 10 %": changed(lambda x: warp(x, zoom=1 / 0.9)),
    "cropped by 20 %": changed(lambda x: warp(x, zoom=1 / 0.8)),
    "shrunk by 20 %": changed(lambda x: warp(x, zoom=0.8)),
    "turned by 5": changed(lambda x: warp(x, angle=5.0)),
    "turned by -10": changed(lambda x: warp(x, angle=-10.0)),
    "top half, grey": keep_half(side="top", fill="grey"),
    "bottom half, noise": keep_half(side="bottom", fill="noise"),
}


def interval(hits: int, trials: int) -> tuple[float, float]:
    """Clopper-Pearson, 95 %."""
    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(0.975, hits + 1, trials - hits))
    return low, high


def degraded(data: Dataset) -> dict[str, Guess]:
    """What an eye forgives, for this kind of input; signals are not mirrored or turned."""
    if data.inputs.ndim < 3:
        return {"half right": half_right}
    return {**PICTURES, **(IMAGES if data.inputs.ndim == 4 else {})}


def names_nearest(gallery: Gallery, guess: Tensor, truth: Batch, without: set[int]) -> bool:
    """Whether the candidate nearest to a guess is the truth."""
    own, label = truth.inputs[0], int(truth.labels[0])
    strangers = gallery.choose_strangers(own, label=label, without=without, size=STRANGERS)
    apart = [
        (rows - guess).flatten(1).norm(dim=1) for rows in (own[None], gallery.inputs[strangers])
    ]
    return bool(apart[0] < apart[1].min())


def measure(job: tuple[str, int]) -> dict[str, Any]:
    """One round on one data set: who is identified by which kind of guess."""
    name, number = job
    torch.set_num_threads(1)
    data = sp.data.load(name)
    generator = torch.Generator().manual_seed(number)
    order = torch.randperm(len(data), generator=generator)
    people = order[: min(PEOPLE, len(data) // 4)]
    # Public people are others than the strangers where the label has enough; else the same ones.
    counts = torch.bincount(data.labels)
    plenty = counts[data.labels] >= 80
    every_fourth = torch.zeros(len(data), dtype=torch.bool)
    every_fourth[order[::4]] = True
    public = (every_fourth | ~plenty).nonzero().flatten()
    gallery = Gallery(data.inputs, data.labels, data.domain)
    hidden = (every_fourth & plenty).nonzero().flatten().tolist()
    found: dict[str, Any] = {}
    for kind, guess in {**IGNORANT, **(degraded(data) if number == 0 else {})}.items():
        hits = [0, 0, 0, 0.0, 0]
        for person in people.tolist():
            own = public[(data.labels[public] == data.labels[person]) & (public != person)]
            if len(own) == 0:
                continue
            truth = Batch(data.inputs[person : person + 1], data.labels[person : person + 1])
            shown = guess(data, person, own, generator)
            [one] = identify(shown, truth, gallery, without={*hidden, person})
            hits = [
                hits[0] + 1,
                hits[1] + one.singled_out,
                hits[2] + one.recognisable,
                hits[3] + 1 / (one.strangers + 1),
                hits[4]
                + (
                    kind.startswith("noise")
                    and names_nearest(gallery, shown, truth, {*hidden, person})
                ),
            ]
        found[kind] = hits
    return {"data": name, "found": found}


def main() -> None:
    """Measure every data set and write the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the result")
    parser.add_argument("--data", nargs="*", default=list(DATA))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    wanted = parser.parse_args()
    jobs = [(name, number) for name in wanted.data for number in range(wanted.rounds)]
    rows: dict[tuple[str, str], list[float]] = {}
    with multiprocessing.get_context("spawn").Pool(wanted.processes) as pool:
        for done in pool.imap_unordered(measure, jobs):
            for kind, values in done["found"].items():
                total = rows.setdefault((done["data"], kind), [0.0] * 5)
                rows[done["data"], kind] = [a + b for a, b in zip(total, values, strict=True)]
    lines = []
    for (name, kind), (trials, hits, seen, nominal, nearest) in sorted(rows.items()):
        low, high = interval(int(hits), int(trials))
        lines.append(
            {
                "data": name,
                "guess": kind,
                "ignores the update": kind in IGNORANT,
                "trials": int(trials),
                "identified": int(hits),
                "recognisable": int(seen),
                "nominal": nominal / trials,
                "interval": [low, high],
                **({"nearest": int(nearest)} if kind.startswith("noise") else {}),
            }
        )
        print(
            f"{name:8} {kind:20} {int(hits):4}/{int(trials):4} = {hits / trials:6.3f} "
            f"[{low:.3f}, {high:.3f}] nominal {nominal / trials:.3f} recognisable {int(seen)}",
            flush=True,
        )
    save("identification", "cpu", {"rows": lines}, wanted.out)


if __name__ == "__main__":
    main()
