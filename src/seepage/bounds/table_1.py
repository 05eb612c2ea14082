"""Table 1 of Liu et al. for the defenses that a client has."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import nn

from seepage.bounds.channel import Channel
from seepage.bounds.information import information
from seepage.bounds.two_layer import Orders, two_layer_orders
from seepage.clients import Client
from seepage.core import Batch, Protection, Task
from seepage.core.errors import NotApplicable
from seepage.defenses import (
    AddGaussian,
    Clip,
    ClipEach,
    Dropout,
    Mean,
    Prune,
    SecureAggregation,
    TopK,
    chain,
)

COMPOSED = "several defenses together: their factors are multiplied, beyond the paper"
EXAMPLES_CLIPPED = "each example is clipped, where the paper clips their sum"

_CLIPPING = (Clip, ClipEach)
_PRUNING = (Prune, TopK)
_COLUMNS = (AddGaussian, Dropout, SecureAggregation, *_CLIPPING, *_PRUNING)


def table_1(client: Client, task: Task, batch: Batch, *, std: float = 0.0) -> Orders:
    """Table 1 for a client's own defenses; how much is clipped and pruned is measured.

    Args:
        client: Who shares; links that the table has no column for are refused by name.
        task: A network of two fully connected layers.
        batch: The private inputs.
        std: Noise the update is observed with where the defense adds none.

    Example:
        >>> import seepage as sp
        >>> photo, task = sp.data.bundled("photos", size=1), sp.zoo.mlp(hidden=(32,))
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(0.1))
        >>> round(table_1(client, task, photo).lower, 2)  # 0.1 sqrt(3072 / 32)
        0.98

    References:
        Liu et al., 2024, Table 1 (liu2024systematic)
    """
    inputs, width = _sizes(task)
    links = [link for link in client.chain.links if not isinstance(link, Mean)]
    strange = [link for link in links if not isinstance(link, _COLUMNS)]
    if strange:
        raise NotApplicable(
            f"Table 1 has no column for {', '.join(map(repr, strange))}; use CramerRao, which "
            "takes any differentiable defense"
        )
    orders = two_layer_orders(
        batch=len(batch),
        inputs=inputs,
        width=width,
        std=std,
        added=math.hypot(*(link.std for link in links if isinstance(link, AddGaussian))),
        clipped=_clipped(client, task, batch),
        dropped=1 - math.prod(1 - link.rate for link in links if isinstance(link, Dropout)),
        pruned=pruned_share(client, task, batch),
    )
    said = (COMPOSED,) * (len(links) > 1)
    said += (EXAMPLES_CLIPPED,) * any(isinstance(link, ClipEach) for link in links)
    return replace(orders, assumptions=orders.assumptions + said)


def pruned_share(client: Client, task: Task, batch: Batch) -> float | None:
    """p^ = ||J_pruned||_F^2 / ||J||_F^2, or None where nothing is pruned.

    References:
        Liu et al., 2024, Proposition 3.4 (liu2024systematic)
    """
    if not any(isinstance(link, _PRUNING) for link in client.chain.links):
        return None
    squares = [
        float(information(Channel(one, std=1.0), task, batch).block_traces(len(batch)).sum())
        for one in (client, _without(client, _PRUNING))
    ]
    return 1 - squares[0] / squares[1]


def _clipped(client: Client, task: Task, batch: Batch) -> float:
    """||G|| / C where G is clipped, else 1."""
    bare = _without(client, _PRUNING)
    norms = [
        float(one.expected(task, batch.inputs, batch.labels).norm())
        for one in (_without(bare, _CLIPPING), bare)
    ]
    return norms[0] / norms[1] if norms[1] > 0 else 1.0


def _without(client: Client, kinds: tuple[type, ...]) -> Client:
    kept: list[Protection] = [x for x in client.chain.links if not isinstance(x, kinds)]
    return replace(client, defense=chain(*kept))


def _sizes(task: Task) -> tuple[int, int]:
    """Dimension d of the input and width m of the hidden layer."""
    layers = [
        m for m in task.model.modules() if next(m.parameters(recurse=False), None) is not None
    ]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if len(layers) != 2 or len(linear) != 2:
        raise NotApplicable(
            f"Table 1 is about two fully connected layers, but {task.name} has {len(layers)} with "
            f"parameters, {len(linear)} of them fully connected; use CramerRao, which takes any "
            "network"
        )
    return linear[0].in_features, linear[0].out_features
