"""A convolution whose weights all rows share and whose weight gradients are each row's own.

Forward and input gradients are one large library convolution over the inputs of all rows. Only
the weight gradient, and what differentiating it needs, is computed row by row. The parameter that
rows differentiate by is a stand-in of shape `(R, O, C, ...)` that equals the shared weight.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.rows.geometry import Geometry
from seepage.attacks.gradient_matching.rows.kernels import (
    kept_windows,
    plan,
    row_convolution,
    row_input_gradient,
    row_weight_gradient,
)


def shared_convolution(inputs: Tensor, rows: Tensor, shared: Tensor, geometry: Geometry) -> Tensor:
    """Convolve `(R B, C, ...)` with the shared weight `(O, C, ...)`, differentiable twice.

    The second differentiation may be by the inputs only, which is what a search needs.

    Args:
        inputs: The inputs of all rows, row after row.
        rows: The stand-in `(R, O, C, ...)`.
        shared: The weight that every entry of `rows` equals.
        geometry: Of the convolution.
    """
    result: Tensor = _Forward.apply(inputs, rows, shared, geometry)  # type: ignore[no-untyped-call]
    return result


def _convolve(inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return torch.convolution(inputs, weight, None, *geometry.arguments, 1)


def _input_gradient(slopes: Tensor, inputs: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    gradients: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        slopes, inputs, weight, None, *geometry.arguments, 1, (True, False, False)
    )
    return gradients[0]


class _Forward(torch.autograd.Function):
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
        first, second = _Backward.apply(slopes, inputs, shared, ctx.geometry, ctx.count)  # type: ignore[no-untyped-call]
        return first, second, None, None


class _Backward(torch.autograd.Function):
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
