"""A name for a run, by which its checkpoint is found again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from torch import Tensor

from seepage.attacks.gradient_matching.chunks import Chunk
from seepage.attacks.gradient_matching.search import Search
from seepage.core import Observation, Rng
from seepage.threats import Simulation


def fingerprint(
    searches: list[Search], cases: tuple[Observation, ...], rngs: list[Rng], chunk: Chunk
) -> str:
    """A name for a run that no run with another result shares."""
    clients = [_client(case) for case in cases]
    digest = hashlib.sha256(repr((searches, rngs, chunk, clients, cases[0].task)).encode())
    # Cases share the task, whose weights may be most of all there is to read.
    _add(digest, cases[0].task.parameters.values())
    for case in cases:
        known = [] if case.labels is None else [case.labels]
        for layer in (case.statistics or {}).values():
            known += [layer.mean, layer.variance]
        _add(digest, (*case.update, *known))
    return digest.hexdigest()[:24]


def _add(digest: hashlib._Hash, tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())


def _client(case: Observation) -> object:
    simulate = case.simulate
    return simulate.client if isinstance(simulate, Simulation) else simulate
