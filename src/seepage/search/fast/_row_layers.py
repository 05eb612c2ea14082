"""Layers whose parameters have a row axis, to replace those of a network.

Parameters `(R, O, C, ...)` equal the shared weight and are what each row differentiates by. The
forward pass and the input gradients are one large library convolution over the inputs of all rows.
Only the weight gradient, and what differentiating it needs, is computed row by row.

Convolution and batch normalisation are differentiated twice by hand, with few passes over memory:
autograd would go through dozens of temporaries of the size of the activations. The second
differentiation may be by the inputs only, which is what a search needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from seepage.search.fast._row_kernels import (
    Context,
    Geometry,
    convolve_rows,
    split_rows,
    use_channels_last,
)

_Gradients = tuple[Tensor | None, ...]


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    """`(R, C)` in a form that multiplies `(R, B, C, ...)`; `(C,)` is the same for all rows.

    Example:
        >>> _per_channel(torch.zeros(2, 3), torch.zeros(2, 5, 3, 8, 8)).shape
        torch.Size([2, 1, 3, 1, 1])
    """
    lead = values.shape[:-1] if values.ndim > 1 else (1,)
    return values.reshape(*lead, 1, values.shape[-1], *(1,) * (like.ndim - 3))


def _batchnorm_eval(
    inputs: Tensor, weight: Tensor, bias: Tensor, inverse: Tensor, offset: Tensor
) -> Tensor:
    """(inputs * inverse + offset) * weight + bias, differentiable twice.

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
        ctx: Context, inputs: Tensor, weight: Tensor, bias: Tensor, inverse: Tensor, offset: Tensor
    ) -> Tensor:
        scale = _per_channel(weight * inverse, inputs)
        ctx.save_for_backward(inputs, scale, inverse, offset)
        shift = _per_channel(torch.addcmul(bias, weight, offset), inputs)
        return torch.addcmul(shift, inputs, scale)

    @staticmethod
    def backward(ctx: Context, slopes: Tensor) -> _Gradients:
        inputs, scale, inverse, offset = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return slopes * scale, None, None, None, None
        result: tuple[Tensor, ...] = _AffineBackward.apply(slopes, inputs, scale, inverse, offset)  # type: ignore[no-untyped-call]
        return *result, None, None


class _AffineBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        slopes: Tensor,
        inputs: Tensor,
        scale: Tensor,
        inverse: Tensor,
        offset: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(slopes, inputs, scale, inverse, offset)
        ctx.set_materialize_grads(False)
        to_bias = slopes.sum(_other_axes(slopes))
        along = (slopes * inputs).sum(_other_axes(slopes))
        return slopes * scale, torch.addcmul(along * inverse, to_bias, offset), to_bias

    @staticmethod
    def backward(
        ctx: Context, on_inputs: Tensor | None, on_weight: Tensor | None, on_bias: Tensor | None
    ) -> _Gradients:
        slopes, inputs, scale, inverse, offset = ctx.saved_tensors
        to_slopes = to_inputs = None
        if on_weight is not None:
            tilt = _per_channel(on_weight * inverse, slopes)
            to_inputs = tilt * slopes
            shift = on_weight * offset
            on_bias = shift if on_bias is None else on_bias + shift
            to_slopes = torch.addcmul(_per_channel(on_bias, slopes), tilt, inputs)
        elif on_bias is not None:
            to_slopes = _per_channel(on_bias, slopes).expand_as(slopes)
        if on_inputs is not None:
            to_slopes = (
                on_inputs * scale
                if to_slopes is None
                else torch.addcmul(to_slopes, on_inputs, scale)
            )
        return to_slopes, to_inputs, None, None, None


def _batchnorm_train(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    given: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """(inputs - mean) / sqrt(var + eps) * weight + bias, differentiable twice.

    With means over a channel of a row and

        z = (x - mean(x)) / d,   d = sqrt(var(x) + eps),   P(v) = v - mean(v) - z mean(v z),

    the derivative of z is P / d, which is symmetric.

    With `given` statistics z is made of those, which are constants for the search. What the client
    sends back through z stays P / d, since the client normalised by its own statistics. At the
    private batch the two are the same.

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
        ctx: Context,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        mean: Tensor | None,
        variance: Tensor | None,
    ) -> Tensor:
        ctx.own = mean is None or variance is None
        if mean is None or variance is None:
            variance, mean = torch.var_mean(inputs, _other_axes(inputs), correction=0, keepdim=True)
        else:
            mean, variance = _per_channel(mean, inputs), _per_channel(variance, inputs)
        inverse = torch.rsqrt(variance + eps)
        standard = (inputs - mean) * inverse
        scale = _per_channel(weight, inputs)
        ctx.save_for_backward(inputs, standard, inverse, scale)
        return torch.addcmul(_per_channel(bias, inputs), standard, scale)

    @staticmethod
    def backward(ctx: Context, slopes: Tensor) -> _Gradients:
        inputs, standard, inverse, scale = ctx.saved_tensors
        if torch.is_grad_enabled():
            saved = slopes, inputs, standard, inverse, scale, ctx.own
            result: tuple[Tensor, ...] = _StandardisedBackward.apply(*saved)  # type: ignore[no-untyped-call]
            return *result, None, None, None
        # In the second differentiation nobody asks for the gradients of scale and shift.
        steep = scale * inverse
        to_inputs = slopes * steep
        if ctx.own:
            along = _mean(slopes * standard)
            to_inputs = _combine(slopes, steep, standard, -steep * along, _mean(slopes) * steep)
        return to_inputs, None, None, None, None, None


class _StandardisedBackward(torch.autograd.Function):
    """scale / d P(slopes), and the sums of slopes z and of slopes.

    The inputs are an argument because z is made of them and is differentiated by them.
    """

    @staticmethod
    def forward(
        ctx: Context,
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
        to_inputs = _combine(slopes, steep, standard, -steep * along, steep * mean)
        return to_inputs, count * along.flatten(1), count * mean.flatten(1)

    @staticmethod
    def backward(ctx: Context, on_inputs: Tensor, on_weight: Tensor, on_bias: Tensor) -> _Gradients:
        slopes, standard, inverse, scale, mean, along = ctx.saved_tensors
        steep = scale * inverse
        level, tilt = _mean(on_inputs), _mean(on_inputs * standard)
        lift = _per_channel(on_weight, slopes) - steep * tilt
        drop = steep * level - _per_channel(on_bias, slopes)
        to_slopes = _combine(on_inputs, steep, standard, lift, drop)
        if ctx.own:
            # By z, and by d, which scales the first of the three results.
            both = _mean(on_inputs * slopes) - level * mean
            rest = (lift - steep * tilt) * along + steep * (both - tilt * along)
            centre = lift * mean - steep * level * along
            by_z = _combine(slopes, lift * inverse, standard, -rest * inverse, centre * inverse)
        else:
            by_z = slopes * (lift * inverse)
        to_inputs = torch.addcmul(by_z, on_inputs, -steep * along * inverse)
        return to_slopes, to_inputs, None, None, None, None


def _combine(a: Tensor, by_a: Tensor, b: Tensor, by_b: Tensor, less: Tensor) -> Tensor:
    """by_a a + by_b b - less, with a factor for each channel."""
    return torch.addcmul(torch.addcmul(-less, a, by_a), b, by_b)


def _mean(values: Tensor) -> Tensor:
    """The mean of each row and channel, in a form that multiplies `values`."""
    return values.mean(_other_axes(values), keepdim=True)


def _other_axes(values: Tensor) -> list[int]:
    """All axes but those of rows and channels."""
    return [axis for axis in range(values.ndim) if axis not in (0, 2)]


class Replacement(nn.Module):
    """Abstract: replaces a layer and keeps its parameters.

    Row layers take the inputs of all rows one after the other, `(R B, ...)`. Parameters keep their
    names, so that `functional_call` can replace them by tensors `(R, ...)`.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        for name in ("weight", "bias"):
            self.register_parameter(name, cast(nn.Parameter | None, getattr(layer, name)))

    def keep_statistics(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        """Register `inverse`, one over the known deviation, and `offset`; None if not known."""
        inverse = offset = None
        if layer.running_mean is not None and layer.running_var is not None:
            inverse = torch.rsqrt(layer.running_var + layer.eps)
            offset = -layer.running_mean * inverse
        self.register_buffer("inverse", inverse)
        self.register_buffer("offset", offset)


class _RowConvolution(Replacement):
    """A convolution; forward and input gradients use the weight that rows share."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        super().__init__(layer)
        self.shared = use_channels_last(layer.weight.detach())
        self.circular = layer.padding_mode == "circular"
        self.edges = list(layer._reversed_padding_repeated_twice)
        padding = cast(tuple[int, ...], layer.padding)
        padding = (0,) * len(padding) if self.circular else padding
        self.geometry = Geometry(layer.stride, padding, layer.dilation)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.circular:
            inputs = nn.functional.pad(inputs, self.edges, mode="circular")
        outputs = convolve_rows(inputs, self.weight, self.shared, self.geometry)
        if self.bias is None:
            return outputs
        split = split_rows(outputs, len(self.bias))
        return (split + _per_channel(self.bias, split)).flatten(0, 1)


class _RowLinear(Replacement):
    """A fully connected layer; weights are multiplied row by row."""

    def forward(self, inputs: Tensor) -> Tensor:
        flat = split_rows(inputs, len(self.weight)).flatten(1, -2)
        outputs = torch.bmm(flat, self.weight.transpose(1, 2))
        if self.bias is not None:
            outputs = outputs + self.bias.unsqueeze(1)
        return outputs.reshape(*inputs.shape[:-1], -1)


class RowBatchNorm(Replacement):
    """Batch normalisation by the broadcast statistics, or by those of each row's batch.

    Known statistics of the batch may be `given` instead: mean and variance of each case `(N, C)`.
    Rows come case by case, as many of each.
    """

    bias: Tensor
    given: tuple[Tensor, Tensor] | None = None

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__(layer)
        self.eps = layer.eps
        self.keep_statistics(layer)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise, then scale and shift each row."""
        split = split_rows(inputs, len(self.weight))
        if self.inverse is not None:
            known = cast(Tensor, self.inverse), cast(Tensor, self.offset)
            return _batchnorm_eval(split, self.weight, self.bias, *known).flatten(0, 1)
        given = None
        if self.given is not None:
            restarts = len(self.weight) // len(self.given[0])
            mean, variance = (t.repeat_interleave(restarts, 0) for t in self.given)
            given = mean, variance
        return _batchnorm_train(split, self.weight, self.bias, self.eps, given).flatten(0, 1)


class _RowGroupNorm(Replacement):
    """Group normalisation, which sees one example at a time, with each row's scale and shift."""

    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__(layer)
        self.groups, self.eps = layer.num_groups, layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        plain = nn.functional.group_norm(inputs, self.groups, eps=self.eps)
        split = split_rows(plain, len(self.weight))
        shift, scale = (_per_channel(v, split) for v in (cast(Tensor, self.bias), self.weight))
        return (split * scale + shift).flatten(0, 1)


class _RowLayerNorm(Replacement):
    """Layer normalisation, with each row's scale and shift."""

    def __init__(self, layer: nn.LayerNorm) -> None:
        super().__init__(layer)
        self.shape, self.eps = layer.normalized_shape, layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        plain = nn.functional.layer_norm(inputs, self.shape, eps=self.eps)
        split = split_rows(plain, len(self.weight))
        between = (1,) * (split.ndim - 1 - len(self.shape))
        form = (len(self.weight), *between, *self.shape)
        shifted = split * self.weight.reshape(form)
        if self.bias is not None:
            shifted = shifted + self.bias.reshape(form)
        return shifted.flatten(0, 1)


def make_row_layer(layer: nn.Module) -> Replacement | None:
    """Make the row form of a layer; None if it has none."""
    for kinds, fits, row_form in _ROW_FORMS:
        if isinstance(layer, kinds) and fits(layer):
            return row_form(layer)
    return None


def _is_plain_convolution(layer: nn.Module) -> bool:
    convolution = cast(nn.Conv2d, layer)
    return (
        convolution.groups == 1
        and convolution.padding_mode in ("zeros", "circular")
        and not isinstance(convolution.padding, str)
        and not convolution.transposed
    )


def _is_affine(layer: nn.Module) -> bool:
    return layer.weight is not None and layer.bias is not None


_ROW_FORMS: tuple[
    tuple[tuple[type[nn.Module], ...], Callable[[nn.Module], bool], Callable[..., Replacement]], ...
] = (
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d), _is_plain_convolution, _RowConvolution),
    ((nn.Linear,), lambda _: True, _RowLinear),
    ((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), _is_affine, RowBatchNorm),
    ((nn.GroupNorm,), _is_affine, _RowGroupNorm),
    ((nn.LayerNorm,), lambda layer: layer.weight is not None, _RowLayerNorm),
)
