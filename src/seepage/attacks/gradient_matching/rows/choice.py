"""Which way to simulate many rows."""

from __future__ import annotations

import logging
from typing import Literal

from seepage.attacks.gradient_matching.objective import RowSimulation
from seepage.attacks.gradient_matching.rows.plain import InTurn, Vectorised
from seepage.attacks.gradient_matching.rows.shared import shared_simulation
from seepage.core import Observation
from seepage.core.errors import NotApplicable, UnknownName

Strategy = Literal["auto", "in_turn", "vectorised", "shared"]
_STRATEGIES = ("auto", "in_turn", "vectorised", "shared")

log = logging.getLogger("seepage.engine")


def row_simulation(
    observation: Observation, *, rows: int, strategy: Strategy = "auto"
) -> RowSimulation:
    """The simulation of all rows at once.

    Args:
        observation: What was seen; all rows share its task and client.
        rows: How many rows there will be.
        strategy: "shared" passes all rows through one network, "vectorised" uses vmap,
            "in_turn" loops; "auto" takes the first that works and pays.
    """
    if strategy not in _STRATEGIES:
        raise UnknownName("strategy", strategy, _STRATEGIES)
    on_card = next(iter(observation.update)).is_cuda
    if strategy == "in_turn" or (strategy == "auto" and rows == 1 and not on_card):
        return InTurn(observation)
    if strategy == "vectorised":
        return Vectorised(observation)
    shared = shared_simulation(observation)
    if not isinstance(shared, str):
        return shared
    if strategy == "shared":
        raise NotApplicable(f"rows cannot share one network: {shared}; use strategy='vectorised'")
    log.info("simulating rows apart: %s", shared)
    pays = rows > 1 and on_card and not observation.task.mixes_examples
    return Vectorised(observation) if pays else InTurn(observation)
