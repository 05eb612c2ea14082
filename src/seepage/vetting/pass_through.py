"""Layers that pass on what they read."""

from __future__ import annotations

from collections.abc import Iterator

from seepage.core import Task
from seepage.vetting.verdict import Finding, Level
from seepage.vetting.weights import Rows, weight_rows

# In fewer dimensions one entry outweighs the others by chance.
DIMENSIONS = 9
DOMINANT = 0.9
SHARE = 0.9


def passing_layers(task: Task) -> Iterator[Finding]:
    """Layers whose rows each hold one entry and next to nothing else: identities, permutations.

    A first one passes the input on as it is; behind a chain of them, a classifier reads the input.

    References:
        Geiping et al., 2020, Sec. 5.4 (geiping2020inverting)
    """
    layers = list(weight_rows(task))
    passing = [rows for rows in layers if passes_on(rows)]
    first = [rows.name for rows in layers if rows.convolutional][:1]
    for rows in passing:
        kind = "convolution" if rows.convolutional else "fully connected layer"
        reason = f"{kind} {rows.name!r} passes on single entries of what it reads, unchanged"
        begins = [rows.name] == first or rows.name == layers[0].name
        level: Level = "malicious" if begins else "suspicious"
        yield Finding("pass-through layers", level, rows.name, reason)


def passes_on(rows: Rows) -> bool:
    """Whether nearly every row has nearly all of its energy in one entry."""
    if rows.matrix.shape[1] < DIMENSIONS or len(rows.matrix) == 0:
        return False
    energy = rows.matrix.double().square()
    dominant = energy.amax(1) > DOMINANT * energy.sum(1)
    return bool(dominant.double().mean() >= SHARE)
