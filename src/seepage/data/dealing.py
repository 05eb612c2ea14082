"""The order in which examples are handed out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def dealt(labels: NDArray[Any]) -> NDArray[np.intp]:
    """Return an order that deals one example of each class in turn.

    Sources sorted by class would otherwise fill every batch with one person or one disease.
    Within a class the order is kept.

    Example:
        >>> dealt(np.array([0, 0, 0, 1, 1, 2])).tolist()
        [0, 3, 5, 1, 4, 2]
    """
    turn = np.zeros(len(labels), dtype=np.intp)
    for label in np.unique(labels):
        members = labels == label
        turn[members] = np.arange(members.sum())
    return np.lexsort((labels, turn))
