"""Simulate the rows of several cases, whose clients may differ."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.core import Observation, Simulate, Task
from seepage.core.errors import NotApplicable
from seepage.core.task import batchnorm_layers
from seepage.probing.hooks import running_order
from seepage.search.fast.row_layers import RowBatchNorm
from seepage.search.fast.row_simulation import (
    InTurn,
    SharedWeights,
    Strategy,
    Vectorised,
    row_simulation,
    shared_simulation,
)
from seepage.search.objective import RowSimulation


@dataclass(frozen=True, eq=False)
class _ByCase:
    """Simulate case after case, each with as many rows."""

    simulations: Sequence[RowSimulation]

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Cut the rows by case, and join what comes out."""
        count = len(self.simulations)
        parts = zip(self.simulations, normalised.chunk(count), labels.chunk(count), strict=True)
        return _joined([simulate(x, y) for simulate, x, y in parts])


@dataclass(frozen=True, eq=False)
class DefendedByCase:
    """Simulate all rows in one pass through one network, and defend each case's in its own way."""

    simulations: Sequence[SharedWeights]

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """One pass, then a defense for each case."""
        return self._defended(self.simulations[0].gradients(normalised, labels))

    def reading(
        self, normalised: Tensor, labels: Tensor, layers: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The same, and what layers read on the way."""
        undefended, read = self.simulations[0].undefended(normalised, labels, layers)
        return self._defended(undefended), read

    def _defended(self, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        count = len(self.simulations)
        cut = {name: tensor.chunk(count) for name, tensor in gradients.items()}
        return _joined(
            [
                shared.defended({name: parts[case] for name, parts in cut.items()})
                for case, shared in enumerate(self.simulations)
            ]
        )


def case_simulation(
    cases: Sequence[Observation], *, rows: int, strategy: Strategy = "auto"
) -> RowSimulation:
    """The simulation of all rows of some cases of one task.

    Args:
        cases: What was seen. Their clients may differ in what an adversary read off each update.
        rows: How many rows there will be, as many of each case.
        strategy: As for `row_simulation`.
    """
    if all(_alike(cases[0], case) for case in cases[1:]):
        return row_simulation(cases[0], rows=rows, strategy=strategy)
    shared = _one_network(cases, rows=rows, strategy=strategy)
    if shared is not None:
        return DefendedByCase(shared)
    return _ByCase([row_simulation(case, rows=rows, strategy=strategy) for case in cases])


def _one_network(
    cases: Sequence[Observation], *, rows: int, strategy: Strategy
) -> list[SharedWeights] | None:
    """The simulations of all cases with the network of the first; None if they cannot share it.

    Of clients whose defenses are of the same kinds, one is tried.
    """
    simulations = [case.simulate for case in cases]
    if any(case.simulate.client is None or _has_own_network(case) for case in cases):
        return None
    kinds = {_kind(one): case for one, case in zip(simulations, cases, strict=True)}
    tried = [row_simulation(case, rows=rows, strategy=strategy) for case in kinds.values()]
    first = tried[0]
    if not isinstance(first, SharedWeights) or not all(
        isinstance(one, SharedWeights) for one in tried
    ):
        return None
    return [replace(first, simulation=simulation) for simulation in simulations]


def _kind(simulation: Simulate) -> tuple[object, ...]:
    client = simulation.client
    assert client is not None
    return (repr(client.local), simulation.mixing is None, *map(type, client.chain.links))


def _alike(one: Observation, other: Observation) -> bool:
    """Whether the two clients are simulated alike; of those that are not ours, who asks says so."""
    ours, theirs = one.simulate, other.simulate
    if ours.client is None or theirs.client is None:
        return True
    own = ours is not theirs and (_has_own_network(one) or _has_own_network(other))
    return ours.client == theirs.client and not own


def _has_own_network(case: Observation) -> bool:
    """Whether another network is simulated than the one that was broadcast to all."""
    return case.simulate.client is not None and case.simulate.task is not case.task


def _joined(updates: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([update[name] for update in updates]) for name in updates[0]}


log = logging.getLogger("seepage.engine")


def known_statistics(simulate: RowSimulation, cases: Sequence[Observation]) -> RowSimulation:
    """The same simulation, whose network is given the statistics of each case.

    At the private batch both share the same update. Where rows cannot share one network, where the
    network normalises by broadcast statistics anyway, or where the batch's are unknown, it is left
    as it is. So is a layer that runs more than once: what is known is of its first time.

    Args:
        simulate: Of the rows of all cases.
        cases: What was seen; rows come case by case, as many of each.
    """
    if isinstance(simulate, _ByCase):
        apart = zip(simulate.simulations, cases, strict=True)
        return replace(simulate, simulations=[known_statistics(one, [case]) for one, case in apart])
    if isinstance(simulate, DefendedByCase):
        first, *rest = simulate.simulations
        return replace(simulate, simulations=(_given(first, cases), *rest))
    if isinstance(simulate, InTurn | Vectorised):
        # Rows one by one, or by vmap, may pass through that network too.
        shared = shared_simulation(simulate.observation)
        simulate = simulate if isinstance(shared, str) else shared
    if isinstance(simulate, SharedWeights):
        return _given(simulate, cases)
    log.info("statistics are not given: rows do not share one network")
    return simulate


def _given(shared: SharedWeights, cases: Sequence[Observation]) -> SharedWeights:
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


@dataclass(frozen=True, eq=False)
class Rounded:
    """A simulation in bfloat16, between inputs and updates in the precision of the search."""

    simulate: RowSimulation

    def __call__(self, normalised: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Round, simulate, and widen what comes out."""
        soft = labels.is_floating_point()
        updates = self.simulate(normalised.bfloat16(), labels.bfloat16() if soft else labels)
        return {name: tensor.to(normalised.dtype) for name, tensor in updates.items()}


def rounded(observation: Observation) -> Observation:
    """The same observation with its network in bfloat16."""
    simulation = observation.simulate
    if simulation.client is None:
        raise NotApplicable(
            "precision 'bf16' needs a Seepage client, whose network it can round; "
            "use precision 'tf32'"
        )
    task = observation.task.to(dtype=torch.bfloat16)
    update = replace(
        observation.update, tensors={n: t.bfloat16() for n, t in observation.update.tensors.items()}
    )
    return replace(observation, task=task, update=update, simulate=simulation.with_task(task))
