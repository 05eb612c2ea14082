"""Rows of cases whose clients are simulated each in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.objective import RowSimulation
from seepage.attacks.gradient_matching.rows.choice import Strategy, row_simulation
from seepage.attacks.gradient_matching.rows.shared import Shared
from seepage.core import Observation
from seepage.threats import Simulation


@dataclass(frozen=True, eq=False)
class ByCase:
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

    simulations: Sequence[Shared]

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
    return ByCase([row_simulation(case, rows=rows, strategy=strategy) for case in cases])


def _one_network(
    cases: Sequence[Observation], *, rows: int, strategy: Strategy
) -> list[Shared] | None:
    """The simulations of all cases with the network of the first; None if they cannot share it.

    Of clients whose defenses are of the same kinds, one is tried.
    """
    simulations = [case.simulate for case in cases if isinstance(case.simulate, Simulation)]
    if len(simulations) < len(cases) or any(_has_own_network(case) for case in cases):
        return None
    kinds = {_kind(one): case for one, case in zip(simulations, cases, strict=True)}
    tried = [row_simulation(case, rows=rows, strategy=strategy) for case in kinds.values()]
    first = tried[0]
    if not isinstance(first, Shared) or not all(isinstance(one, Shared) for one in tried):
        return None
    return [replace(first, simulation=simulation) for simulation in simulations]


def _kind(simulation: Simulation) -> tuple[object, ...]:
    client = simulation.client
    return (repr(client.local), simulation.mixing is None, *map(type, client.chain.links))


def _alike(one: Observation, other: Observation) -> bool:
    """Whether the two clients are simulated alike; of those that are not ours, who asks says so."""
    ours, theirs = one.simulate, other.simulate
    if not (isinstance(ours, Simulation) and isinstance(theirs, Simulation)):
        return True
    own = ours is not theirs and (_has_own_network(one) or _has_own_network(other))
    return ours.client == theirs.client and not own


def _has_own_network(case: Observation) -> bool:
    """Whether another network is simulated than the one that was broadcast to all."""
    return isinstance(case.simulate, Simulation) and case.simulate.task is not case.task


def _joined(updates: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([update[name] for update in updates]) for name in updates[0]}
