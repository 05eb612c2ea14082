"""Strangers whom the exact membership test accuses, and members whom it finds.

    python -m benchmarks.membership_nulls

For every line, 30 updates of untrained networks with weights of their own, each with ten strangers
and some of its members as candidates. The other members are known, or hidden: hidden ones are
neither known nor candidates. Counts are of p-values of at most 1 % and 5 %. Beside them, how many
strangers would have a p-value of at most 1 % if they were compared with nobody alone. Power is what
rehearsals promised for members at 1 %.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from scipy.stats import norm

import seepage as sp
from benchmarks.provenance import record
from seepage.core import Batch, Observation, Task
from seepage.core.errors import NotApplicable
from seepage.data._dataset import Dataset
from seepage.inference._known_others import Crowd
from seepage.numerics._significance import Rate

UPDATES, STRANGERS, PUBLIC = 30, 10, 300


@dataclass(frozen=True)
class Row:
    """One line of the table: so many members, of whom some are known and some are hidden."""

    data: str
    network: str
    size: int
    known: int
    noise: float
    hidden: int = 0
    ranked: bool = False


def list_rows() -> Iterator[Row]:
    """Every line, in the order of the table."""
    kinds = [("mnist", "mlp"), ("mnist", "lenet"), ("cifar10", "mlp"), ("cifar10", "lenet")]
    for data, network in kinds:
        for noise in (0.1, 1.0):
            for size in (1, 2, 4, 8):
                yield Row(data, network, size, size - 1, noise)
    for data, network in kinds:
        yield Row(data, network, 4, 4, 1.0)
        yield Row(data, network, 4, 2, 0.1)
        yield Row(data, network, 4, 3, 0.1, hidden=1)
        yield Row(data, network, 4, 3, 1.0, hidden=1)
    for data, network in (kinds[0], kinds[3]):
        yield Row(data, network, 4, 0, 0.1)
        yield Row(data, network, 4, 3, 0.1, ranked=True)
        for noise in (0.1, 1.0):
            yield Row(data, network, 4, 3, noise, hidden=1, ranked=True)


def build(data: Dataset, network: str, seed: int) -> Task:
    options = {"hidden": (64,)} if network == "mlp" else {}
    given = {**options, "domain": data.domain, "classes": data.classes, "seed": seed}
    return sp.zoo.build(network, options=given)


def measure(row: Row, seed: int) -> dict[str, object]:
    """Count over all updates of one line; a refusal accuses and finds nobody."""
    data, began = sp.data.load(row.data, split="train"), time.process_time()
    members, strangers, powers = [], [], []
    alone = refused = 0
    client = sp.Client(sp.Gradient(), sp.AddGaussian(row.noise))
    for number in range(UPDATES):
        key = sp.rng(seed).fork("update", number)
        order = key.fork("people").permutation(len(data))
        tested = order[row.known + row.hidden : row.size + STRANGERS]
        rest = data.take(order[row.size + STRANGERS :][:PUBLIC])
        public = sp.PublicData(rest.inputs, rest.labels) if row.ranked else None
        others = data.take(order[: row.known]) if row.known else ()
        seen = sp.Threat().observe(
            client, build(data, row.network, number), data.take(order[: row.size]), rng=key
        )
        candidates = data.take(tested)
        alone += count_alone(seen, candidates, others)
        try:
            found = sp.membership(seen, candidates, others=others, public=public)
        except NotApplicable:
            refused += 1
            continue
        members.append(found.p_values[:-STRANGERS])
        strangers.append(found.p_values[-STRANGERS:])
        powers += [] if found.power is None else [found.power.value]
    return {
        **asdict(row),
        "updates": UPDATES,
        "refused": refused,
        **count("strangers", strangers, UPDATES * STRANGERS),
        "strangers_alone_1%": alone,
        **count("members", members, UPDATES * (row.size - row.known - row.hidden)),
        "power": sum(powers) / len(powers) if powers else None,
        "seconds": round(time.process_time() - began, 1),
    }


def count(who: str, p_values: list[torch.Tensor], number: int) -> dict[str, object]:
    """How many of so many have a p-value of at most 1 % and 5 %."""
    joined = torch.cat([*p_values, torch.zeros(0).double()])
    told: dict[str, object] = {who: number}
    for level in (0.01, 0.05):
        told[f"{who}_{level:.0%}"] = int((joined <= level).sum())
    return told


def count_alone(seen: Observation, candidates: Batch, others: Batch | tuple[()]) -> int:
    """How many strangers would be accused if nobody else could have been in the batch."""
    crowd = Crowd.of(seen, candidates, others or None)
    rest, found = crowd.rest(seen.update.flat()), 0
    for one in range(len(candidates) - STRANGERS, len(candidates)):
        length = float(crowd.shift(frozenset([one])).norm())
        found += bool(norm.sf(rest.gain(frozenset([one])) / length + length / 2) <= 0.01)
    return found


def measure_all(seed: int) -> dict[str, object]:
    """Every line, and the strangers of all lines in which everybody is known or ranked."""
    rows = []
    for row in list_rows():
        rows.append(measure(row, seed))
        print(rows[-1], flush=True)
    covered = [row for row in rows if row["ranked"] or not row["hidden"]]
    total = sum(row["strangers"] for row in covered)
    accused = {
        level: Rate(sum(row[f"strangers_{level}"] for row in covered), total).plain()
        for level in ("1%", "5%")
    }
    print(accused)
    return {"rows": rows, "accused_where_valid": accused}


if __name__ == "__main__":
    record("membership_nulls", __doc__, measure_all)
