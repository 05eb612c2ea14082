"""Scaling and shifting the channels of each row, with as few passes over memory as it takes.

This is batch normalisation by known statistics. Autograd would differentiate it twice through a
dozen temporaries of the size of the activations, which are most of what a step moves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def row_affine(inputs: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Inputs * scale + shift, differentiable twice; the second time by the inputs only.

    Args:
        inputs: `(R, B, C, ...)`.
        scale: In a form that broadcasts, `(R, 1, C, 1, ...)`; not a function of the inputs.
        shift: The same.
    """
    result: Tensor = _Forward.apply(inputs, scale, shift)  # type: ignore[no-untyped-call]
    return result


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        inputs: Tensor,
        scale: Tensor,
        shift: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(inputs, scale)
        return torch.addcmul(shift, inputs, scale)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
    ) -> tuple[Tensor | None, ...]:
        inputs, scale = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return slopes * scale, None, None
        result: tuple[Tensor, ...] = _Backward.apply(slopes, inputs, scale)  # type: ignore[no-untyped-call]
        return result


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
        inputs: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(slopes, inputs, scale)
        ctx.set_materialize_grads(False)
        others = [axis for axis in range(slopes.ndim) if axis not in (0, 2)]
        to_scale = (slopes * inputs).sum(others, keepdim=True)
        return slopes * scale, to_scale, slopes.sum(others, keepdim=True)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        on_inputs: Tensor | None,
        on_scale: Tensor | None,
        on_shift: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        slopes, inputs, scale = ctx.saved_tensors
        to_slopes = on_shift
        if on_inputs is not None:
            to_slopes = (
                on_inputs * scale
                if to_slopes is None
                else torch.addcmul(to_slopes, on_inputs, scale)
            )
        if on_scale is None:
            return _full(to_slopes, slopes), None, None
        if to_slopes is None:
            return on_scale * inputs, on_scale * slopes, None
        return torch.addcmul(to_slopes, on_scale, inputs), on_scale * slopes, None


def _full(tensor: Tensor | None, like: Tensor) -> Tensor | None:
    return None if tensor is None else tensor.expand_as(like)
