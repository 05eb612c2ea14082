"""Layers that are cheaper to differentiate twice than torch's own.

torch differentiates the gradient of a convolution by convolutions whose kernels are as large as
the image, and batch normalisation by known statistics through a dozen passes over the activations.
Both have a form that costs no more than the first differentiation. Unlike the layers whose rows
share one weight, these may have weights that depend on the inputs, as they do after a local step.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from seepage.core import Task
from seepage.search.fast.row_kernels import Geometry

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def use_double_backward(task: Task) -> Task:
    """The same task, computed by layers that are cheap to differentiate twice."""
    model = copy.deepcopy(task.model)
    for name, module in list(model.named_modules()):
        stand_in = _stand_in(module, task)
        if stand_in is not None and name:
            model.set_submodule(name, stand_in)
    return Task(model, task.loss, task.domain, task.mode, task.name)


def _stand_in(module: nn.Module, task: Task) -> nn.Module | None:
    # Exact types: what a subclass does in its forward is not known.
    if type(module) in _CONVOLUTIONS:
        layer = cast(nn.Conv2d, module)
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return Convolution(layer) if plain else None
    known = task.mode == "eval" and getattr(module, "running_mean", None) is not None
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and known and module.affine:
        return KnownStatistics(module)
    return None


class Convolution(nn.Module):
    """A convolution with zero padding."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        """Take over the parameters and the geometry."""
        super().__init__()
        self.register_parameter("weight", cast(nn.Parameter, layer.weight))
        self.register_parameter("bias", cast(nn.Parameter | None, layer.bias))
        padding = cast(tuple[int, ...], layer.padding)
        self.geometry, self.groups = Geometry(layer.stride, padding, layer.dilation), layer.groups

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve, then shift the channels."""
        outputs: Tensor = _DoubleForward.apply(inputs, self.weight, self.geometry, self.groups)  # type: ignore[no-untyped-call]
        return outputs if self.bias is None else outputs + _per_channel(self.bias, outputs)


class KnownStatistics(nn.Module):
    """Batch normalisation by running statistics: a scale and a shift of every channel."""

    weight: Tensor
    bias: Tensor
    inverse: Tensor
    offset: Tensor

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        """Take over the parameters; of the statistics, what a forward pass needs."""
        super().__init__()
        self.register_parameter("weight", layer.weight)
        self.register_parameter("bias", layer.bias)
        mean, variance = cast(Tensor, layer.running_mean), cast(Tensor, layer.running_var)
        self.register_buffer("inverse", torch.rsqrt(variance + layer.eps))
        self.register_buffer("offset", -mean * self.inverse)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scale and shift."""
        scale = _per_channel(self.weight * self.inverse, inputs)
        shift = _per_channel(torch.addcmul(self.bias, self.weight, self.offset), inputs)
        return torch.addcmul(shift, inputs, scale)


class _DoubleForward(torch.autograd.Function):
    """conv(x, w)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, geometry: Geometry, groups: int) -> Tensor:
        return _convolve(inputs, weight, geometry, groups)

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401
        inputs: tuple[Tensor, Tensor, Geometry, int],
        output: Tensor,
    ) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.geometry, ctx.groups = inputs[2:]

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        slopes: Tensor,
    ) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            both = _DoubleBackward.apply(slopes, inputs, weight, ctx.geometry, ctx.groups)  # type: ignore[no-untyped-call]
            return *both, None, None
        wanted = ctx.needs_input_grad[:2]
        return *_gradients(slopes, inputs, weight, ctx.geometry, ctx.groups, wanted), None, None


class _DoubleBackward(torch.autograd.Function):
    """The gradients of conv(x, w) by x and by w; each is bilinear, and so are its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        slopes: Tensor, inputs: Tensor, weight: Tensor, geometry: Geometry, groups: int
    ) -> tuple[Tensor | None, ...]:
        return _gradients(slopes, inputs, weight, geometry, groups, (True, True))

    @staticmethod
    def setup_context(
        ctx: Any,  # noqa: ANN401
        inputs: tuple[Tensor, Tensor, Tensor, Geometry, int],
        output: tuple[Tensor, ...],
    ) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.geometry, ctx.groups = inputs[3:]
        # The input gradient of the first layer is asked for by nobody.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        on_inputs: Tensor | None,
        on_weight: Tensor | None,
    ) -> tuple[Tensor | None, ...]:
        slopes, inputs, weight = ctx.saved_tensors
        rest: tuple[Geometry, int] = (ctx.geometry, ctx.groups)
        to_slopes = to_inputs = to_weight = None
        if on_weight is not None:
            to_slopes = _convolve(inputs, on_weight, *rest)
            to_inputs, _ = _gradients(slopes, inputs, on_weight, *rest, (True, False))
        if on_inputs is not None:
            through = _convolve(on_inputs, weight, *rest)
            to_slopes = through if to_slopes is None else to_slopes + through
            if ctx.needs_input_grad[2]:
                _, to_weight = _gradients(slopes, on_inputs, weight, *rest, (False, True))
        return to_slopes, to_inputs, to_weight, None, None


def _convolve(inputs: Tensor, weight: Tensor, geometry: Geometry, groups: int) -> Tensor:
    return torch.convolution(inputs, weight, None, *geometry.arguments, groups)


def _gradients(
    slopes: Tensor,
    inputs: Tensor,
    weight: Tensor,
    geometry: Geometry,
    groups: int,
    wanted: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    by_inputs, by_weight, _ = torch.ops.aten.convolution_backward(
        slopes, inputs, weight, None, *geometry.arguments, groups, (*wanted, False)
    )
    return by_inputs if wanted[0] else None, by_weight if wanted[1] else None


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.ndim - 2))
