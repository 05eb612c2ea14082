"""Simulate the rows of several cases, whose clients may differ."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from seepage.core import Observation, Simulate
from seepage.core._device import convert
from seepage.core._protocols import InputDefense
from seepage.core._task import batchnorm_layers
from seepage.core._update import join_rows
from seepage.core.errors import NotApplicable
from seepage.probing._hooks import running_order
from seepage.search.fast._row_layers import RowBatchNorm
from seepage.search.fast._row_simulation import (
    InTurn,
    SharedWeights,
    Strategy,
    Vectorised,
    row_simulation,
    shared_simulation,
)

if TYPE_CHECKING:
    from seepage.search._objective import RowSimulation

log = logging.getLogger("seepage.engine")


@dataclass(frozen=True, eq=False)
class _ByCase:
    """Simulate case after case; each case has the same number of rows."""

    simulations: Sequence[RowSimulation]

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        count = len(self.simulations)
        parts = zip(self.simulations, normalised.chunk(count), labels.chunk(count), strict=True)
        return join_rows([simulate(x, y) for simulate, x, y in parts])


def case_simulation(
    cases: Sequence[Observation], *, rows: int, strategy: Strategy = "auto"
) -> RowSimulation:
    """Choose how all rows of several cases of one task are simulated.

    Args:
        cases: What was observed. Clients may differ in what the adversary read off each update.
        rows: How many rows there will be, the same number of each case.
        strategy: As for `row_simulation`.
    """
    if all(_are_alike(cases[0], case) for case in cases[1:]):
        return row_simulation(cases[0], rows=rows, strategy=strategy)
    shared = _share_network(cases, rows=rows, strategy=strategy)
    if shared is not None:
        return shared
    return _ByCase([row_simulation(case, rows=rows, strategy=strategy) for case in cases])


def _share_network(
    cases: Sequence[Observation], *, rows: int, strategy: Strategy
) -> SharedWeights | None:
    """Simulate all cases with the network of the first; None if they cannot share it.

    One client of each kind of defense is tried.
    """
    simulations = [case.simulate for case in cases]
    if any(case.simulate.client is None or _has_own_network(case) for case in cases):
        return None
    kinds = {_kind(one): case for one, case in zip(simulations, cases, strict=True)}
    tried = [row_simulation(case, rows=rows, strategy=strategy) for case in kinds.values()]
    shared = [one for one in tried if isinstance(one, SharedWeights)]
    if len(shared) < len(tried):
        return None
    return replace(shared[0], simulations=tuple(simulations))


def _kind(simulation: Simulate) -> tuple[object, ...]:
    client = simulation.client
    assert client is not None
    # What acts before the update, as a mask of columns that was read off it, may differ from case
    # to case: rows share a network behind a mask that lets all pass, and behind no other.
    links = [
        id(link) if isinstance(link, InputDefense) else type(link) for link in client.chain.links
    ]
    return (repr(client.local), simulation.mixing is None, *links)


def _are_alike(one: Observation, other: Observation) -> bool:
    """Whether the two clients are simulated alike; clients that are not ours are taken to be."""
    ours, theirs = one.simulate, other.simulate
    if ours.client is None or theirs.client is None:
        return True
    own = ours is not theirs and (_has_own_network(one) or _has_own_network(other))
    return ours.client == theirs.client and not own


def _has_own_network(case: Observation) -> bool:
    """Whether the simulated network is not the one that was broadcast to all."""
    return case.simulate.client is not None and case.simulate.task is not case.task


def use_known_statistics(simulate: RowSimulation, cases: Sequence[Observation]) -> RowSimulation:
    """Normalise by the known batch statistics of each case.

    This leaves the update at the private batch as it is. The simulation is returned unchanged if
    rows cannot share one network, if the network normalises by broadcast statistics, or if the
    batch's statistics are unknown. A layer that runs more than once also stays as it is, since only
    the statistics of its first run are known.

    Args:
        simulate: The simulation of the rows of all cases.
        cases: What was observed; rows come case by case, as many of each.
    """
    if isinstance(simulate, _ByCase):
        pairs = zip(simulate.simulations, cases, strict=True)
        return _ByCase([use_known_statistics(one, [case]) for one, case in pairs])
    if isinstance(simulate, InTurn | Vectorised):
        shared = shared_simulation(simulate.observation)
        simulate = simulate if isinstance(shared, str) else shared
    if isinstance(simulate, SharedWeights):
        return _give_statistics(simulate, cases)
    log.info("statistics are not given: rows do not share one network")
    return simulate


def _give_statistics(shared: SharedWeights, cases: Sequence[Observation]) -> SharedWeights:
    known = [case.statistics for case in cases if case.statistics is not None]
    if len(known) < len(cases):
        return shared
    network, task = copy.deepcopy(shared.network), shared.simulations[0].task
    runs = Counter(running_order(task, batchnorm_layers(task.network)))
    for name, layer in network.named_modules():
        if isinstance(layer, RowBatchNorm) and layer.inverse is None and runs[name] == 1:
            of_cases = [statistics[name] for statistics in known]
            means = torch.stack([one.mean for one in of_cases]).to(layer.weight)
            layer.given = means, torch.stack([one.variance for one in of_cases]).to(layer.weight)
    return replace(shared, network=network)


@dataclass(frozen=True, eq=False)
class Bfloat16Simulation:
    """Run a simulation in bfloat16; inputs and updates have the precision of the search."""

    simulate: RowSimulation

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Round the inputs, simulate, and convert the updates back."""
        rounded = normalised.bfloat16()
        updates = self.simulate(rounded, convert(labels, rounded))
        return {name: tensor.to(normalised.dtype) for name, tensor in updates.items()}


def round_to_bfloat16(observation: Observation) -> Observation:
    """Convert the network and the update of an observation to bfloat16."""
    simulation = observation.simulate
    if simulation.client is None:
        raise NotApplicable(
            "precision 'bf16' needs a Seepage client, whose network it can round; "
            "use precision 'tf32'"
        )
    task = observation.task.to(dtype=torch.bfloat16)
    update = observation.update.map(Tensor.bfloat16)
    return replace(observation, task=task, update=update, simulate=simulation.with_task(task))
