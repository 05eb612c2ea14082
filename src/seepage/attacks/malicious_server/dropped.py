"""Inputs from rows of a gradient of which entries were dropped at random."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.malicious_server.holes import fill_holes
from seepage.core import Observation
from seepage.defenses import Clip, Dropout
from seepage.threats import Simulation


def drops_entries(observation: Observation) -> bool:
    """Whether the adversary knows of dropout, and of nothing that would hide what it dropped."""
    simulation = observation.simulate
    links = simulation.client.chain.links if isinstance(simulation, Simulation) else ()
    alone = all(isinstance(link, Dropout | Clip) for link in links)
    return alone and any(isinstance(link, Dropout) for link in links)


def completed(weight: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The rows with the mean of what is around them in place of entries that are zero.

    Rows that are zero altogether stay so: no input is in them.

    Args:
        weight: Rows `(K, n)` of a gradient, multiples of an input each.
        shape: Of an input, `(C, H, W)` or `(C, L)`; entries of others have no neighbours.
    """
    if len(shape) < 2:
        return weight
    rows = weight.clone()
    for k in weight.any(1).nonzero().flatten().tolist():
        row = weight[k].reshape(shape)
        rows[k] = fill_holes(shape, row.nonzero(), row[row != 0]).flatten()
    return rows


def strengths(bias: Tensor, rows: Tensor, functional: Tensor, middle: Tensor) -> Tensor:
    """The gradient of each bin's bias, or where it was dropped what it must have been.

    A row is s x, and the bin says what <w, x> is nearly: s = <w, s x> / <w, x>.

    Args:
        bias: As observed, `(K,)`.
        rows: s x, completed, `(K, n)`.
        functional: w of each bin, `(K, n)`.
        middle: <w, x> in the middle of each bin, `(K,)`.
    """
    guessed = (rows * functional).sum(1) / middle
    missing = (bias == 0) & rows.any(1)
    return torch.where(missing, torch.nan_to_num(guessed, posinf=0.0, neginf=0.0), bias)
