"""How often a guess finds its person among 100 to 10 000 others, and what looking costs.

    python -m benchmarks.gallery_size --processes 16

Rank 1 among everybody of a data set, of any label. The guess is the truth under noise of a share of
the range of values, what the closed form returns from the update of
an MLP of width 64 behind noise, or somebody else, which should be first once in N + 1 times.
Intervals are Clopper-Pearson, 95 %. Nobody who is measured here was looked at while measures were
chosen, but for faces and for the heart beats of ecg. Seconds are CPU time of one person without the
first, who pays for the features of everybody; memory is the peak of the process.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from typing import Any

import torch
from torch import Tensor

import seepage as sp
from benchmarks.identification import interval, noisy
from benchmarks.provenance import parse_options, save
from seepage.core import Batch, Rng
from seepage.data._dataset import Dataset
from seepage.scoring._gallery import Gallery, identify

# Data set, split, first person, strangers.
GALLERIES = (
    ("cifar10", "train", 4000, 10_000),
    ("mnist", "train", 0, 9_999),
    ("faces", "test", 0, 399),
    ("ecg", "test", 0, 499),
    ("cifar10", "train", 4000, 100),
    ("mnist", "train", 4000, 100),
)
KINDS = ("noise 0.5", "closed form", "somebody else")
PEOPLE = 40
# Deviation of the noise on the update whose closed form is looked at.
NOISE = 0.2


def make_guess(kind: str, data: Dataset, person: int, rng: Rng) -> Tensor:
    """What an adversary would show for a person."""
    generator = rng.generator()
    if kind == "closed form":
        task = sp.zoo.mlp(hidden=(64,), domain=data.domain, classes=data.classes)
        client = sp.Client(sp.Gradient(), sp.AddGaussian(NOISE))
        seen = sp.Threat(knows_labels=True).observe(
            client, task, data.take([person]), rng=rng.fork("client")
        )
        return sp.attacks.analytic_fc()(seen, rng=rng.fork("adversary")).inputs
    if kind == "somebody else":
        other = int(torch.randint(len(data) - 1, (1,), generator=generator))
        return data.inputs[[other + (other >= person)]]
    return noisy(float(kind.split()[1]))(data, person, data.labels, generator)


def measure(job: tuple[int, str]) -> dict[str, Any]:
    """One gallery and one kind of guess."""
    place, kind = job
    name, split, first, strangers = GALLERIES[place]
    torch.set_num_threads(1)
    rng = Rng(0).fork("gallery size", name, strangers, kind)
    data = sp.data.load(name, split=split)
    members = torch.arange(first, first + strangers + 1)
    gallery = Gallery(data.inputs[members], None, data.domain)
    hits, took = 0, []
    for number, person in enumerate(rng.permutation(len(members))[:PEOPLE].tolist()):
        guess = make_guess(kind, data, first + person, rng.fork(number))
        if kind == "somebody else":
            # A stranger who is in the gallery would be first: look for the person without them.
            without = [person, *_find_copies(gallery.inputs, guess)]
        else:
            without = [person]
        truth = Batch(gallery.inputs[[person]], torch.zeros(1, dtype=torch.long))
        began = time.process_time()
        [found] = identify(guess, truth, gallery, without=without, size=strangers)
        took.append(time.process_time() - began)
        hits += found.rank == 1
    low, high = interval(hits, PEOPLE)
    # In kilobytes on Linux and in bytes on macOS.
    unit = 1e9 if sys.platform == "darwin" else 1e6
    row = {
        "data": name,
        "strangers": strangers,
        "guess": kind,
        "people": PEOPLE,
        "first": hits,
        "interval": [low, high],
        "seconds of the first person": took[0],
        "seconds": sorted(took[1:])[len(took) // 2 - 1],
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
    }
    print(row, flush=True)
    return row


def _find_copies(inputs: Tensor, guess: Tensor) -> list[int]:
    return (inputs == guess).flatten(1).all(1).nonzero().flatten().tolist()


def main() -> None:
    """Measure every gallery and write the rates."""
    wanted = parse_options(__doc__, processes=2)
    jobs = [(place, kind) for place in range(len(GALLERIES)) for kind in KINDS]
    with multiprocessing.get_context("spawn").Pool(wanted.processes, maxtasksperchild=1) as pool:
        rows = pool.map(measure, jobs, chunksize=1)
    save("gallery_size", "cpu", {"noise of the update": NOISE, "rows": rows}, wanted.out)


if __name__ == "__main__":
    main()
