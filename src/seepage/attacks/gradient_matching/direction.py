"""The distance between the directions of two updates, with as few passes over memory as it takes.

An update of many rows is gigabytes, and a step touches it little besides here: flattening,
normalising and subtracting by autograd would cost more than all convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SMALL = 2**16
_SMALL_IN_ALL = 2**22


def one_minus_cosine(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """One minus the cosine of two lists of tensors, each read as one vector.

        1/2 || a/||a|| - b/||b|| ||^2

    Differentiable once, by `ours`; safe under `vmap`. Where just one vector is zero the distance
    is 1, lest a candidate behind dead units win over every honest one; the gradient there is 0.

    Args:
        ours: Tensors of any shapes.
        theirs: As many, of the same shapes.
    """
    # One kernel for all tensors of a small network; of a large one, for all but the large tensors,
    # which are not worth a copy.
    limit = _SMALL if sum(t.numel() for t in theirs) > _SMALL_IN_ALL else _SMALL_IN_ALL
    small = [t.numel() <= limit for t in theirs]
    ours, theirs = _gathered(ours, small), _gathered(theirs, small)
    distance: Tensor = _Distance.apply(*ours, *theirs)[0]  # type: ignore[no-untyped-call]
    return distance


def one_minus_cosines(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> Tensor:
    """One minus the cosine of each tensor with its counterpart, `(k,)`.

    The same as `one_minus_cosine` of one pair after the other, in fewer operations: what is a
    number for each tensor is computed for all of them at once.

    Args:
        ours: k tensors of any shapes.
        theirs: As many, of the same shapes.
    """
    distances: Tensor = _Distances.apply(*ours, *theirs)[0]  # type: ignore[no-untyped-call]
    return distances


class _OfDirections(torch.autograd.Function):
    """Keeps what was compared, the distances and the inverse norms for the way back."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401
        inputs: tuple[Tensor, ...],
        output: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output)


class _Distance(_OfDirections):
    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        half = len(tensors) // 2
        ours, theirs = tensors[:half], tensors[half:]
        a, b = (_inverse(_norm(vector)) for vector in (ours, theirs))
        gaps = [torch.addcmul(-t * b, o, a) for o, t in zip(ours, theirs, strict=True)]
        lonely = ((a == 0) ^ (b == 0)).to(a.dtype)
        return (_norm(gaps).square() + lonely) / 2, a, b

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slope: Tensor,
        *_: Tensor,
    ) -> tuple[Tensor | None, ...]:
        *tensors, distance, a, b = ctx.saved_tensors
        half = len(tensors) // 2
        along = slope * a * a * (1 - distance)
        across = -slope * a * b
        gradients = [
            torch.addcmul(o * along, t, across)
            for o, t in zip(tensors[:half], tensors[half:], strict=True)
        ]
        return (*gradients, *(None,) * half)


class _Distances(_OfDirections):
    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        half = len(tensors) // 2
        ours, theirs = tensors[:half], tensors[half:]
        a, b = (_inverse(_norms(vectors)) for vectors in (ours, theirs))
        gaps = _combined(ours, a, theirs, -b)
        lonely = ((a == 0) ^ (b == 0)).to(a.dtype)
        return (_norms(gaps).square() + lonely) / 2, a, b

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
        *_: Tensor,
    ) -> tuple[Tensor | None, ...]:
        *tensors, distances, a, b = ctx.saved_tensors
        half = len(tensors) // 2
        along, across = slopes * a * a * (1 - distances), -slopes * a * b
        gradients = _combined(tensors[:half], along, tensors[half:], across)
        return (*gradients, *(None,) * half)


def _combined(
    ours: Sequence[Tensor], by_ours: Tensor, theirs: Sequence[Tensor], by_theirs: Tensor
) -> list[Tensor]:
    """Of each pair the sum, with a factor for either."""
    parts = zip(ours, by_ours.unbind(), theirs, by_theirs.unbind(), strict=True)
    return [torch.addcmul(o * a, t, b) for o, a, t, b in parts]


def _norms(vectors: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(t) for t in vectors])


def _gathered(tensors: Sequence[Tensor], small: Sequence[bool]) -> list[Tensor]:
    """The same entries with all small tensors joined to one."""
    pairs = list(zip(tensors, small, strict=True))
    joined = [t.flatten() for t, is_small in pairs if is_small]
    large = [t for t, is_small in pairs if not is_small]
    return [torch.cat(joined), *large] if joined else large


def _inverse(norm: Tensor) -> Tensor:
    return torch.where(norm > 0, 1 / norm, 0.0)


def _norm(vector: Sequence[Tensor]) -> Tensor:
    """The norm of a list of tensors, reading each once."""
    each = torch.stack([torch.linalg.vector_norm(t) for t in vector])
    return each.square().sum().sqrt()
