"""How often the forecasts of `auto` are right: `python -m benchmarks.forecasts`.

Some twenty minutes on a CPU, on bundled data. Each rehearsal has its own network and public
people, and four people are attacked after it. At 1500 steps, those of the quickstart, one person is
rehearsed. The assumed deviation of scores was chosen on seeds below 20.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator

import seepage as sp
from benchmarks.provenance import continue_rows, save
from seepage.core import Reconstruction, Task
from seepage.data._dataset import Dataset

PEOPLE, STEPS, FIRST, HIGHEST = 4, 1500, 20, 60.0
CLIENTS = {
    "none": sp.chain(),
    "prune 0.9": sp.Prune(0.9),
    "noise 0.001": sp.AddGaussian(1e-3),
    "noise 0.01": sp.AddGaussian(1e-2),
    "dp-sgd": sp.dp_sgd(max_norm=1.0, noise_multiplier=0.01, batch_size=1),
    "sign": sp.Sign(),
}


def networks(seed: int) -> Iterator[tuple[str, Dataset, Task]]:
    """Networks with weights of this seed, and the data they read."""
    digits, photos = sp.data.load("digits"), sp.data.load("photos", pixels=16)
    for name, options, data in (
        ("mlp", {"hidden": (64,)}, digits),
        ("mlp", {"hidden": (32, 16)}, photos),
        ("cnn", {"variant": "cnn3-v3"}, photos),
        ("cnn", {"variant": "cnn2-v2"}, photos),
    ):
        given = {**options, "domain": data.domain, "classes": data.classes, "seed": seed}
        yield f"{name} {next(iter(options.values()))}", data, sp.zoo.build(name, options=given)


def race(task: Task, data: Dataset, client: str, seed: int) -> dict[str, object] | None:
    """One rehearsal and what came back of the people after it; None if nothing was rehearsed."""
    order = sp.rng(seed).fork("people").permutation(len(data)).tolist()
    who, free = order[:PEOPLE], order[PEOPLE:]
    threat, sender = sp.Threat(knows_labels=True), sp.Client(sp.Gradient(), CLIENTS[client])
    keys = [sp.rng(seed).fork("person", person) for person in who]
    seen = [
        threat.observe(sender, task, data.take([person]), rng=key)
        for person, key in zip(who, keys, strict=True)
    ]
    public = sp.PublicData(data.inputs[free], data.labels[free])
    attack = sp.auto(effort="quick", budget=STEPS, public=public)
    found = attack.many(seen, rngs=[key.fork("attack") for key in keys])
    scores = [
        (float(sp.score(guess, data.take([person]))["psnr"][0]), guess.trace.race)
        for person, guess in zip(who, found, strict=True)
        if isinstance(guess, Reconstruction)
    ]
    told = [(score, made.forecast) for score, made in scores if made and made.forecast]
    if not told:
        return None
    forecast = told[0][1]
    return {
        "forecast": [round(v, 2) for v in (forecast.low, forecast.middle, forecast.high)],
        "people": [round(min(score, HIGHEST), 2) for score, _ in told],
        "right": sum(each.covers(score) for score, each in told),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    rows = continue_rows("forecasts", "cpu")
    done = {(row["network"], row["client"], row["seed"]) for row in rows}
    for seed in range(FIRST, FIRST + seeds):
        for name, data, task in networks(seed):
            for client in CLIENTS:
                if (name, client, seed) in done:
                    continue
                found = race(task, data, client, seed) or {"people": [], "right": 0}
                rows.append({"network": name, "client": client, "seed": seed, **found})
                save("forecasts", "cpu", {"steps": STEPS, "rows": rows})
    people = sum(len(row["people"]) for row in rows)
    print(f"{sum(row['right'] for row in rows)} of {people} people, {len(rows)} rehearsals")


if __name__ == "__main__":
    main()
