"""How far the candidate's update is from the observed one.

Every term has a finite value and gradient even where a tensor is exactly zero, as behind a dead
ReLU.

An update of many rows is gigabytes, so cosines are differentiated by hand. Flattening, normalising
and subtracting by autograd would cost more than all convolutions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm as norm

from seepage.core import Observation, Update
from seepage.core.errors import InvalidValue, require_at_least, require_positive
from seepage.search._objective import Candidate

_SMALL = 2**16
_SMALL_IN_ALL = 2**22
# Smallest norm of a tensor, in shares of the largest, that single precision still resolves.
_ROUNDING = 1e-5
# The context of an autograd function, to which anything may be attached.
_Context = Any


def _one_minus_cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """One minus the cosine of two lists of tensors of the same shapes, each list as one vector.

        1/2 || a/||a|| - b/||b|| ||^2

    Differentiable once, by `ours`; safe under `vmap`. Where only one vector is zero the distance is
    1 and the gradient 0, so that a candidate behind dead units does not win.
    """
    # Small tensors are joined, which saves kernels; large ones are not worth a copy.
    cheap = theirs[0].is_cuda and sum(t.numel() for t in theirs) <= _SMALL_IN_ALL
    small = [cheap or t.numel() <= _SMALL for t in theirs]
    ours, theirs = _join_small(ours, small), _join_small(theirs, small)
    return _compare(ours, theirs, joint=True).squeeze(0)


def _compare(ours: Sequence[Tensor], theirs: Sequence[Tensor], *, joint: bool) -> Tensor:
    """The same for each of k pairs of tensors `(k,)`; if `joint`, for all as one vector `(1,)`."""
    factors = [_find_factors(tensor) or (tensor, None) for tensor in ours]
    given = (*(factor for pair in factors for factor in pair), *theirs)
    distances: Tensor = _Distances.apply(joint, *given)[0]  # type: ignore[no-untyped-call]
    return distances


# Derivatives of operations that keep the entries of a matrix; the first turns it.
_KEEP_ENTRIES = ("TBackward0", "SqueezeBackward1", "UnsqueezeBackward0")


def _find_factors(matrix: Tensor) -> tuple[Tensor, Tensor] | None:
    """The column and the row of which a large matrix is the product, if it was made so.

    The weight gradient of a linear layer is so for one example. Its norm and its products with
    vectors follow from the two, so that it need not be formed and read again and again.
    """
    node, turned = matrix.grad_fn, False
    while node is not None and node.name() in _KEEP_ENTRIES:
        turned ^= node.name() == _KEEP_ENTRIES[0]
        node = node.next_functions[0][0]
    if node is None or node.name() != "MmBackward0" or matrix.numel() <= _SMALL:
        return None
    column, row = node._saved_self, node._saved_mat2  # type: ignore[attr-defined]
    if column is None or row is None or column.shape[1] != 1:
        return None
    column, row = (row.T, column.T) if turned else (column, row)
    return (column, row) if (len(column), row.shape[1]) == matrix.shape else None


class _Distances(torch.autograd.Function):
    """Of tensors or columns, each with its row or None, and the tensors to compare them with."""

    generate_vmap_rule = True

    @staticmethod
    def forward(joint: bool, *tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        triples = _group(tensors)
        own = torch.stack([norm(o) if r is None else norm(o) * norm(r) for o, r, _ in triples])
        other = _norms([t for *_, t in triples])
        if joint:
            own, other = norm(own, keepdim=True), norm(other, keepdim=True)
        a, b = (torch.where(length > 0, 1 / length, 0.0) for length in (own, other))
        gaps = [
            torch.addcmul(-t * y, *((o, x) if row is None else (o * x, row)))
            for (o, row, t), x, y in zip(
                triples, _unbind(a, triples), _unbind(b, triples), strict=True
            )
        ]
        squares = _norms(gaps).square()
        squares = squares.sum(0, keepdim=True) if joint else squares
        return torch.where((a == 0) != (b == 0), 1.0, squares / 2), a, b

    @staticmethod
    def setup_context(
        ctx: _Context, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]
    ) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: _Context, slopes: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, distances, a, b = ctx.saved_tensors
        triples, found = _group(tensors), []
        along, across = slopes * a * a * (1 - distances), -slopes * a * b
        parts = zip(triples, _unbind(along, triples), _unbind(across, triples), strict=True)
        for (o, row, t), x, y in parts:
            if row is None:
                found += [torch.addcmul(o * x, t, y), None]
                continue
            found.append(torch.addcmul(o * (x * norm(row).square()), torch.mm(t, row.T), y))
            found.append(torch.addcmul(row * (x * norm(o).square()), torch.mm(o.T, t), y))
        return (None, *found, *(None,) * len(triples))


def _group(tensors: Sequence[Any]) -> list[tuple[Tensor, Tensor | None, Tensor]]:
    """Ours, its row or None, and theirs."""
    count = len(tensors) // 3
    ours, rows = tensors[: 2 * count : 2], tensors[1 : 2 * count : 2]
    return list(zip(ours, rows, tensors[2 * count :], strict=True))


def _unbind(values: Tensor, of: Sequence[object]) -> tuple[Tensor, ...]:
    """A number for each of these, which may share one."""
    return values.expand(len(of)).unbind()


def _norms(vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([norm(t) for t in vectors])


def _join_small(tensors: Sequence[Tensor], small: Sequence[bool]) -> list[Tensor]:
    """Join all small tensors to one."""
    pairs = list(zip(tensors, small, strict=True))
    joined = [t.flatten() for t, is_small in pairs if is_small]
    large = [t for t, is_small in pairs if not is_small]
    return [torch.cat(joined), *large] if joined else large


@dataclass(frozen=True, kw_only=True)
class L2:
    """The squared Euclidean distance between simulated and observed update.

        || g(x) - g* ||^2,  summed over all tensors

    Unlike the cosine it sees the magnitude, so client and simulation must reduce the loss alike
    (mean or sum).

    References:
        Zhu et al., 2019 (zhu2019deep); Geiping et al., 2020, Eq. 3 (geiping2020inverting)
    """

    weight: float = 1.0

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the squared differences."""
        return (candidate.update.flat() - observation.update.flat()).square().sum()


@dataclass(frozen=True, kw_only=True)
class GaussianLikelihood:
    """Minus the log-likelihood under Gaussian noise of known size, up to a constant.

        || g(x) - g* ||^2 / (2 sigma^2)

    In nats, so that adding a prior in nats gives the log-posterior.

    Args:
        std: sigma, the deviation of the noise on every entry.
        weight: Factor in the objective.

    References:
        Balunovic et al., 2022, Sec. 4 (balunovic2022bayesian)
    """

    std: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        require_positive(std=self.std)

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the squared differences in units of the deviation."""
        away = (candidate.update.flat() - observation.update.flat()) / self.std
        return away.square().sum() / 2


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """One minus the cosine between simulated and observed update, over all tensors jointly.

        1 - <g(x), g*> / (||g(x)|| ||g*||)  =  1/2 || g(x)/||g(x)|| - g*/||g*|| ||^2

    Computed by the right-hand side, which stays accurate where the left side cancels. Invariant to
    rescaling of the update, hence blind to clipping.

    Args:
        weight: Factor in the objective.
        top: Compare only the `top` tensors with the largest observed norm (the first of equal
            ones); None compares all.

    References:
        Geiping et al., 2020, Eq. 4 and, with `top`, Eq. 7 (geiping2020inverting)
    """

    weight: float = 1.0
    top: int | None = None

    def __post_init__(self) -> None:
        require_at_least(1, top=self.top)

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Compare directions."""
        ours, theirs = candidate.update, observation.update
        if self.top is not None and self.top < len(theirs.tensors):
            chosen = _largest(theirs, self.top)
            ours, theirs = _scale_tensors(ours, chosen), _scale_tensors(theirs, chosen)
        return _one_minus_cosine(list(ours), list(theirs))


@dataclass(frozen=True, kw_only=True)
class LayerwiseCosine:
    """A weighted mean over tensors of one minus the cosine of each.

        sum_i w_i (1 - cos(g_i(x), g*_i)) / sum_i w_i

    Args:
        weight: Factor in the objective.
        weighting: "entries": w_i is the number of entries of tensor i. A number p: w_i is
            ||g*_i||^p, so that 0 weighs all tensors alike. The joint cosine is about p = 2. Larger
            p favours the layers next to the output, whose gradients are the smoothest functions of
            the input, and the search gets stuck less.
        normalised: Divide by the sum of the weights, so that `weight` means the same for all
            weightings and every network. The paper leaves the sum as it is: with "entries" that
            makes the cosines of ResNet-18 outweigh every other term by ten million times.

    Deviations:
        The paper has "entries" alone, and no division (`normalised=False`).

    References:
        Liu et al., 2024, appendix F, gradient reweighting (liu2024systematic)
    """

    weight: float = 1.0
    weighting: Literal["entries"] | float = "entries"
    normalised: bool = True

    def __post_init__(self) -> None:
        power = 0.0 if self.weighting == "entries" else self.weighting
        if isinstance(power, str) or not 0 <= power < float("inf"):
            raise InvalidValue(
                f"expected weighting 'entries' or a power >= 0, got {self.weighting!r}"
            )

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Compare the direction of each tensor."""
        theirs = observation.update
        ours = [candidate.update.tensors[name] for name in theirs.tensors]
        return (self._weights(theirs) * _compare(ours, list(theirs), joint=False)).sum()

    def _weights(self, observed: Update) -> Tensor:
        first = next(iter(observed))
        if isinstance(self.weighting, str):
            counts = [t.numel() for t in observed]
            total = sum(counts) if self.normalised else 1
            # Filled one by one, since a CUDA graph cannot hold a copy from the host.
            return torch.stack([first.new_full((), count / total) for count in counts])
        norms = _norms(list(observed))
        if not self.normalised:
            return norms.pow(self.weighting)
        # Divide by the largest, since powers of tiny norms underflow in single precision.
        tiny = torch.finfo(norms.dtype).tiny
        weights = (norms / norms.max().clamp_min(tiny)).pow(self.weighting)
        return weights / weights.sum().clamp_min(tiny)


@dataclass(frozen=True, kw_only=True)
class Whitened:
    """The squared distance of each tensor, in which its strong and weak directions weigh alike.

        sum_i w_i || W_i (g_i(x) - g*_i) ||^2 / || W_i g*_i ||^2,   W = U max(S, floor S_1)^-1 U^T

    with U S V^T = g*_i as a matrix. A transformer sends almost the same gradient back to each
    patch, so that every matrix of its update is nearly of rank one: the mean patch alone brings the
    cosine near zero. The weak directions tell patches apart. L-BFGS, which learns the curvature,
    follows them.

    The gradient of trained positions has a row for each patch, which depends mostly on that patch.
    Rows are scaled to one length, since that of a class token is far longer. Where there are
    positions, they and the convolutions share a weight of 1, and all other tensors one of `later`:
    these mix the patches, and lead a search astray before it is near.

    Args:
        weight: Factor in the objective.
        floor: Weakest singular value, in shares of the strongest, that is still made equal.
        later: Weight of all tensors but positions and convolutions, where there are positions.
        held: The transformations and scales of a case; `prepare` computes them.
    """

    weight: float = 1.0
    floor: float = 0.2
    later: float = 0.01
    held: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def prepare(self, observation: Observation) -> Whitened:
        """Decompose the observed update."""
        update = observation.update.tensors
        largest = max(float(t.norm()) for t in update.values())
        # A gradient that is zero but for rounding, as of the bias of keys, says nothing.
        told = {name: t for name, t in update.items() if float(t.norm()) > _ROUNDING * largest}
        held: dict[str, Tensor] = {}
        for name, tensor in told.items():
            if _has_positions(tensor):
                lengths = tensor[0].norm(dim=1)
                weak = lengths <= _ROUNDING * lengths.max()
                held[f"scale/{name}"] = torch.where(weak, 0, 1 / lengths)
            if tensor.ndim > 1:
                matrix = _as_matrix(tensor, held.get(f"scale/{name}"))
                u, s, _ = torch.linalg.svd(matrix.double(), full_matrices=False)
                gain = s[0] / s.clamp_min(self.floor * s[0]) - 1
                held[f"gain/{name}"] = ((u * gain) @ u.T).to(tensor)
        shares = self._share_weight(told)
        sizes = {f"size/{n}": _measure(t, n, held) / shares[n] for n, t in told.items()}
        return replace(self, held=held | sizes)

    def _share_weight(self, tensors: Mapping[str, Tensor]) -> dict[str, float]:
        """The weight of each tensor."""
        early = {name for name, tensor in tensors.items() if tensor.ndim > 2}
        if not any(_has_positions(tensor) for tensor in tensors.values()):
            return dict.fromkeys(tensors, 1 / len(tensors))
        rest = max(1, len(tensors) - len(early))
        return {n: 1 / len(early) if n in early else self.later / rest for n in tensors}

    def with_held(self, held: Mapping[str, Tensor]) -> Whitened:
        """The same for another case."""
        return replace(self, held=held)

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Compare each tensor."""
        ours, theirs = candidate.update.tensors, observation.update.tensors
        gaps = [
            _measure(ours[name] - theirs[name], name, self.held) / size
            for name, size in ((key[5:], t) for key, t in self.held.items() if key[:5] == "size/")
        ]
        return torch.stack(gaps).sum()


def _has_positions(tensor: Tensor) -> bool:
    """Whether a tensor is `(1, positions, width)`."""
    return tensor.ndim == 3 and len(tensor) == 1 and tensor.shape[1] > 1


def _as_matrix(tensor: Tensor, scale: Tensor | None) -> Tensor:
    """One row for each output; positions become scaled columns."""
    return tensor.flatten(1) if scale is None else tensor[0].T * scale


def _measure(tensor: Tensor, name: str, held: Mapping[str, Tensor]) -> Tensor:
    """The squared length of a whitened tensor."""
    gain = held.get(f"gain/{name}")
    if gain is None:
        return tensor.square().sum()
    matrix = _as_matrix(tensor, held.get(f"scale/{name}"))
    return (matrix + gain @ matrix).square().sum()


def _largest(observed: Update, count: int) -> Tensor:
    """For every tensor 1 if its norm is among the `count` largest and 0 if not.

    This is a mask, since under vmap each case has its own largest tensors.
    """
    norms = torch.stack([t.square().sum() for t in observed])
    order = norms.argsort(descending=True, stable=True)
    return torch.zeros_like(norms).scatter(0, order[:count], 1.0)


def _scale_tensors(update: Update, factors: Tensor) -> Update:
    named = zip(update.tensors.items(), factors.unbind(), strict=True)
    return replace(update, tensors={name: t * factor for (name, t), factor in named})
