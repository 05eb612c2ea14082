"""The rank metric: which layers' equations determine their input, for networks of convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import torch
from torch import Tensor

from seepage.attacks.linear_systems._linear_system import LinearSystem, count_covered_inputs
from seepage.core import Rng, Task, cross_entropy
from seepage.core.errors import NotApplicable
from seepage.probing._activations import ReLU
from seepage.probing._layer_stack import Layer, Stack, read_stack

# Relative to the largest, singular values are at least 1e-3 or about 1e-15. Any threshold between
# 1e-7 and 1e-14 separates their squares, which are what is computed.
SQUARED_TOLERANCE = 1e-11
# The rank of layers with at most so many inputs is computed where counting may exceed it.
COMPUTED = 512
# Numbers in memory at once while a matrix is applied to parts of the identity.
HELD = 2**21


def _usual_rank(layer: Layer) -> int:
    """The rank of u for almost all weights and gradients.

    It is counted. Where padding or few windows leave the count an upper bound, it is computed at
    random weights and gradients, unless the layer is large.

    Example:
        >>> from dataclasses import replace
        >>> from seepage.probing._layer_stack import read_stack
        >>> from seepage.zoo import cnn
        >>> first = read_stack(cnn(variant="cnn2-v2")).layers[0]
        >>> sizes = {"input_shape": (3, 9, 9), "output_shape": (6, 4, 4)}
        >>> narrow = replace(first, **sizes, stride=(3, 3), padding=(3, 3))
        >>> _counted_rank(narrow), _usual_rank(narrow)
        (243, 225)
    """
    if _counts_exactly(layer) or _is_only_counted(layer):
        return _counted_rank(layer)
    key = Rng(0).fork("rank", layer.name)
    weight = key.fork("weight").normal(layer.weight.shape).double()
    delta = key.fork("delta").normal(layer.output_shape).double()
    return numerical_rank(LinearSystem(replace(layer, weight=weight), delta))


def _is_only_counted(layer: Layer) -> bool:
    """Whether the rank is an upper bound, since computing it would take too long."""
    return not _counts_exactly(layer) and layer.inputs > COMPUTED


def _counts_exactly(layer: Layer) -> bool:
    """Whether counting is known to give the rank for almost all weights and gradients."""
    windows = layer.output_shape[1:]
    if layer.channels >= math.prod(windows):
        return True
    axes = zip(windows, layer.kernel, layer.stride, strict=True)
    roomy = any(count > -(-kernel // stride) for count, kernel, stride in axes)
    return roomy and not any(layer.padding)


def _counted_rank(layer: Layer) -> int:
    """An upper bound of the rank of u by counting, which almost all layers reach.

    Let the columns of X hold what each of the N windows sees, one row for each of the K weights of
    a filter. With o filters A and gradients B = dL/dz the equations are A X and X B^T. Given the
    second, a (N - b) of the first are independent, a = min(o, K), b = min(o, N); given the first,
    (K - a) b of the second:

        rank(u) <= min(covered, rank(B part) + a (N - b), rank(A part) + (K - a) b)

    Weights whose offsets agree modulo the stride meet the same inputs: m such weights give b m
    equations for the n inputs they reach, of which min(b m, n) are independent. A window at the
    edge sees K_n < K inputs, of which min(o, K_n) equations are independent. Rows and columns of X
    that one part determines need no equations of the other. Unless the layer is tiny this is
    min(covered, |z| + |w| - o^2).

    Almost all weights and gradients reach this rank without padding, if along some axis there are
    more windows than the kernel has strides. With padding nearly all layers do.

    Example:
        >>> from seepage.probing._layer_stack import read_stack
        >>> from seepage.zoo import cnn
        >>> _counted_rank(read_stack(cnn(variant="cnn2-v2")).layers[0])  # 1350 + 288 - 36
        1602
    """
    channels, windows = layer.input_shape[0], math.prod(layer.output_shape[1:])
    maps = min(layer.channels, windows)
    meeting = [
        (math.prod(weights for weights, _ in axes), math.prod(reached for _, reached in axes))
        for axes in product(*_by_offset(layer))
    ]
    from_gradient = channels * sum(min(maps * m, n) for m, n in meeting)
    open_rows = channels * sum(m for m, n in meeting if maps * m < n)
    seen = [channels * math.prod(inside) for inside in product(*_by_window(layer))]
    from_output = sum(min(layer.channels, inside) for inside in seen)
    open_columns = sum(inside > layer.channels for inside in seen)
    more_weights = max(0, layer.weight[0].numel() - layer.channels)
    return min(
        count_covered_inputs(layer),
        from_gradient + min(layer.channels, open_rows) * (windows - maps),
        from_output + more_weights * min(layer.channels, open_columns),
    )


def _by_window(layer: Layer) -> Iterator[list[int]]:
    """Along each axis, for every window: how many of its weights meet an input, not padding."""
    geometry = (layer.output_shape[1:], layer.kernel, layer.stride, layer.padding)
    for size, windows, kernel, stride, padding in zip(
        layer.input_shape[1:], *geometry, strict=True
    ):
        starts = [stride * window - padding for window in range(windows)]
        yield [min(size, start + kernel) - max(0, start) for start in starts]


def _by_offset(layer: Layer) -> Iterator[list[tuple[int, int]]]:
    """Along each axis, for every offset modulo the stride: its weights, and the inputs reached."""
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
    pair = (system.apply, system.adjoint)
    first, second = pair if columns <= rows else pair[::-1]
    gram = torch.cat([second(first(part)) for part in parts])
    # The largest sum of a row bounds the largest eigenvalue.
    zero = SQUARED_TOLERANCE * gram.abs().sum(1).max()
    # Full rank, the common case, is tested ten times faster: the difference is positive definite.
    if int(torch.linalg.cholesky_ex(gram - zero * unit).info) == 0:
        return len(gram)
    return int((torch.linalg.eigvalsh((gram + gram.T) / 2) > zero).sum())


@dataclass(frozen=True)
class _LayerRank:
    """The linear system u of one convolution: one equation per output and per weight.

    Its rank may be `at_most` this, if it was counted and not computed.
    """

    name: str
    unknowns: int
    equations: int
    rank: int
    at_most: bool = field(default=False, compare=False)

    @property
    def deficiency(self) -> int:
        """Rank minus n: zero if the equations determine the input, otherwise negative."""
        return self.rank - self.unknowns


@dataclass(frozen=True)
class RankMetric:
    """The rank metric c(M) of a network with d convolutions.

        c(M) = sum_i (d - i + 1) / d (rank(u_i) - n_i) <= 0

    Zero means that every layer's equations determine its input, so that one example can be
    computed from its gradient. A lower value means that more must be guessed, above all in early
    layers.

    Args:
        layers: The convolutions in the order in which they run.
        forgetful: Names of the convolutions followed by a ReLU.

    References:
        Chen and Campbell, 2022, Definition 3.3 (chen2022analysing)
    """

    layers: tuple[_LayerRank, ...]
    forgetful: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """c(M)."""
        depth = len(self.layers)
        weighted = ((depth - i) * layer.deficiency for i, layer in enumerate(self.layers))
        return sum(weighted) / max(depth, 1)

    @property
    def at_most(self) -> tuple[str, ...]:
        """Layers whose rank is an upper bound; with such, c(M) is one too."""
        return tuple(layer.name for layer in self.layers if layer.at_most)

    @property
    def advice(self) -> str:
        """What the number means for the designer of the network, in one sentence."""
        if self.value == 0 and self.at_most:
            return (
                "by counting, every layer's input may be determined, but the rank of "
                f"{', '.join(self.at_most)} is an upper bound (padding, more than {COMPUTED} "
                "inputs): --numerical computes it"
            )
        if self.value == 0:
            return (
                "every layer's input is determined, so one example can be computed from its "
                "gradient: share no gradient of one example, or give early layers fewer filters "
                "and wider strides"
            )
        first = self.layers[0]
        if first.deficiency < 0:
            return (
                f"{-first.deficiency} of the {first.unknowns} degrees of freedom of one example "
                f"have no equation in {first.name}, whatever follows: they can only be guessed, "
                "which a good prior may do"
            )
        worst = min(self.layers, key=lambda layer: layer.deficiency)
        return (
            f"solving layer by layer must guess {-worst.deficiency} of the {worst.unknowns} inputs "
            f"of {worst.name}, but {first.name} determines its own: matching all layers at once "
            "may still recover the example"
        )


def rank_metric(task: Task, *, numerical: bool = False) -> RankMetric:
    """The rank metric of a network of convolutions that ends in fully connected layers.

    Args:
        task: The network; another kind raises NotApplicable.
        numerical: Compute ranks of the matrices at the network's weights and the gradient of a
            random input, instead of for almost all weights and gradients. A z that a ReLU set to
            zero then has no equation, while otherwise every z is taken as known. Without it, the
            ranks of padded layers with more than 512 inputs are upper bounds.

    Example:
        >>> from seepage.zoo import cnn
        >>> rank_metric(cnn(variant="cnn4-v1")).value
        -2772.0
    """
    stack = read_stack(task)
    convolutions = [layer for layer in stack.layers if layer.convolutional]
    if list(stack.layers[: len(convolutions)]) != convolutions:
        raise NotApplicable(
            f"expected the convolutions of {task.name} before its fully connected layers; the rank "
            "metric is not defined for another order"
        )
    systems = _systems(stack, task) if numerical else iter(())
    ranks = [numerical_rank(s) for s in systems] or [_usual_rank(c) for c in convolutions]
    return RankMetric(
        tuple(
            _LayerRank(
                layer.name,
                layer.inputs,
                layer.outputs + layer.weight.numel(),
                rank,
                at_most=not numerical and _is_only_counted(layer),
            )
            for layer, rank in zip(convolutions, ranks, strict=True)
        ),
        tuple(c.name for c in convolutions if isinstance(c.activation, ReLU)),
    )


def _systems(stack: Stack, task: Task) -> Iterator[LinearSystem]:
    """The system of every convolution, at the gradient of a random input of the first class."""
    reference = stack.layers[0].weight
    values = task.domain.normalise(task.domain.sample(1, rng=Rng(0)).to(reference))
    linear: list[Tensor] = []
    for layer in stack.layers:
        linear.append(layer.linear(values).requires_grad_())
        values = layer.activation(linear[-1])
    loss = cross_entropy(values, torch.zeros(1, dtype=torch.int64, device=values.device)).sum()
    deltas: Sequence[Tensor] = torch.autograd.grad(loss, linear)
    for layer, z, delta in zip(stack.layers, linear, deltas, strict=True):
        if layer.convolutional:
            known = layer.activation.known(layer.activation(z.detach()))
            yield LinearSystem(layer, delta[0], known[0])
