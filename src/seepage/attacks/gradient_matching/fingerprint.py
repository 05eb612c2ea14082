"""A name for a run, by which its checkpoint is found again."""

from __future__ import annotations

import hashlib

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
    for case in cases:
        known = [] if case.labels is None else [case.labels]
        for layer in (case.statistics or {}).values():
            known += [layer.mean, layer.variance]
        for tensor in (*case.update, *case.task.parameters.values(), *known):
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:24]


def _client(case: Observation) -> object:
    simulate = case.simulate
    return simulate.client if isinstance(simulate, Simulation) else simulate
