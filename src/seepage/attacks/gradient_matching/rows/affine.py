"""Batch normalisation by known statistics, with as few passes over memory as it takes.

It scales and shifts the channels of each row. Autograd would differentiate it twice through a
dozen temporaries of the size of the activations, which are most of what a step moves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.rows.channels import per_channel


def row_normalised(
    inputs: Tensor, weight: Tensor, bias: Tensor, inverse: Tensor, offset: Tensor
) -> Tensor:
    """(inputs * inverse + offset) * weight + bias, differentiable twice.

    The second differentiation may be by the inputs only, which is what a search needs.

    Args:
        inputs: `(R, B, C, ...)`.
        weight: Of each row, `(R, C)`.
        bias: The same.
        inverse: One over the known deviation, `(C,)`.
        offset: Minus the known mean, times `inverse`.
    """
    result: Tensor = _Forward.apply(inputs, weight, bias, inverse, offset)  # type: ignore[no-untyped-call]
    return result


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        inverse: Tensor,
        offset: Tensor,
    ) -> Tensor:
        scale = per_channel(weight * inverse, inputs)
        ctx.save_for_backward(inputs, scale, inverse, offset)
        shift = per_channel(torch.addcmul(bias, weight, offset), inputs)
        return torch.addcmul(shift, inputs, scale)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
    ) -> tuple[Tensor | None, ...]:
        inputs, scale, inverse, offset = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return slopes * scale, None, None, None, None
        result: tuple[Tensor, ...] = _Backward.apply(slopes, inputs, scale, inverse, offset)  # type: ignore[no-untyped-call]
        return *result, None, None


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
        inputs: Tensor,
        scale: Tensor,
        inverse: Tensor,
        offset: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(slopes, inputs, scale, inverse, offset)
        ctx.set_materialize_grads(False)
        others = [axis for axis in range(slopes.ndim) if axis not in (0, 2)]
        to_bias = slopes.sum(others)
        along = (slopes * inputs).sum(others)
        return slopes * scale, torch.addcmul(along * inverse, to_bias, offset), to_bias

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        on_inputs: Tensor | None,
        on_weight: Tensor | None,
        on_bias: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        slopes, inputs, scale, inverse, offset = ctx.saved_tensors
        to_slopes = to_inputs = None
        if on_weight is not None:
            tilt = per_channel(on_weight * inverse, slopes)
            to_inputs = tilt * slopes
            shift = on_weight * offset
            on_bias = shift if on_bias is None else on_bias + shift
            to_slopes = torch.addcmul(per_channel(on_bias, slopes), tilt, inputs)
        elif on_bias is not None:
            to_slopes = per_channel(on_bias, slopes).expand_as(slopes)
        if on_inputs is not None:
            to_slopes = (
                on_inputs * scale
                if to_slopes is None
                else torch.addcmul(to_slopes, on_inputs, scale)
            )
        return to_slopes, to_inputs, None, None, None
