"""Batch normalisation of many rows, differentiable twice with few passes over memory.

By known statistics it scales and shifts the channels of each row. Autograd would differentiate it
twice through a dozen temporaries of the size of the activations, which are most of what a step
moves.

By the statistics of the batch the scale depends on the inputs, so autograd would differentiate it
twice through dozens of temporaries of the size of the activations. By hand, with means over a
channel of a row and

    z = (x - mean(x)) / d,   d = sqrt(var(x) + eps),   P(v) = v - mean(v) - z mean(v z),

the derivative of z is P / d, which is symmetric. Everything but a few means is then a sum of what
is there already, with one factor for each channel.

A search may know the mean and d of the private batch. Then z is made of those, the same for every
candidate, and differentiated as they are: constants. What the client sends back through z stays
P / d, for the client normalised by its own; at the private batch the two are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """`(R, C)` in a form that multiplies `(R, B, C, ...)`; `(C,)` is the same for all rows.

    Example:
        >>> import torch
        >>> per_channel(torch.zeros(2, 3), torch.zeros(2, 5, 3, 8, 8)).shape
        torch.Size([2, 1, 3, 1, 1])
    """
    lead = values.shape[:-1] if values.ndim > 1 else (1,)
    return values.reshape(*lead, 1, values.shape[-1], *(1,) * (like.ndim - 3))


def batchnorm_eval(
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
    result: Tensor = _AffineForward.apply(inputs, weight, bias, inverse, offset)  # type: ignore[no-untyped-call]
    return result


class _AffineForward(torch.autograd.Function):
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
        result: tuple[Tensor, ...] = _AffineBackward.apply(slopes, inputs, scale, inverse, offset)  # type: ignore[no-untyped-call]
        return *result, None, None


class _AffineBackward(torch.autograd.Function):
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


def batchnorm_train(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    given: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """(inputs - mean) / sqrt(var + eps) * weight + bias, differentiable twice.

    The second differentiation may be by the inputs only, which is what a search needs.

    Args:
        inputs: `(R, B, C, ...)`; mean and biased variance are of each row and channel.
        weight: Of each row, `(R, C)`.
        bias: The same.
        eps: Added to the variance.
        given: Mean and variance to normalise by in place of the row's own, `(R, C)` each.
    """
    known = (None, None) if given is None else given
    result: Tensor = _StandardisedForward.apply(inputs, weight, bias, eps, *known)  # type: ignore[no-untyped-call]
    return result


class _StandardisedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        mean: Tensor | None,
        variance: Tensor | None,
    ) -> Tensor:
        ctx.own = mean is None or variance is None
        if mean is None or variance is None:
            variance, mean = torch.var_mean(inputs, _others(inputs), correction=0, keepdim=True)
        else:
            mean, variance = per_channel(mean, inputs), per_channel(variance, inputs)
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
            steep = scale * inverse
            if not ctx.own:
                return slopes * steep, *_FIVE
            along = _mean(slopes * standard)
            return _slanted(slopes, steep, standard, -steep * along, _mean(slopes) * steep), *_FIVE
        saved = slopes, inputs, standard, inverse, scale, ctx.own
        result: tuple[Tensor, ...] = _StandardisedBackward.apply(*saved)  # type: ignore[no-untyped-call]
        return *result, None, None, None


class _StandardisedBackward(torch.autograd.Function):
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
        own: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.own = own
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
        by_along = -steep * along * inverse
        if not ctx.own:
            to_inputs = torch.addcmul(slopes * (lift * inverse), on_inputs, by_along)
            return to_slopes, to_inputs, *_FOUR
        # By z, and by d, which scales the first of the three results.
        both = _mean(on_inputs * slopes) - level * mean
        rest = (lift - steep * tilt) * along + steep * (both - tilt * along)
        centre = lift * mean - steep * level * along
        to_inputs = _slanted(slopes, lift * inverse, standard, -rest * inverse, centre * inverse)
        return to_slopes, torch.addcmul(to_inputs, on_inputs, by_along), *_FOUR


_FOUR = (None,) * 4
_FIVE = (None,) * 5


def _slanted(a: Tensor, by_a: Tensor, b: Tensor, by_b: Tensor, less: Tensor) -> Tensor:
    """by_a a + by_b b - less, with a factor for each channel."""
    return torch.addcmul(torch.addcmul(-less, a, by_a), b, by_b)


def _mean(values: Tensor) -> Tensor:
    """Of each row and channel, in a form that multiplies `values`."""
    return values.mean(_others(values), keepdim=True)


def _others(values: Tensor) -> list[int]:
    return [axis for axis in range(values.ndim) if axis not in (0, 2)]
