"""Convolutions in which every row has its own weight, computed in the fastest way for the shape.

Three ways give the same numbers: one library call per row, one grouped convolution, or batched
matrix products over the windows of the input. The weight gradient and its derivative share the
windows, so these are extracted once. The fastest way depends on the shape and the GPU: on CUDA each
shape is timed once. Elsewhere, and with deterministic algorithms, the choice is fixed.

Matrices have the channels last, so that windows are copied in whole runs and channels-last images
need no copy at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

Sides = tuple[int, ...]
# The context of an autograd function, to which anything may be attached.
Context = Any
_Gradients = tuple[Tensor | None, ...]
_ONLY_INPUTS = (True, False)


@dataclass(frozen=True)
class Geometry:
    """Stride, padding and dilation, one number per spatial axis."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def arguments(self) -> tuple[Sides, Sides, Sides, bool, Sides]:
        """Arguments of torch's general convolution, not transposed."""
        return self.stride, self.padding, self.dilation, False, (0,) * len(self.stride)

    def output_side(self, inputs: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
        """Spatial sizes of the output.

        Example:
            >>> Geometry((2, 2), (1, 1), (1, 1)).output_side((32, 32), (3, 3))
            (16, 16)
        """
        axes = zip(inputs, kernel, self.stride, self.padding, self.dilation, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)


def convolve(inputs: Tensor, weight: Tensor, geometry: Geometry, groups: int = 1) -> Tensor:
    """Convolve without a bias."""
    return torch.convolution(inputs, weight, None, *geometry.arguments, groups)


def convolution_gradients(
    slopes: Tensor,
    inputs: Tensor,
    weight: Tensor,
    geometry: Geometry,
    wanted: tuple[bool, bool],
    groups: int = 1,
) -> tuple[Any, Any]:
    """Gradients by the inputs and by the weight; None for one that is not wanted."""
    by_inputs, by_weight, _ = torch.ops.aten.convolution_backward(
        slopes, inputs, weight, None, *geometry.arguments, groups, (*wanted, False)
    )
    return by_inputs if wanted[0] else None, by_weight if wanted[1] else None


def use_channels_last(images: Tensor) -> Tensor:
    """Put the channels of images or weights last on a GPU, where convolutions are faster so."""
    if images.ndim == 4 and images.is_cuda:
        return images.contiguous(memory_format=torch.channels_last)
    return images


def split_rows(tensor: Tensor, count: int) -> Tensor:
    """`(R B, ...)` to `(R, B, ...)`, without a copy."""
    return tensor.reshape(count, -1, *tensor.shape[1:])


def _extract_windows(images: Tensor, kernel: Sequence[int], geometry: Geometry) -> Tensor:
    """Extract the window under every output position, `(N, H' W', k k C)`.

    `torch.nn.functional.unfold` does the same with one kernel launch per image.
    """
    down, right = geometry.padding
    padded = torch.nn.functional.pad(images, (right, right, down, down))
    apart = padded.contiguous(memory_format=torch.channels_last)
    sides = zip(kernel, geometry.stride, geometry.dilation, strict=True)
    for axis, (k, step, gap) in enumerate(sides, start=2):
        apart = apart.unfold(axis, gap * (k - 1) + 1, step)[..., ::gap]
    return apart.permute(0, 2, 3, 4, 5, 1).reshape(len(images), -1, prod(kernel) * images.shape[1])


def _as_matrix(images: Tensor, count: int) -> Tensor:
    """Images `(R B, C, H, W)` as `(R, B H W, C)`."""
    return split_rows(images.movedim(1, -1), count).flatten(1, 3)


def _as_images(matrix: Tensor, side: Sequence[int]) -> Tensor:
    """Undo `_as_matrix`: `(R, B H W, C)` to channels-last images `(R B, C, H, W)`."""
    return matrix.reshape(-1, *side, matrix.shape[-1]).movedim(-1, 1)


def _can_flip(weights: Tensor, geometry: Geometry) -> bool:
    """Whether the gradient by the inputs is itself a plain convolution: at stride 1."""
    axes = zip(weights.shape[3:], geometry.padding, geometry.dilation, strict=True)
    return set(geometry.stride) == {1} and all(d * (k - 1) >= p for k, p, d in axes)


def _flip_kernels(weights: Tensor, geometry: Geometry) -> tuple[Geometry, Tensor]:
    """The convolution that is the gradient by the inputs: its geometry and `(R, k k O, C)`."""
    axes = zip(weights.shape[3:], geometry.padding, geometry.dilation, strict=True)
    padding = tuple(d * (k - 1) - p for k, p, d in axes)
    matrix = weights.flip(3, 4).permute(0, 3, 4, 1, 2).flatten(1, 3)
    return Geometry(geometry.stride, padding, geometry.dilation), matrix


Way = Literal["in_turn", "grouped", "products"]
_FIXED: Way = "in_turn"
_REPEATS = 3


@dataclass(frozen=True)
class _KernelPlan:
    """How to compute the weight gradient with its derivative, and the input gradient."""

    weight: Way
    inputs: Way


_plans: dict[tuple[object, ...], _KernelPlan] = {}


def _choose_plan(
    slopes: Tensor, inputs: Tensor, weights: Tensor, geometry: Geometry
) -> _KernelPlan:
    """Choose the fastest way for these shapes.

    Args:
        slopes: Gradient by the output, `(R B, O, ...)`.
        inputs: `(R B, C, ...)`.
        weights: One per row, `(R, O, C, ...)`.
        geometry: The geometry of the convolution.
    """
    if not inputs.is_cuda or torch.are_deterministic_algorithms_enabled():
        return _KernelPlan(_FIXED, _FIXED)
    form = tuple((tuple(t.shape), t.stride(), t.dtype) for t in (slopes, inputs))
    key = (form, tuple(weights.shape), geometry, inputs.device)
    if key not in _plans:
        if torch.cuda.is_current_stream_capturing():
            return _KernelPlan("grouped", "grouped")
        _plans[key] = _time_ways(slopes, inputs, weights, geometry)
    return _plans[key]


def _time_ways(slopes: Tensor, inputs: Tensor, weights: Tensor, geometry: Geometry) -> _KernelPlan:
    def differentiate_weight(way: Way) -> None:
        kept = _extract_row_windows(inputs, weights, geometry, way)
        _row_weight_gradient(slopes, inputs, weights, geometry, way, kept)
        _row_convolution(inputs, weights, geometry, way, kept)

    def differentiate_inputs(way: Way) -> None:
        _row_input_gradient(slopes, inputs, weights, geometry, way)

    ways: list[Way] = ["in_turn", "grouped"]
    weight_ways = [*ways, "products"] if inputs.ndim == 4 else ways
    input_ways = weight_ways if _can_flip(weights, geometry) else ways
    return _KernelPlan(
        min(weight_ways, key=lambda way: _milliseconds(differentiate_weight, way)),
        min(input_ways, key=lambda way: _milliseconds(differentiate_inputs, way)),
    )


def _extract_row_windows(
    inputs: Tensor, weights: Tensor, geometry: Geometry, way: Way
) -> Tensor | None:
    """Extract the windows that the weight gradient and the convolution share by "products"."""
    if way != "products":
        return None
    return split_rows(_extract_windows(inputs, weights.shape[3:], geometry), len(weights)).flatten(
        1, 2
    )


def _row_weight_gradient(
    slopes: Tensor,
    inputs: Tensor,
    weights: Tensor,
    geometry: Geometry,
    way: Way,
    kept: Tensor | None,
) -> Tensor:
    """Gradient of each row's weight, `(R, O, C, ...)`."""
    count = len(weights)
    if kept is not None:
        gradient = torch.bmm(_as_matrix(slopes, count).transpose(1, 2), kept)
        return gradient.reshape(*gradient.shape[:2], *weights.shape[3:], -1).movedim(-1, 2)
    if way == "in_turn":
        return _gradients_in_turn(slopes, inputs, weights, geometry, 1)
    return split_rows(_grouped_gradient(slopes, inputs, weights, geometry, 1), count)


def _row_convolution(
    inputs: Tensor, weights: Tensor, geometry: Geometry, way: Way, kept: Tensor | None
) -> Tensor:
    """Convolve each row `(R B, C, ...)` with its own weight `(R, O, C, ...)`."""
    count = len(weights)
    if kept is not None:
        columns = weights.movedim(2, -1).flatten(2).transpose(1, 2)
        side = geometry.output_side(inputs.shape[2:], weights.shape[3:])
        return _as_images(torch.bmm(kept, columns), side)
    if way == "in_turn":
        pairs = zip(_rows(inputs, count), weights, strict=True)
        return _stack_rows([convolve(x, w, geometry) for x, w in pairs]).flatten(0, 1)
    joined = convolve(_interleave(inputs, count), weights.flatten(0, 1), geometry, count)
    return _separate(joined, count)


def _row_input_gradient(
    slopes: Tensor, inputs: Tensor, weights: Tensor, geometry: Geometry, way: Way
) -> Tensor:
    """Gradient by the inputs `(R B, C, ...)` when each row has its own weight."""
    count = len(weights)
    if way == "products":
        turned, matrix = _flip_kernels(weights, geometry)
        windows = _extract_windows(slopes, weights.shape[3:], turned)
        product = torch.bmm(split_rows(windows, count).flatten(1, 2), matrix)
        return _as_images(product, tuple(inputs.shape[2:]))
    if way == "in_turn":
        return _gradients_in_turn(slopes, inputs, weights, geometry, 0).flatten(0, 1)
    return _separate(_grouped_gradient(slopes, inputs, weights, geometry, 0), count)


# By the inputs, and by the weight.
_ONLY = ((True, False), (False, True))


def _gradients_in_turn(
    slopes: Tensor, inputs: Tensor, weights: Tensor, geometry: Geometry, which: int
) -> Tensor:
    count = len(weights)
    rows = zip(_rows(slopes, count), _rows(inputs, count), weights, strict=True)
    return _stack_rows([convolution_gradients(*r, geometry, _ONLY[which])[which] for r in rows])


def _grouped_gradient(
    slopes: Tensor, inputs: Tensor, weights: Tensor, geometry: Geometry, which: int
) -> Tensor:
    count = len(weights)
    joined = _interleave(slopes, count), _interleave(inputs, count), weights.flatten(0, 1)
    gradient: Tensor = convolution_gradients(*joined, geometry, _ONLY[which], count)[which]
    return gradient


def _rows(tensor: Tensor, count: int) -> tuple[Tensor, ...]:
    return split_rows(tensor, count).unbind()


def _stack_rows(rows: list[Tensor]) -> Tensor:
    """Stack rows; a single row is not copied."""
    return torch.stack(rows) if len(rows) > 1 else rows[0].unsqueeze(0)


def _interleave(tensor: Tensor, count: int) -> Tensor:
    """`(R B, C, ...)` to `(B, R C, ...)`, as grouped convolutions want it."""
    return split_rows(tensor, count).transpose(0, 1).flatten(1, 2)


def _separate(tensor: Tensor, count: int) -> Tensor:
    """Undo `_interleave`."""
    apart = tensor.reshape(len(tensor), count, -1, *tensor.shape[2:])
    return apart.transpose(0, 1).flatten(0, 1)


def _milliseconds(work: Callable[[Way], None], way: Way) -> float:
    try:
        work(way)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        for _ in range(_REPEATS):
            work(way)
        end.record()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return float("inf")
    return float(begin.elapsed_time(end))


def convolve_rows(inputs: Tensor, rows: Tensor, shared: Tensor, geometry: Geometry) -> Tensor:
    """Convolve `(R B, C, ...)` with the shared weight that every entry of `rows` equals.

    It may be differentiated twice, the second time by the inputs only.
    """
    outputs: Tensor = _ConvolutionForward.apply(inputs, rows, shared, geometry)  # type: ignore[no-untyped-call]
    return outputs


class _ConvolutionForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, inputs: Tensor, rows: Tensor, shared: Tensor, geometry: Geometry
    ) -> Tensor:
        ctx.save_for_backward(inputs, shared)
        ctx.geometry, ctx.count = geometry, len(rows)
        return convolve(inputs, shared, geometry)

    @staticmethod
    def backward(ctx: Context, slopes: Tensor) -> _Gradients:
        inputs, shared = ctx.saved_tensors
        if not torch.is_grad_enabled():
            # In the second differentiation nobody asks for the weight gradient.
            by_inputs, _ = convolution_gradients(slopes, inputs, shared, ctx.geometry, _ONLY_INPUTS)
            return by_inputs, None, None, None
        first, second = _ConvolutionBackward.apply(slopes, inputs, shared, ctx.geometry, ctx.count)  # type: ignore[no-untyped-call]
        return first, second, None, None


class _ConvolutionBackward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        slopes: Tensor,
        inputs: Tensor,
        shared: Tensor,
        geometry: Geometry,
        count: int,
    ) -> tuple[Tensor, Tensor]:
        weights = shared.expand(count, *shared.shape)
        ctx.plan = _choose_plan(slopes, inputs, weights, geometry)
        ctx.kept = _extract_row_windows(inputs, weights, geometry, ctx.plan.weight)
        ctx.save_for_backward(slopes, inputs, shared)
        ctx.geometry = geometry
        # Nobody asks for the input gradient of the first layer.
        ctx.set_materialize_grads(False)
        return (
            convolution_gradients(slopes, inputs, shared, geometry, _ONLY_INPUTS)[0],
            _row_weight_gradient(slopes, inputs, weights, geometry, ctx.plan.weight, ctx.kept),
        )

    @staticmethod
    def backward(ctx: Context, on_inputs: Tensor | None, on_rows: Tensor | None) -> _Gradients:
        slopes, inputs, shared = ctx.saved_tensors
        to_slopes, to_inputs = None, None
        if on_rows is not None:
            kept, ctx.kept = ctx.kept, None
            to_slopes = _row_convolution(inputs, on_rows, ctx.geometry, ctx.plan.weight, kept)
            to_inputs = _row_input_gradient(slopes, inputs, on_rows, ctx.geometry, ctx.plan.inputs)
        if on_inputs is not None:
            through = convolve(on_inputs, shared, ctx.geometry)
            to_slopes = through if to_slopes is None else to_slopes + through
        return to_slopes, to_inputs, None, None, None
