"""Several rounds against one person, on ResNet-20; see `benchmarks.rounds`.

    python -m benchmarks.rounds_resnet20 --processes 16

All candidates of a seed share one update and the same public strangers, so their false alarms come
together: k of n tested strangers beat all N public ones with the probability that the k highest of
n + N are all tested ones, which is no binomial. So there are several seeds, each with an update and
strangers of its own, and the interval of their mean rate is over seeds (Student's t).
"""

from __future__ import annotations

import multiprocessing
from statistics import fmean, stdev
from typing import Any

import torch
from scipy.stats import t as student

from benchmarks.provenance import parse_options, save
from benchmarks.rounds import SHOWN, Setting, measure
from seepage.scoring._identification import compute_luck

# The head tells ten inputs apart at most, so that of 32 the gradients must tell.
SETTINGS = (Setting("ResNet-20", 8, 0.0, 40, 80), Setting("ResNet-20", 32, 0.0, 40, 80))
SEEDS = 16


def measure_seed(job: tuple[Setting, int]) -> list[dict[str, Any]]:
    """The curve of one seed."""
    torch.set_num_threads(1)
    setting, seed = job
    return [{"seed": seed, **row} for row in measure(setting, seed)]


def summarise(setting: Setting, rows: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    """All seeds together after so many rounds."""
    mine = [row for row in rows if row["batch"] == setting.size and row["rounds"] == rounds]
    alarms = [row["strangers"]["found"] for row in mine]
    rates = [alarm / setting.strangers for alarm in alarms]
    width = 0.0
    if len(rates) > 1:
        width = float(student.ppf(0.975, len(rates) - 1)) * stdev(rates) / len(rates) ** 0.5
    level = mine[0]["level"]
    return {
        "batch": setting.size,
        "rounds": rounds,
        "seeds": len(mine),
        "level": level,
        "members": sum(row["members"]["found"] for row in mine),
        "of": sum(row["members"]["of"] for row in mine),
        "auc": fmean(row["auc"] for row in mine),
        "false alarms": alarms,
        "rate": fmean(rates),
        "interval": [max(0.0, fmean(rates) - width), fmean(rates) + width],
        "luck of the worst seed": compute_luck(max(alarms), setting.strangers, level),
        "tests": sorted({row["test"].partition(",")[0] for row in mine}),
    }


def main() -> None:
    """Measure every seed and write the curves."""
    wanted = parse_options(__doc__, processes=2, seeds=SEEDS)
    rows: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []
    with multiprocessing.get_context("spawn").Pool(wanted.processes) as pool:
        for setting in SETTINGS:
            jobs = [(setting, seed) for seed in range(wanted.seeds)]
            rows += [row for found in pool.imap(measure_seed, jobs) for row in found]
            told += [summarise(setting, rows, number) for number in SHOWN]
            # As far as it has come, since a setting takes minutes.
            save("rounds-resnet20", "cpu", {"seeds": told, "rows": rows}, wanted.out)
    for one in told:
        print(one, flush=True)


if __name__ == "__main__":
    main()
