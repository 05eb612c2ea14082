"""How much of the features inside a network came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.feature_recovery import FeatureRecovery
from seepage.audit import _spec_entries as entries
from seepage.audit._captured_data import CapturedData
from seepage.audit._case import client_key
from seepage.clients import Client
from seepage.core import Batch, Observation, Rng, Task
from seepage.core._progress import report
from seepage.core.errors import SeepageError, summarise_error
from seepage.data import Dataset
from seepage.search._feature_matching import features_at
from seepage.threats import Threat
from seepage_papers.place import Place
from seepage_papers.prepare import prepared
from seepage_papers.sources import mean_by_person
from seepage_papers.substitute import Plain


@dataclass(frozen=True)
class FeatureErrors:
    """What came of a cell.

    Args:
        values: One per person and seed.
        each: Of every person the mean over seeds.
        missed: One reason per batch and seed of which nothing came back.
    """

    values: tuple[float, ...]
    each: Mapping[str, float]
    missed: tuple[str, ...]


def feature_errors(scenario: Plain, place: Place, *, seeds: list[int]) -> FeatureErrors:
    """The part of each person's feature, of length one, that is outside the recovered span.

        || z - V V^T z ||,   z = f(x) / ||f(x)||

    Where a recovery raises, the reason stands for its people, and the others go on.

    References:
        Liu et al., 2024, Sec. 5.1 and Table 2 (liu2024systematic)
    """
    ready = prepared(scenario, place)
    dataset, batches = entries.read_data(ready["data"], find=place.find)
    threat = entries.build_part("threat", ready.get("threats", {}))
    task = _build_network(ready, dataset, threat, place)
    method = entries.read_recovery(ready["attacks"], dataset.domain)
    (defense,) = entries.read_defenses(ready.get("defenses", [[]]))
    client = Client(entries.build_part("local computation", ready.get("locals", {})), defense)
    todo = [(who, seed) for who in batches if who.batch is not None for seed in seeds]
    values: list[tuple[str, float]] = []
    missed: list[str] = []
    for number, (who, seed) in enumerate(todo):
        batch = dataset.take(who.people).to(device=place.device)
        key = client_key(seed, client, who)
        try:
            seen = threat.observe(client, task, batch, rng=key)
            found = _errors(seen, batch, method, Rng(seed).fork("adversary"))
        # Says nothing of the recovery, only of the GPU.
        except torch.cuda.OutOfMemoryError:
            raise
        # What linear algebra and a GPU raise is a RuntimeError.
        except (SeepageError, RuntimeError, ArithmeticError) as error:
            missed.append(str(error) if isinstance(error, SeepageError) else summarise_error(error))
            continue
        values += zip(map(str, who.people), found, strict=True)
        report(number + 1, len(todo), sum(found) / len(found))
    each = mean_by_person(values)
    return FeatureErrors(tuple(value for _, value in values), each, tuple(missed))


def _build_network(
    ready: Plain, dataset: Dataset | CapturedData, threat: Threat, place: Place
) -> Task:
    """The network of a cell where it runs, built once for all cells that follow one another."""
    plain = {k: ready["data"][k] for k in entries.DATASET if k in ready["data"]}
    wanted = repr((plain, ready["models"], threat.mode))
    if wanted not in place.networks:
        place.networks.clear()
        task = entries.read_model(ready["models"], dataset).to(device=place.device)
        place.networks[wanted] = task.in_mode(threat.mode)
    return place.networks[wanted]


def _errors(seen: Observation, batch: Batch, method: FeatureRecovery, rng: Rng) -> list[float]:
    found = method.recover(seen, rng=rng)
    with torch.no_grad():
        truth = features_at(seen.task, found.layer, batch.inputs)
    errors: list[float] = outside(truth, found.span).tolist()
    return errors


def outside(features: Tensor, span: Tensor) -> Tensor:
    """Norm of what a span with orthonormal columns `(d, k)` leaves of unit features, `(B,)`.

    Example:
        >>> outside(torch.tensor([[0.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0], [0.0]]))
        tensor([1.0000, 0.8000], dtype=torch.float64)
    """
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    columns = span.to(unit)
    left: Tensor = torch.linalg.vector_norm(unit - (unit @ columns) @ columns.T, dim=1)
    return left
