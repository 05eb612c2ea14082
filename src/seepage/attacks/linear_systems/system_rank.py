"""The rank of a layer's linear system, counted from its geometry or computed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import torch

from seepage.attacks.linear_systems.layer import Layer
from seepage.attacks.linear_systems.operator import LinearSystem, covered

# Singular values that count are a thousandth of the largest or more, the others 1e-15: of their
# squares, which are computed, anything between 1e-7 and 1e-14 tells them apart.
SQUARED_TOLERANCE = 1e-11
# Numbers held at once while rows or columns pass by.
HELD = 2**21


def counted_rank(layer: Layer) -> int:
    """The rank of u for almost all weights and gradients, by counting.

    Put what each of the N windows sees into the columns of a matrix X, one row for each of the K
    weights of a filter. With o filters A and gradients B = dL/dz the equations are A X and X B^T,
    and the second leave a (N - b) of the first independent, a = min(o, K), b = min(o, N):

        rank(u) = min(covered, rank(B part) + a (N - b))

    Weights whose offsets agree modulo the stride meet the same inputs: m such weights give b m
    equations for the n inputs they reach, of which min(b m, n) are independent. In a layer that is
    not tiny this is min(covered, |z| + |w| - o^2).

    Almost all weights and gradients reach it without padding, if along some axis there are more
    windows than the kernel has strides; with padding, unless maps are few pixels wide. None that
    are of full rank themselves exceed it.

    Example:
        >>> from seepage.attacks.linear_systems.stack import read_stack
        >>> from seepage.zoo import cnn
        >>> counted_rank(read_stack(cnn(variant="cnn2-v2")).layers[0])  # 1350 + 288 - 36
        1602
    """
    channels, windows = layer.input_shape[0], math.prod(layer.output_shape[1:])
    filters = min(layer.channels, layer.weight[0].numel())
    maps = min(layer.channels, windows)
    meeting = [
        (math.prod(weights for weights, _ in axes), math.prod(reached for _, reached in axes))
        for axes in product(*_by_offset(layer))
    ]
    from_gradient = channels * sum(min(maps * m, n) for m, n in meeting)
    return min(covered(layer), from_gradient + filters * (windows - maps))


def _by_offset(layer: Layer) -> Iterator[list[tuple[int, int]]]:
    """Along each axis, for every offset modulo the stride: its weights, and inputs they reach."""
    geometry = (layer.output_shape[1:], layer.kernel, layer.stride, layer.padding)
    for size, windows, kernel, stride, padding in zip(
        layer.input_shape[1:], *geometry, strict=True
    ):
        groups: dict[int, list[set[int]]] = {}
        for weight in range(kernel):
            places = {stride * window + weight - padding for window in range(windows)}
            groups.setdefault((weight - padding) % stride, []).append(places & set(range(size)))
        yield [(sum(map(bool, reached)), len(set().union(*reached))) for reached in groups.values()]


def numerical_rank(system: LinearSystem) -> int:
    """The rank of u: eigenvalues above zero of u^T u or u u^T, whichever is smaller."""
    rows, columns = system.shape
    unit = torch.eye(min(rows, columns), dtype=system.delta.dtype, device=system.delta.device)
    parts = torch.split(unit, max(1, HELD // (rows + columns)))
    if columns <= rows:
        gram = torch.cat([system.adjoint(system.apply(part)) for part in parts])
    else:
        gram = torch.cat([system.apply(system.adjoint(part)) for part in parts])
    # The largest sum of a row bounds the largest eigenvalue.
    zero = SQUARED_TOLERANCE * gram.abs().sum(1).max()
    # Full rank, the common case, is told ten times faster: what is left is positive definite.
    if int(torch.linalg.cholesky_ex(gram - zero * unit).info) == 0:
        return len(gram)
    return int((torch.linalg.eigvalsh((gram + gram.T) / 2) > zero).sum())
