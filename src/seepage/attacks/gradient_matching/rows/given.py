"""Normalising candidates by the statistics of the private batch, where an adversary knows them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from seepage.attacks.gradient_matching.objective import RowSimulation
from seepage.attacks.gradient_matching.rows.by_case import DefendedByCase
from seepage.attacks.gradient_matching.rows.layers import RowBatchNorm
from seepage.attacks.gradient_matching.rows.plain import InTurn
from seepage.attacks.gradient_matching.rows.shared import Shared, shared_simulation
from seepage.core import Observation

log = logging.getLogger("seepage.engine")


def given_statistics(simulate: RowSimulation, cases: Sequence[Observation]) -> RowSimulation:
    """The same simulation, whose network is given the statistics of each case.

    At the private batch both share the same update. Where rows do not share one network, where the
    network normalises by broadcast statistics anyway, or where the batch's are unknown, it is left
    as it is.

    Args:
        simulate: Of the rows of all cases.
        cases: What was seen; rows come case by case, as many of each.
    """
    if isinstance(simulate, DefendedByCase):
        first, *rest = simulate.simulations
        return replace(simulate, simulations=(_given(first, cases), *rest))
    if isinstance(simulate, InTurn):
        # Rows one by one may pass through that network too.
        shared = shared_simulation(cases[0])
        simulate = simulate if isinstance(shared, str) else shared
    if isinstance(simulate, Shared):
        return _given(simulate, cases)
    log.info("statistics are not given: rows do not share one network")
    return simulate


def _given(shared: Shared, cases: Sequence[Observation]) -> Shared:
    known = [case.statistics for case in cases if case.statistics is not None]
    if len(known) < len(cases):
        return shared
    network = copy.deepcopy(shared.network)
    for name, layer in network.named_modules():
        if isinstance(layer, RowBatchNorm) and layer.inverse is None:
            of_cases = [statistics[name] for statistics in known]
            means = torch.stack([one.mean for one in of_cases]).to(layer.weight)
            layer.given = means, torch.stack([one.variance for one in of_cases]).to(layer.weight)
    return replace(shared, network=network)
