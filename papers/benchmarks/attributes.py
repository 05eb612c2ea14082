"""What an update tells of one column of a row whose other columns are known.

    python -m benchmarks.attributes

64 people of each table, whose rows are hidden from nobody but for one column, in batches of 8 and
of 64, through an MLP of width 64: how often the column is guessed right with the update, by a model
trained on 600 public rows, and by the most frequent value. The second table is Fair's survey of
1978, which statsmodels ships; without statsmodels it is left out.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.nn.functional import one_hot

import seepage as sp
from benchmarks.provenance import record
from seepage.data._dataset import Dataset
from seepage.domains._tabular import Categorical, Continuous, Tabular
from seepage.inference import AttributeComparison

PEOPLE, PUBLIC = 64, 600
COLUMNS = {"voters": ("party", "leaning", "school"), "affairs": ("marriage", "religion", "work")}
DEFENSES = {
    "none": None,
    "noise 0.01": sp.AddGaussian(0.01),
    "DP-SGD C=1 sigma=1": sp.dp_sgd(max_norm=1.0, noise_multiplier=1.0, batch_size=8),
}
# Name, column of the file, and categories; or lowest, highest, mean and deviation.
_NUMBERS = {"age": (17.5, 42.0), "yrs_married": (0.5, 23.0), "children": (0.0, 5.5)}
_CATEGORIES = {
    "marriage": ("rate_marriage", ("very poor", "poor", "fair", "good", "very good")),
    "religion": ("religious", ("not", "mildly", "fairly", "strongly")),
    "work": ("occupation", ("student", "farming", "white-collar", "teacher", "manager", "doctor")),
    "husband's work": ("occupation_husb", tuple("123456")),
}


def affairs() -> Dataset | None:
    """Fair's survey; the class is whether there was an affair."""
    found = importlib.util.find_spec("statsmodels")
    if found is None or not found.submodule_search_locations:
        return None
    path = Path(found.submodule_search_locations[0], "datasets", "fair", "fair.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    parts, columns = [], []
    for name, (low, high) in _NUMBERS.items():
        values = torch.tensor([float(row[name]) for row in rows])
        columns.append(
            Continuous(
                name=name, low=low, high=high, mean=float(values.mean()), std=float(values.std())
            )
        )
        parts.append(((values - low) / (high - low))[:, None])
    for name, (stored, categories) in _CATEGORIES.items():
        codes = torch.tensor([int(float(row[stored])) - 1 for row in rows])
        columns.append(Categorical(name=name, categories=categories))
        parts.append(one_hot(codes, len(categories)).float())
    return Dataset(
        name="affairs",
        inputs=torch.cat(parts, dim=1),
        labels=torch.tensor([float(row["affairs"]) > 0 for row in rows]).long(),
        domain=Tabular(tuple(columns)),
        class_names=("no", "yes"),
        source="Fair, 1978, by way of statsmodels",
    )


def measure(data: Dataset, column: str, size: int, defense: str, seed: int) -> dict[str, object]:
    """Guess the column of 64 people, batch by batch."""
    order = sp.rng(seed).fork("people").permutation(len(data))
    rest = data.take(order[PEOPLE : PEOPLE + PUBLIC])
    public = sp.PublicData(rest.inputs, rest.labels)
    task = sp.zoo.mlp(hidden=(64,), classes=2, domain=data.domain)
    link = DEFENSES[defense]
    client = sp.Client(sp.Gradient()) if link is None else sp.Client(sp.Gradient(), link)
    found = []
    for number, some in enumerate(order[:PEOPLE].split(size)):
        people = data.take(some)
        seen = sp.Threat().observe(client, task, people, rng=sp.rng(seed).fork("client", number))
        guess = sp.attributes(seen, people, column, public=public)
        found.append(guess.compare(people.inputs, data.domain))
    kinds = ("with_update", "by_model", "by_marginals")
    told = AttributeComparison(
        column, *(torch.cat([getattr(one, kind) for one in found]) for kind in kinds)
    )
    print(f"{data.name} B={size} {defense}\n{told}\n", flush=True)
    return {"data": data.name, "batch": size, "defense": defense, **told.plain()}


def measure_all(seed: int) -> dict[str, object]:
    """Both tables."""
    tables = [sp.data.load("voters"), affairs()]
    return {"rows": list(_measure_rows([data for data in tables if data is not None], seed))}


def _measure_rows(tables: list[Dataset], seed: int) -> Iterator[dict[str, object]]:
    for data in tables:
        for column in COLUMNS[data.name]:
            for size in (8, 64):
                for defense in DEFENSES if size == 8 else ("none",):
                    yield measure(data, column, size, defense, seed)


if __name__ == "__main__":
    record("attributes", __doc__, measure_all)
