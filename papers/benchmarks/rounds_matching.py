"""One person's image from several rounds behind noise, by matching all of them at once.

    python -m benchmarks.rounds_matching --processes 8

As in `benchmarks.rounds`, a client trains on the same CIFAR-10 image in every round, among nine
others with batches of 16, and the server moves the network by the mean of all gradients. Behind
noise that is drawn anew, `stack_rounds` joins 1 to 20 rounds, and one search of the same length
matches them. The label is recovered from the first.
"""

from __future__ import annotations

import multiprocessing
import time
from functools import partial
from typing import Any

import torch

import seepage as sp
from benchmarks.provenance import parse_options, save
from benchmarks.rounds import OTHERS, cifar10, train
from seepage.attacks import stack_rounds

SHOWN = (1, 2, 5, 10, 20)
NETWORKS = {"MLP-64": partial(sp.zoo.mlp, hidden=(64,)), "LeNet": sp.zoo.lenet}
SETTINGS = (("MLP-64", 0.1), ("LeNet", 0.01))
SEEDS, STEPS, SIZE = 8, 500, 16


def measure(job: tuple[str, float, int]) -> dict[str, Any]:
    """What comes back of one person by number of rounds."""
    torch.set_num_threads(1)
    network, noise, seed = job
    order = sp.rng(seed).fork("matching").permutation(len(cifar10()))
    batch, others = cifar10().take(order[:1]), order[1 : 1 + OTHERS * SIZE]
    client = sp.Client(sp.Gradient(), sp.AddGaussian(noise))
    rounds = list(train(NETWORKS[network](), client, batch, others, SHOWN[-1], seed))
    attack = sp.attacks.inverting_gradients(steps=STEPS, restarts=1, tv=1e-4)
    row: dict[str, Any] = {"network": network, "noise": noise, "seed": seed}
    for number in SHOWN:
        began = time.process_time()
        guess = attack(stack_rounds(rounds[:number]), rng=sp.rng(seed))
        psnr = float(sp.score(guess, batch)["psnr"])
        row[str(number)] = {"psnr": round(psnr, 2), "seconds": time.process_time() - began}
    print(row, flush=True)
    return row


def main() -> None:
    wanted = parse_options(__doc__, processes=2)
    jobs = [(*setting, seed) for setting in SETTINGS for seed in range(SEEDS)]
    rows: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(wanted.processes) as pool:
        for row in pool.imap(measure, jobs):
            rows.append(row)
            save("rounds_matching", "cpu", {"steps": STEPS, "rows": rows}, wanted.out)


if __name__ == "__main__":
    main()
