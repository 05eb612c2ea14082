"""Normalising candidates by the statistics of the private batch, where an adversary knows them."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch

from seepage.attacks.gradient_matching.objective import RowSimulation
from seepage.attacks.gradient_matching.rows.by_case import ByCase, DefendedByCase
from seepage.attacks.gradient_matching.rows.layers import RowBatchNorm
from seepage.attacks.gradient_matching.rows.plain import InTurn, Vectorised
from seepage.attacks.gradient_matching.rows.shared import Shared, shared_simulation
from seepage.attacks.running_order import running_order
from seepage.core import Observation, Task
from seepage.core.task import batchnorm_layers

log = logging.getLogger("seepage.engine")


def given_statistics(simulate: RowSimulation, cases: Sequence[Observation]) -> RowSimulation:
    """The same simulation, whose network is given the statistics of each case.

    At the private batch both share the same update. Where rows cannot share one network, where the
    network normalises by broadcast statistics anyway, or where the batch's are unknown, it is left
    as it is. So is a layer that runs more than once: what is known is of its first time.

    Args:
        simulate: Of the rows of all cases.
        cases: What was seen; rows come case by case, as many of each.
    """
    if isinstance(simulate, ByCase):
        apart = zip(simulate.simulations, cases, strict=True)
        return replace(simulate, simulations=[given_statistics(one, [case]) for one, case in apart])
    if isinstance(simulate, DefendedByCase):
        first, *rest = simulate.simulations
        return replace(simulate, simulations=(_given(first, cases), *rest))
    if isinstance(simulate, InTurn | Vectorised):
        # Rows one by one, or by vmap, may pass through that network too.
        shared = shared_simulation(simulate.observation)
        simulate = simulate if isinstance(shared, str) else shared
    if isinstance(simulate, Shared):
        return _given(simulate, cases)
    log.info("statistics are not given: rows do not share one network")
    return simulate


def _given(shared: Shared, cases: Sequence[Observation]) -> Shared:
    known = [case.statistics for case in cases if case.statistics is not None]
    if len(known) < len(cases):
        return shared
    network, once = copy.deepcopy(shared.network), _run_once(shared.simulation.task)
    for name, layer in network.named_modules():
        if isinstance(layer, RowBatchNorm) and layer.inverse is None and name in once:
            of_cases = [statistics[name] for statistics in known]
            means = torch.stack([one.mean for one in of_cases]).to(layer.weight)
            layer.given = means, torch.stack([one.variance for one in of_cases]).to(layer.weight)
    return replace(shared, network=network)


def _run_once(task: Task) -> set[str]:
    """The batch-normalisation layers that one pass runs once, by name."""
    runs = Counter(running_order(task, batchnorm_layers(task.network)))
    return {name for name, count in runs.items() if count == 1}
