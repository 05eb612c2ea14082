"""What a candidate of the adversary stands for: private inputs, or encodings of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.clients import Shared
from seepage.core import Batch, Mixing


@dataclass(frozen=True, eq=False)
class Goal:
    """What is searched for.

    Args:
        labels: Of what is searched for, sorted.
        mixing: What is known of the mixing: where encodings are searched for, with one row for each
            label; where private inputs are, with one column for each.
        simulated: The same, where private inputs are searched for and have to be mixed first.
    """

    labels: Tensor
    mixing: Mixing | None = None
    simulated: Mixing | None = None


def goal(shared: Shared, batch: Batch, *, knows_mixing: bool) -> Goal:
    """Private inputs where their way into the update can be simulated, else the encodings.

    Signs that were flipped at random are never known, so behind them it is the encodings.
    """
    mixing = _mixing(shared) if knows_mixing else None
    if mixing is not None and mixing.flipped_about is None:
        order = _order(batch.labels)
        aligned = replace(mixing, coefficients=mixing.coefficients[:, order])
        return Goal(batch.labels[order], aligned, simulated=aligned)
    labels = torch.cat([lesson.sought.labels for lesson in shared.lessons])
    order = _order(labels)
    if mixing is not None:
        mixing = replace(mixing, coefficients=mixing.coefficients[order])
    return Goal(labels[order], mixing)


def _order(labels: Tensor) -> Tensor:
    """The order that sorts labels, so that it says nothing about the order of the inputs."""
    if labels.ndim == 1:
        return labels.argsort(stable=True)
    rows = sorted(range(len(labels)), key=lambda row: labels[row].tolist())
    return torch.tensor(rows, device=labels.device)


def _mixing(shared: Shared) -> Mixing | None:
    """The mixing of all the clients' data."""
    known = [lesson.mixing for lesson in shared.lessons if lesson.mixing is not None]
    if not known:
        return None
    parts = (mixing.coefficients for mixing in known)
    whole: Tensor = torch.block_diag(*parts)  # type: ignore[no-untyped-call]
    return replace(known[0], coefficients=whole)
