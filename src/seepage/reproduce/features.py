"""How much of the features inside a network came back."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.features import features_at
from seepage.audit import adversary, entries, whose
from seepage.clients import Client
from seepage.core import Rng
from seepage.reproduce.place import Place
from seepage.reproduce.prepare import prepared
from seepage.reproduce.substitute import Plain


def feature_errors(scenario: Plain, place: Place, *, seeds: list[int]) -> list[float]:
    """The part of each person's feature, of length one, that is outside the recovered span.

        || z - V V^T z ||,   z = f(x) / ||f(x)||

    Args:
        scenario: Of a cell, whose attack recovers features.
        place: Where it runs.
        seeds: Repetitions.

    References:
        Liu et al., 2024, Sec. 5.1 and Table 2 (liu2024systematic)
    """
    ready = prepared(scenario, place)
    dataset, batches = whose.data(ready["data"], find=place.find)
    task = entries.model(ready["models"], dataset).to(device=place.device)
    method = adversary.recovery(ready["attacks"], dataset.domain)
    local = entries.local(ready.get("locals", {}))
    (defense,) = entries.defenses(ready.get("defenses", [[]]))
    threat = entries.threat(ready.get("threats", {}))
    errors: list[float] = []
    for who in batches:
        if who.truth is None:
            continue
        batch = dataset.take(who.people).to(device=place.device)
        for seed in seeds:
            key = Rng(seed)
            client = Client(local, defense)
            seen = threat.observe(client, task, batch, rng=key.fork("client"))
            found = method.recover(seen, rng=key.fork("adversary"))
            with torch.no_grad():
                truth = features_at(seen.task, found.layer, batch.inputs)
            errors += outside(truth, found.span).tolist()
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
