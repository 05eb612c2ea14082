"""Orders of the error for two-layer networks: Table 1 of Liu et al. (2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import nn

from seepage.bounds._information import Channel, information
from seepage.core import Batch, Protection, Task
from seepage.core._chain import chain
from seepage.core._client import Client
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.defenses._aggregation import SecureAggregation
from seepage.defenses._clip import AddGaussian, Clip, ClipEach, Mean
from seepage.defenses._compress import Dropout, Prune, TopK

ASSUMPTIONS = (
    "up to constants and logarithms: an order of magnitude, not a number to compare attacks with",
    "with high probability over the weights",
    "f(x) = sum_j a_j s(w_j x) with a_j ~ N(0, 1/m^2), w_j ~ N(0, I), and the square loss",
    "inputs of norm 1, labels +1 or -1, the gradient summed over the batch",
    "the activation has bounded first and second derivatives",
)
UPPER = (
    "the tensor attack of Wang et al. reaches it: independent inputs, B^4 up to order d, and m "
    "of order d or more"
)
LOWER = "no unbiased attack is closer at the worst inputs"


@dataclass(frozen=True)
class ErrorOrders:
    """Orders of the error sqrt(mean_i ||guess_i - x_i||^2) for inputs of norm 1.

    Args:
        upper: The error that the tensor attack reaches; None if unknown.
        lower: The error that no attack gets below; zero without noise.
        assumptions: Assumptions of both.
    """

    upper: float | None
    lower: float
    assumptions: tuple[str, ...]


def two_layer_orders(
    *,
    batch: int,
    inputs: int,
    width: int,
    std: float = 0.0,
    added: float = 0.0,
    clipped: float = 1.0,
    dropped: float = 0.0,
    pruned: float | None = None,
) -> ErrorOrders:
    """Compute Table 1, with one option per column.

        upper = (B + sigma_0 c) sqrt(d / ((1 - p) m)),            c = max(1, ||G|| / C)
        lower = sigma c sqrt(d / ((1 - p) (1 - p^) m))

    Without a defense, or with local aggregation, every option keeps its default. With secure
    aggregation, `batch` counts the examples of all clients. Pruning has no known upper bound.

    Args:
        batch: Number B of examples.
        inputs: Their dimension d.
        width: Number m of hidden units.
        std: Noise sigma with which the update is observed.
        added: Noise sigma_0 that the defense adds; it is part of sigma.
        clipped: ||G|| / C; below 1 nothing is clipped.
        dropped: Probability p that an entry is dropped.
        pruned: Share p^ of ||J||_F^2 in the pruned entries.

    Example:
        >>> two_layer_orders(batch=4, inputs=100, width=10_000, std=0.5).lower
        0.05
        >>> two_layer_orders(batch=4, inputs=100, width=10_000, added=2.0, clipped=2.0).upper
        0.8
        >>> two_layer_orders(batch=4, inputs=100, width=10_000, pruned=0.5).upper is None
        True

    References:
        Liu et al., 2024, Table 1 (liu2024systematic); Wang et al., 2023 (wang2023reconstructing)
    """
    if min(batch, inputs, width) < 1:
        raise InvalidValue(
            f"expected batch, inputs and width >= 1, got {batch!r}, {inputs!r} and {width!r}"
        )
    if not (std >= 0 and added >= 0 and clipped >= 0):
        raise InvalidValue(
            f"expected std, added and clipped >= 0, got {std!r}, {added!r} and {clipped!r}"
        )
    if not (0 <= dropped < 1 and 0 <= (pruned or 0) < 1):
        raise InvalidValue(f"expected dropped and pruned in [0, 1), got {dropped!r} and {pruned!r}")
    stretched = max(1.0, clipped)
    scale = math.sqrt(inputs / ((1 - dropped) * width))
    upper = None if pruned is not None else (batch + added * stretched) * scale
    lower = max(std, added) * stretched * scale / math.sqrt(1 - (pruned or 0))
    return ErrorOrders(upper, lower, (*ASSUMPTIONS, UPPER, LOWER))


COMPOSED = "several defenses together: their factors are multiplied, which the paper does not do"
EXAMPLES_CLIPPED = "each example is clipped; the paper clips their sum"

_CLIPPING = (Clip, ClipEach)
_PRUNING = (Prune, TopK)
_COLUMNS = (AddGaussian, Dropout, SecureAggregation, *_CLIPPING, *_PRUNING)


def table_1(client: Client, task: Task, batch: Batch, *, std: float = 0.0) -> ErrorOrders:
    """Compute Table 1 for a client's own defenses; how much they clip and prune is measured.

    Args:
        client: The client that shares; a link without a column in the table is an error.
        task: A network of two fully connected layers.
        batch: The private inputs.
        std: Noise with which the update is observed if the defense adds none.

    Example:
        >>> import seepage as sp
        >>> photo, task = sp.data.bundled("photos", size=1), sp.zoo.mlp(hidden=(32,))
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(0.1))
        >>> round(table_1(client, task, photo).lower, 2)  # 0.1 sqrt(3072 / 32)
        0.98

    References:
        Liu et al., 2024, Table 1 (liu2024systematic)
    """
    inputs, width = _find_sizes(task)
    links = [link for link in client.chain.links if not isinstance(link, Mean)]
    unknown = [link for link in links if not isinstance(link, _COLUMNS)]
    if unknown:
        raise NotApplicable(
            f"Table 1 has no column for {', '.join(map(repr, unknown))}; use CramerRao, which "
            "takes any differentiable defense"
        )
    orders = two_layer_orders(
        batch=len(batch),
        inputs=inputs,
        width=width,
        std=std,
        added=math.hypot(*(link.std for link in links if isinstance(link, AddGaussian))),
        clipped=_measure_clipping(client, task, batch),
        dropped=1 - math.prod(1 - link.rate for link in links if isinstance(link, Dropout)),
        pruned=pruned_share(client, task, batch),
    )
    said = (COMPOSED,) * (len(links) > 1)
    said += (EXAMPLES_CLIPPED,) * any(isinstance(link, ClipEach) for link in links)
    return replace(orders, assumptions=orders.assumptions + said)


def pruned_share(client: Client, task: Task, batch: Batch) -> float | None:
    """Measure p^ = ||J_pruned||_F^2 / ||J||_F^2, or None if nothing is pruned.

    References:
        Liu et al., 2024, Proposition 3.4 (liu2024systematic)
    """
    if not any(isinstance(link, _PRUNING) for link in client.chain.links):
        return None
    squares = [
        float(information(Channel(one, std=1.0), task, batch).block_traces(len(batch)).sum())
        for one in (client, _remove_links(client, _PRUNING))
    ]
    return 1 - squares[0] / squares[1]


def _measure_clipping(client: Client, task: Task, batch: Batch) -> float:
    """Measure ||G|| / C if G is clipped, else 1."""
    bare = _remove_links(client, _PRUNING)
    norms = [
        float(one.expected(task, batch.inputs, batch.labels).norm())
        for one in (_remove_links(bare, _CLIPPING), bare)
    ]
    return norms[0] / norms[1] if norms[1] > 0 else 1.0


def _remove_links(client: Client, kinds: tuple[type, ...]) -> Client:
    kept: list[Protection] = [x for x in client.chain.links if not isinstance(x, kinds)]
    return replace(client, defense=chain(*kept))


def _find_sizes(task: Task) -> tuple[int, int]:
    """Find the dimension d of the input and the width m of the hidden layer."""
    layers = [
        m for m in task.model.modules() if next(m.parameters(recurse=False), None) is not None
    ]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if len(layers) != 2 or len(linear) != 2:
        raise NotApplicable(
            f"Table 1 is about two fully connected layers, but {task.name} has {len(layers)} "
            f"layers with parameters, {len(linear)} of them fully connected; use CramerRao, which "
            "takes any network"
        )
    return linear[0].in_features, linear[0].out_features
