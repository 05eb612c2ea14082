"""Batch normalisation by each row's own statistics, with as few passes over memory as it takes.

The scale depends on the inputs, so autograd would differentiate it twice through dozens of
temporaries of the size of the activations. By hand, with means over a channel of a row and

    z = (x - mean(x)) / d,   d = sqrt(var(x) + eps),   P(v) = v - mean(v) - z mean(v z),

the derivative of z is P / d, which is symmetric. Everything but a few means is then a sum of what
is there already, with one factor for each channel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.rows.channels import per_channel


def row_standardised(inputs: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """(inputs - mean) / sqrt(var + eps) * weight + bias, differentiable twice.

    The second differentiation may be by the inputs only, which is what a search needs.

    Args:
        inputs: `(R, B, C, ...)`; mean and biased variance are of each row and channel.
        weight: Of each row, `(R, C)`.
        bias: The same.
        eps: Added to the variance.
    """
    result: Tensor = _Forward.apply(inputs, weight, bias, eps)  # type: ignore[no-untyped-call]
    return result


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> Tensor:
        variance, mean = torch.var_mean(inputs, _others(inputs), correction=0, keepdim=True)
        inverse = torch.rsqrt(variance + eps)
        standard = (inputs - mean) * inverse
        scale = per_channel(weight, inputs)
        ctx.save_for_backward(inputs, standard, inverse, scale)
        return torch.addcmul(per_channel(bias, inputs), standard, scale)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
    ) -> tuple[Tensor | None, ...]:
        inputs, standard, inverse, scale = ctx.saved_tensors
        if not torch.is_grad_enabled():
            # The second differentiation: nobody asks for the gradients of scale and shift again.
            steep, along = scale * inverse, _mean(slopes * standard)
            return _slanted(slopes, steep, standard, -steep * along, _mean(slopes) * steep), *_THREE
        result: tuple[Tensor, ...] = _Backward.apply(slopes, inputs, standard, inverse, scale)  # type: ignore[no-untyped-call]
        return *result, None


class _Backward(torch.autograd.Function):
    """scale / d P(slopes), and the sums of slopes z and of slopes.

    The inputs are not used: z was made of them, and is differentiated by them.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
        inputs: Tensor,
        standard: Tensor,
        inverse: Tensor,
        scale: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, along = _mean(slopes), _mean(slopes * standard)
        ctx.save_for_backward(slopes, standard, inverse, scale, mean, along)
        steep = scale * inverse
        count = slopes.numel() // mean.numel()
        return (
            _slanted(slopes, steep, standard, -steep * along, steep * mean),
            count * along.flatten(1),
            count * mean.flatten(1),
        )

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        on_inputs: Tensor,
        on_weight: Tensor,
        on_bias: Tensor,
    ) -> tuple[Tensor | None, ...]:
        slopes, standard, inverse, scale, mean, along = ctx.saved_tensors
        steep = scale * inverse
        level, tilt = _mean(on_inputs), _mean(on_inputs * standard)
        lift = per_channel(on_weight, slopes) - steep * tilt
        drop = steep * level - per_channel(on_bias, slopes)
        to_slopes = _slanted(on_inputs, steep, standard, lift, drop)
        # By z, and by d, which scales the first of the three results.
        both = _mean(on_inputs * slopes) - level * mean
        rest = (lift - steep * tilt) * along + steep * (both - tilt * along)
        centre = lift * mean - steep * level * along
        to_inputs = _slanted(slopes, lift * inverse, standard, -rest * inverse, centre * inverse)
        return to_slopes, torch.addcmul(to_inputs, on_inputs, -steep * along * inverse), *_THREE


_THREE = (None, None, None)


def _slanted(a: Tensor, by_a: Tensor, b: Tensor, by_b: Tensor, less: Tensor) -> Tensor:
    """by_a a + by_b b - less, with a factor for each channel."""
    return torch.addcmul(torch.addcmul(-less, a, by_a), b, by_b)


def _mean(values: Tensor) -> Tensor:
    """Of each row and channel, in a form that multiplies `values`."""
    return values.mean(_others(values), keepdim=True)


def _others(values: Tensor) -> list[int]:
    return [axis for axis in range(values.ndim) if axis not in (0, 2)]
