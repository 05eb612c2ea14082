"""How often a guess that ignores the update is called identified, and a degraded truth is not.

    python -m benchmarks.identification --processes 16 --out FOLDER

Each trial draws a person, up to 100 strangers of the same label and public people of it afresh, so
that trials are independent and Clopper-Pearson intervals hold. Four kinds of guesses know the label
and the public people, and nothing of the update: the mean, the public person nearest to the mean,
an image generated from the mean and covariance, and twenty public people at once. A fifth makes
five attempts of one public person each, corrected for how many there were. Then the truth itself,
degraded as an eye forgives. For noise, `nearest` counts the people whom the candidate nearest to
the noisy truth names: no rule finds more of them under normal noise.

Measures, weights and rules were chosen on the people of `CHOSEN_ON`. Nobody of mnist, cifar10, lfw
and mitbih who is measured here was looked at before. Degraded truths of cells, ecg, voters and
hamlet are of people who were strangers at most, and those of faces were looked at: lfw has other
faces. Each part (a data set and a round) is written to a file of its own in FOLDER/parts as soon as
it is done, and is not measured again; `--sets` and `--only` split the work among machines.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

import seepage as sp
from benchmarks.provenance import RESULTS, commit, save
from seepage.core import Batch, Rng
from seepage.data._dataset import Dataset, find_data
from seepage.data._npz_files import read_arrays
from seepage.domains._box import Image
from seepage.domains._picture_views import warp
from seepage.scoring._gallery import FEWEST, STRANGERS, Gallery, identify
from seepage.scoring._identification import is_identified

# The longest first, so that no processor waits for the last one.
SETS = (
    *("cells", "cifar10", "faces, any person", "faces", "lfw", "mnist"),
    *("mitbih", "ecg", "voters", "hamlet"),
)
# In each of the rounds: people for a guess that ignores the update, for one that takes longer, for
# five attempts, and for a degraded truth.
ROUNDS, PEOPLE, FEWER, SEVERAL, DEGRADED = 8, 71, 39, 20, 13
# Fewer others of a label than this are strangers and public people at once.
PLENTY = 80
PUBLIC = 40
# Numbers in the data set, as `sp.data.load` orders it.
CHOSEN_ON = {
    "mnist": "test digits 0 to 1999; measured: training digits 2000 to 3999",
    "cifar10": "test images 0 to 1499; measured: training images 2000 to 3999",
    "faces": "photos 0 to 199; degraded truths: 200 to 399, looked at before",
    "faces, any person": "photos 0 to 199; measured: 200 to 399, looked at before",
    "lfw": "nobody; measured: 100 people, one photo of 25 pixels each",
    "cells": "even numbers; degraded truths: odd numbers",
    "ecg": "even numbers; degraded truths: odd numbers",
    "mitbih": "nobody; measured: the normal beats of one patient, 0 to 1999",
    "voters": "even numbers; degraded truths: odd numbers",
    "hamlet": "even numbers; degraded truths: odd numbers",
}
Guess = Callable[[Dataset, int, Tensor, torch.Generator], Tensor]


def load(name: str) -> tuple[Dataset, Tensor]:
    """The people to measure, and the numbers of those on whom nothing was chosen."""
    if name in ("mnist", "cifar10"):
        data = _take(sp.data.load(name, split="train"), torch.arange(2000, 4000))
    elif name == "mitbih":
        data = sp.data.load("ecg:mitbih")
        data = _take(data, (data.labels == 0).nonzero().flatten()[:2000])
    elif name == "lfw":
        data = _load_lfw()
    elif name == "faces, any person":
        data = _take(sp.data.load("faces"), torch.arange(200, 400))
        data = replace(data, labels=torch.zeros_like(data.labels))
    else:
        data = sp.data.load(name)
        held_out = torch.arange(200, 400) if name == "faces" else torch.arange(1, len(data), 2)
        return data, held_out
    return data, torch.arange(len(data))


def _take(data: Dataset, numbers: Tensor) -> Dataset:
    return replace(data, inputs=data.inputs[numbers], labels=data.labels[numbers])


def _load_lfw() -> Dataset:
    """The 100 faces that scikit-image ships of Labeled Faces in the Wild."""
    images, is_face = read_arrays(find_data("faces.npz"), "lfw25_images", "lfw25_is_face")
    inputs = torch.from_numpy(images[is_face == 1])[:, None].float()
    domain = Image(tuple(inputs.shape[1:]))
    labels = torch.zeros(len(inputs), dtype=torch.long)
    return Dataset("lfw", inputs, labels, domain, ("face",), "LFW, by way of scikit-image")


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
ATTEMPTS = "5 attempts"
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
    "corner, cut by 10 %": changed(lambda x: warp(x, zoom=1 / 0.9, corner=(-1, 1))),
    "corner, cut by 20 %": changed(lambda x: warp(x, zoom=1 / 0.8, corner=(1, -1))),
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


def names_nearest(gallery: Gallery, guess: Tensor, truth: Tensor, strangers: Tensor) -> bool:
    """Whether the candidate nearest to a guess is the truth."""
    apart = [(rows - guess).flatten(1).norm(dim=1) for rows in (truth, gallery.inputs[strangers])]
    return bool(apart[0] < apart[1].min())


def draw_others(
    data: Dataset, person: int, generator: torch.Generator
) -> tuple[Tensor, Tensor, set[int]]:
    """Strangers of a person, public people of the label, and who is neither, drawn at random."""
    same = (data.labels == data.labels[person]).nonzero().flatten()
    others = same[same != person]
    others = others[torch.randperm(len(others), generator=generator)]
    if len(others) < PLENTY:
        return others, others, {person}
    public = min(PUBLIC, len(others) // 4)
    strangers = others[public : public + STRANGERS]
    return strangers, others[:public], set(same.tolist()) - set(strangers.tolist())


def measure(job: tuple[str, int]) -> dict[str, Any]:
    """One round on one data set: who is identified by which kind of guess."""
    name, number = job
    torch.set_num_threads(1)
    data, held_out = load(name)
    generator = Rng(number).fork("identification", name).generator()
    gallery = Gallery(data.inputs, data.labels, data.domain)
    everybody = torch.arange(len(data))
    kinds: list[tuple[str, Guess, Tensor, int]] = [
        *(
            (kind, guess, everybody, FEWER if guess is twenty_guesses else PEOPLE)
            for kind, guess in IGNORANT.items()
        ),
        (ATTEMPTS, twenty_guesses, everybody, SEVERAL),
        *((kind, guess, held_out, DEGRADED) for kind, guess in degraded(data).items()),
    ]
    trials = [
        (int(people[place]), kind, guess)
        for kind, guess, people, count in kinds
        for place in torch.randint(len(people), (count,), generator=generator)
    ]
    found = {kind: [0.0] * 5 for kind, *_ in kinds}
    # By label, so that the strangers of one are prepared once.
    for person, kind, guess in sorted(trials, key=lambda trial: int(data.labels[trial[0]])):
        strangers, public, without = draw_others(data, person, generator)
        if len(public) == 0:
            continue
        truth = Batch(data.inputs[person : person + 1], data.labels[person : person + 1])
        shown = guess(data, person, public, generator)
        attempts = shown[:5].split(1) if kind == ATTEMPTS else [shown]
        places = [identify(one, truth, gallery, without=without)[0] for one in attempts]
        named = (
            kind.startswith("noise")
            and len(strangers) >= FEWEST
            and names_nearest(gallery, shown, truth.inputs, strangers)
        )
        seen = (
            1.0,
            is_identified(places) if kind == ATTEMPTS else places[0].singled_out,
            any(one.recognisable for one in places),
            1 / (places[0].strangers + 1),
            named,
        )
        found[kind] = [total + float(one) for total, one in zip(found[kind], seen, strict=True)]
    return {"data": name, "round": number, "commit": commit(), "found": found}


def measure_parts(jobs: list[tuple[str, int]], folder: Path, processes: int) -> list[Any]:
    """Measure the parts that no file of this commit holds, each written as soon as it is done."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        job: folder / f"{job[0].replace(', ', '-').replace(' ', '-')}-{job[1]}.json" for job in jobs
    }
    done = {
        job: json.loads(path.read_text(encoding="utf-8"))
        for job, path in files.items()
        if path.is_file()
    }
    done = {job: part for job, part in done.items() if part["commit"] == commit()}
    missing = [job for job in jobs if job not in done]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for part in pool.imap_unordered(measure, missing):
            job = part["data"], part["round"]
            written = files[job].with_suffix(".new")
            written.write_text(json.dumps(part) + "\n", encoding="utf-8")
            written.replace(files[job])
            done[job] = part
            print(f"{job[0]}, round {job[1]}: done, {len(done)} of {len(jobs)}", flush=True)
    return [done[job] for job in jobs]


def main() -> None:
    """Measure every data set and write the rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--sets", nargs="*", default=list(SETS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="*", type=int, help="rounds to measure; all by default")
    wanted = parser.parse_args()
    rounds = wanted.only if wanted.only is not None else range(wanted.rounds)
    jobs = [(name, number) for name in wanted.sets for number in rounds]
    rows: dict[tuple[str, str], list[float]] = {}
    for part in measure_parts(jobs, wanted.out / "parts", wanted.processes):
        for kind, values in part["found"].items():
            total = rows.setdefault((part["data"], kind), [0.0] * 5)
            rows[part["data"], kind] = [a + b for a, b in zip(total, values, strict=True)]
    for name in wanted.sets:
        every = [rows[name, kind] for kind in IGNORANT]
        rows[name, "all four"] = [sum(values) for values in zip(*every, strict=True)]
    lines = [
        describe_row(name, kind, values)
        for (name, kind), values in sorted(rows.items())
        if values[0]
    ]
    part = "" if set(wanted.sets) == set(SETS) else "_" + "_".join(wanted.sets)
    save(f"identification{part}", "cpu", {"chosen on": CHOSEN_ON, "rows": lines}, wanted.out)


def describe_row(name: str, kind: str, values: list[float]) -> dict[str, Any]:
    """One line of the result, printed too."""
    trials, hits, seen, nominal, nearest = values
    low, high = interval(int(hits), int(trials))
    print(
        f"{name:17} {kind:20} {int(hits):4}/{int(trials):4} = {hits / trials:6.3f} "
        f"[{low:.3f}, {high:.3f}] nominal {nominal / trials:.3f} recognisable {int(seen)}",
        flush=True,
    )
    return {
        "data": name,
        "guess": kind,
        "ignores the update": kind in (*IGNORANT, ATTEMPTS, "all four"),
        "trials": int(trials),
        "identified": int(hits),
        "recognisable": int(seen),
        "nominal": nominal / trials,
        "interval": [low, high],
        **({"nearest": int(nearest)} if kind.startswith("noise") else {}),
    }


if __name__ == "__main__":
    main()
