"""Layers that are cheaper to differentiate twice than torch's own."""

from __future__ import annotations

import copy
from typing import cast

import torch
from torch import Tensor, nn

from seepage.core import Task
from seepage.search.fast._row_kernels import Context, Geometry, convolution_gradients, convolve
from seepage.search.fast._row_layers import Replacement


def use_double_backward(task: Task) -> Task:
    """Replace layers by ones that are cheaper to differentiate twice than torch's own.

    torch differentiates the gradient of a convolution by convolutions whose kernels are as large as
    the image, and batch normalisation by known statistics in a dozen passes over the activations.
    Both have a form that costs no more than the first differentiation. Unlike row layers, these may
    have weights that depend on the inputs, as they do after a local step.
    """
    model = copy.deepcopy(task.model)
    for name, module in list(model.named_modules()):
        cheaper = _cheaper_layer(module, task)
        if cheaper is not None and name:
            model.set_submodule(name, cheaper)
    return Task(model, task.loss, task.domain, task.mode, task.name, task.target_shape)


def _cheaper_layer(module: nn.Module, task: Task) -> nn.Module | None:
    # Exact types: a subclass may do anything in its forward pass.
    if type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        layer = cast(nn.Conv2d, module)
        plain = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return Convolution(layer) if plain else None
    known = task.mode == "eval" and getattr(module, "running_mean", None) is not None
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and known and module.affine:
        return _KnownStatistics(module)
    return None


class Convolution(Replacement):
    """A convolution with zero padding."""

    def __init__(self, layer: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        super().__init__(layer)
        padding = cast(tuple[int, ...], layer.padding)
        self.geometry, self.groups = Geometry(layer.stride, padding, layer.dilation), layer.groups

    def forward(self, inputs: Tensor) -> Tensor:
        """Convolve, then shift the channels."""
        outputs: Tensor = _DoubleForward.apply(inputs, self.weight, self.geometry, self.groups)  # type: ignore[no-untyped-call]
        return outputs if self.bias is None else outputs + _per_channel(self.bias, outputs)


class _KnownStatistics(Replacement):
    """Batch normalisation by running statistics: a scale and a shift of every channel."""

    bias: Tensor
    inverse: Tensor
    offset: Tensor

    def __init__(self, layer: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__(layer)
        self.keep_statistics(layer)

    def forward(self, inputs: Tensor) -> Tensor:
        """Scale and shift."""
        scale = _per_channel(self.weight * self.inverse, inputs)
        shift = _per_channel(torch.addcmul(self.bias, self.weight, self.offset), inputs)
        return torch.addcmul(shift, inputs, scale)


def _per_channel(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.ndim - 2))


class _DoubleForward(torch.autograd.Function):
    """conv(x, w)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, weight: Tensor, geometry: Geometry, groups: int) -> Tensor:
        return convolve(inputs, weight, geometry, groups)

    @staticmethod
    def setup_context(
        ctx: Context, inputs: tuple[Tensor, Tensor, Geometry, int], output: Tensor
    ) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.geometry, ctx.groups = inputs[2:]

    @staticmethod
    def backward(ctx: Context, slopes: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            both = _DoubleBackward.apply(slopes, inputs, weight, ctx.geometry, ctx.groups)  # type: ignore[no-untyped-call]
            return *both, None, None
        wanted = ctx.needs_input_grad[:2]
        both = convolution_gradients(slopes, inputs, weight, ctx.geometry, wanted, ctx.groups)
        return *both, None, None


class _DoubleBackward(torch.autograd.Function):
    """The gradients of conv(x, w) by x and by w; each is bilinear, and so are its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        slopes: Tensor, inputs: Tensor, weight: Tensor, geometry: Geometry, groups: int
    ) -> tuple[Tensor | None, ...]:
        return convolution_gradients(slopes, inputs, weight, geometry, (True, True), groups)

    @staticmethod
    def setup_context(
        ctx: Context,
        inputs: tuple[Tensor, Tensor, Tensor, Geometry, int],
        output: tuple[Tensor, ...],
    ) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.geometry, ctx.groups = inputs[3:]
        # Nobody asks for the input gradient of the first layer.
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Context, on_inputs: Tensor | None, on_weight: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        slopes, inputs, weight = ctx.saved_tensors
        geometry, groups = ctx.geometry, ctx.groups
        to_slopes = to_inputs = to_weight = None
        if on_weight is not None:
            to_slopes = convolve(inputs, on_weight, geometry, groups)
            to_inputs, _ = convolution_gradients(
                slopes, inputs, on_weight, geometry, (True, False), groups
            )
        if on_inputs is not None:
            through = convolve(on_inputs, weight, geometry, groups)
            to_slopes = through if to_slopes is None else to_slopes + through
            if ctx.needs_input_grad[2]:
                _, to_weight = convolution_gradients(
                    slopes, on_inputs, weight, geometry, (False, True), groups
                )
        return to_slopes, to_inputs, to_weight, None, None
