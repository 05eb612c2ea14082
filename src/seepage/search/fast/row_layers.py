"""Layers whose parameters have a row axis, to stand in for those of a network.

Forward and input gradients are one large library convolution over the inputs of all rows. Only
the weight gradient, and what differentiating it needs, is computed row by row. The parameter that
rows differentiate by is a stand-in of shape `(R, O, C, ...)` that equals the shared weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from seepage.search.fast.row_batchnorm import batchnorm_eval, batchnorm_train, per_channel
from seepage.search.fast.row_kernels import (
    Geometry,
    kept_windows,
    laid_out,
    plan,
    row_convolution,
    row_input_gradient,
    row_weight_gradient,
    split_rows,
)


def _shared_convolution(inputs: Tensor, rows: Tensor, shared: Tensor, geometry: Geometry) -> Tensor:
    """Convolve `(R B, C, ...)` with the shared weight `(O, C, ...)`, differentiable twice.

    The second differentiation may be by the inputs only, which is what a search needs.

    Args:
        inputs: The inputs of all rows, row after row.
        rows: The stand-in `(R, O, C, ...)`.
        shared: The weight that every entry of `rows` equals.
        geometry: Of the convolution.
    """
    result: Tensor = _ConvolutionForward.apply(inputs, rows, shared, geometry)  # type: ignore[no-untyped-call]
    return result


def _convolve(inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return torch.convolution(inputs, weight, None, *geometry.arguments, 1)


def _input_gradient(slopes: Tensor, inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        slopes, inputs, weight, None, *geometry.arguments, 1, (True, False, False)
    )
    return gradients[0]


class _ConvolutionForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        inputs: Tensor,
        rows: Tensor,
        shared: Tensor,
        geometry: Geometry,
    ) -> Tensor:
        ctx.save_for_backward(inputs, shared)
        ctx.geometry, ctx.count = geometry, len(rows)
        return _convolve(inputs, shared, geometry)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
    ) -> tuple[Tensor | None, ...]:
        inputs, shared = ctx.saved_tensors
        if not torch.is_grad_enabled():
            # The second differentiation: nobody asks for the weight gradient again.
            return _input_gradient(slopes, inputs, shared, ctx.geometry), None, None, None
        first, second = _ConvolutionBackward.apply(slopes, inputs, shared, ctx.geometry, ctx.count)  # type: ignore[no-untyped-call]
        return first, second, None, None


class _ConvolutionBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
        inputs: Tensor,
        shared: Tensor,
        geometry: Geometry,
        count: int,
    ) -> tuple[Tensor, Tensor]:
        weights = shared.expand(count, *shared.shape)
        ctx.plan = plan(slopes, inputs, weights, geometry)
        ctx.kept = kept_windows(inputs, weights, geometry, ctx.plan.weight)
        ctx.save_for_backward(slopes, inputs, shared)
        ctx.geometry = geometry
        # The input gradient of the first layer is asked for by nobody.
        ctx.set_materialize_grads(False)
        return (
            _input_gradient(slopes, inputs, shared, geometry),
            row_weight_gradient(slopes, inputs, weights, geometry, ctx.plan.weight, ctx.kept),
        )

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        on_inputs: Tensor | None,
        on_rows: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        slopes, inputs, shared = ctx.saved_tensors
        to_slopes, to_inputs = None, None
        if on_rows is not None:
            kept, ctx.kept = ctx.kept, None
            to_slopes = row_convolution(inputs, on_rows, ctx.geometry, ctx.plan.weight, kept)
            to_inputs = row_input_gradient(slopes, inputs, on_rows, ctx.geometry, ctx.plan.inputs)
        if on_inputs is not None:
            through = _convolve(on_inputs, shared, ctx.geometry)
            to_slopes = through if to_slopes is None else to_slopes + through
        return to_slopes, to_inputs, None, None, None


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class _RowLayer(nn.Module):
    """Abstract: takes all rows' inputs one after the other, `(R B, ...)`.

    Parameters keep their names, so that `functional_call` can put tensors `(R, ...)` in their
    place.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Module) -> None:
        """Keep the original parameters as placeholders."""
        super().__init__()
        for name in ("weight", "bias"):
            self.register_parameter(name, cast(nn.Parameter | None, getattr(layer, name)))


class _RowConvolution(_RowLayer):
    """A convolution; forward and input gradients use the weight that rows share."""

    def __init__(self, layer: Convolution) -> None:
        """Remember the geometry and the shared weight."""
        super().__init__(layer)
        self.shared = laid_out(layer.weight.detach())
        self.circular = layer.padding_mode == "circular"
        self.edges = list(layer._reversed_padding_repeated_twice)
        padding = cast(tuple[int, ...], layer.padding)
        self.geometry = Geometry(
            layer.stride, (0,) * len(padding) if self.circular else padding, layer.dilation
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve, then add each row's bias."""
        if self.circular:
            inputs = nn.functional.pad(inputs, self.edges, mode="circular")
        outputs = _shared_convolution(inputs, self.weight, self.shared, self.geometry)
        if self.bias is None:
            return outputs
        split = split_rows(outputs, len(self.bias))
        return (split + per_channel(self.bias, split)).flatten(0, 1)


class _RowLinear(_RowLayer):
    """A fully connected layer; weights are multiplied row by row."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply each row by its own weight."""
        split = split_rows(inputs, len(self.weight))
        flat = split.flatten(1, -2)
        outputs = torch.bmm(flat, self.weight.transpose(1, 2))
        if self.bias is not None:
            outputs = outputs + self.bias.unsqueeze(1)
        return outputs.reshape(*inputs.shape[:-1], -1)


class RowBatchNorm(_RowLayer):
    """Batch normalisation by the broadcast statistics, or by those of each row's batch.

    Where the latter are known they may be `given`, mean and variance of each case `(N, C)`: rows
    come case by case, as many of each.
    """

    bias: Tensor
    given: tuple[Tensor, Tensor] | None = None

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        """Take the statistics along, where there are any."""
        super().__init__(layer)
        self.eps = layer.eps
        inverse = offset = None
        if layer.running_mean is not None and layer.running_var is not None:
            inverse = torch.rsqrt(layer.running_var + layer.eps)
            offset = -layer.running_mean * inverse
        self.register_buffer("inverse", inverse)
        self.register_buffer("offset", offset)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise, then scale and shift each row."""
        split = split_rows(inputs, len(self.weight))
        if self.inverse is not None:
            known = cast(Tensor, self.inverse), cast(Tensor, self.offset)
            return batchnorm_eval(split, self.weight, self.bias, *known).flatten(0, 1)
        given = None
        if self.given is not None:
            restarts = len(self.weight) // len(self.given[0])
            mean, variance = (t.repeat_interleave(restarts, 0) for t in self.given)
            given = mean, variance
        return batchnorm_train(split, self.weight, self.bias, self.eps, given).flatten(0, 1)


class _RowGroupNorm(_RowLayer):
    """Group normalisation, which sees one example at a time, with each row's scale and shift."""

    def __init__(self, layer: nn.GroupNorm) -> None:
        """Remember the groups."""
        super().__init__(layer)
        self.groups, self.eps = layer.num_groups, layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise, then scale and shift each row."""
        plain = nn.functional.group_norm(inputs, self.groups, eps=self.eps)
        split = split_rows(plain, len(self.weight))
        shift, scale = (per_channel(v, split) for v in (cast(Tensor, self.bias), self.weight))
        return (split * scale + shift).flatten(0, 1)


class _RowLayerNorm(_RowLayer):
    """Layer normalisation, with each row's scale and shift."""

    def __init__(self, layer: nn.LayerNorm) -> None:
        """Remember the normalised axes."""
        super().__init__(layer)
        self.shape, self.eps = layer.normalized_shape, layer.eps

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise, then scale and shift each row."""
        plain = nn.functional.layer_norm(inputs, self.shape, eps=self.eps)
        split = split_rows(plain, len(self.weight))
        between = (1,) * (split.ndim - 1 - len(self.shape))
        form = (len(self.weight), *between, *self.shape)
        shifted = split * self.weight.reshape(form)
        if self.bias is not None:
            shifted = shifted + self.bias.reshape(form)
        return shifted.flatten(0, 1)


def row_layer(layer: nn.Module) -> _RowLayer | None:
    """The stand-in of a layer, or None if there is none."""
    for kinds, fits, stand_in in _STAND_INS:
        if isinstance(layer, kinds) and fits(layer):
            return stand_in(layer)
    return None


def _plain_convolution(layer: nn.Module) -> bool:
    convolution = cast(Convolution, layer)
    return (
        convolution.groups == 1
        and convolution.padding_mode in ("zeros", "circular")
        and not isinstance(convolution.padding, str)
        and not convolution.transposed
    )


def _affine(layer: nn.Module) -> bool:
    return layer.weight is not None and layer.bias is not None


_STAND_INS: tuple[
    tuple[tuple[type[nn.Module], ...], Callable[[nn.Module], bool], Callable[..., _RowLayer]], ...
] = (
    (_CONVOLUTIONS, _plain_convolution, _RowConvolution),
    ((nn.Linear,), lambda _: True, _RowLinear),
    (_BATCH_NORMS, _affine, RowBatchNorm),
    ((nn.GroupNorm,), _affine, _RowGroupNorm),
    ((nn.LayerNorm,), lambda layer: layer.weight is not None, _RowLayerNorm),
)
