"""The corners of the cone of maps without negative entries, by linear programs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from seepage.core import Rng

# Rows that a program starts with for each unknown, the most violated ones added at a time, and how
# often.
_FIRST, _ADDED, _ROUNDS = 20, 100, 12


class MapCone:
    """Directions x `(K,)` whose map, rows x, has no entry below `-slack`, and mean one.

    Maps behind a ReLU have no negative entries. If for each person some entry is positive for this
    person alone, the corners of the cone are the people: whatever they have in common, and however
    alike they are.

    Args:
        rows: `(n, K)`, in units of their usual size.
        slack: How far below zero an entry may be.
        rng: For the rows that a program starts with.
    """

    def __init__(self, rows: Tensor, *, slack: float, rng: Rng) -> None:
        self._rows = rows.double().cpu().numpy()
        self._slack = slack
        self._mean = self._rows.mean(0)
        count = min(len(rows), _FIRST * rows.shape[1])
        self._held = np.zeros(len(rows), dtype=bool)
        self._held[rng.permutation(len(rows))[:count].numpy()] = True

    def corner(self, objective: Tensor) -> Tensor | None:
        """The corner at which an objective `(K,)` is largest; None if there is none."""
        # Loading scipy takes longer than importing all the rest.
        from scipy.optimize import linprog

        cost = -objective.double().cpu().numpy()
        solution = None
        for _ in range(_ROUNDS):
            some = self._rows[self._held]
            found = linprog(
                cost,
                A_ub=-some,
                b_ub=np.full(len(some), self._slack),
                A_eq=self._mean[None],
                b_eq=[1.0],
                bounds=[(None, None)] * len(cost),
                method="highs-ds",
            )
            if found.status == 3:
                # Unbounded with so few rows.
                self._add(np.argsort(self._rows @ objective.double().cpu().numpy()))
                continue
            if found.status != 0:
                return None
            values = self._rows @ found.x
            solution = torch.from_numpy(found.x).to(objective)
            if values.min() >= -self._slack - 1e-9:
                return solution
            self._add(np.argsort(values))
        return solution

    def _add(self, order: np.ndarray) -> None:
        new = order[~self._held[order]][:_ADDED]
        self._held[new] = True
