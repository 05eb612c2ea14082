"""A traced step, made fit for the compiler.

Four things that run well as traced do not compile well. Tensors that the program holds are inputs
to the compiler. A view of one layout need not be one of the layout that it chooses. A sum that
scales its second part loses the scale where that part is a matrix product and the two are joined.
And the library lays out gradients of convolutions in its own way, which the compiler must know.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

_ATEN = torch.ops.aten
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default)
_SUMS = (_ATEN.add.Tensor, _ATEN.sub.Tensor)
_SCHEMA = (
    "(Tensor slopes, Tensor inputs, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
    "SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)

Gradients = tuple[Tensor, Tensor, Tensor]


@torch.library.custom_op("seepage::convolution_backward", mutates_args=(), schema=_SCHEMA)
def _convolution_backward(*arguments: object) -> Gradients:
    """The library's gradients, each laid out as what it is the gradient of."""
    found: tuple[Tensor | None, ...] = _ATEN.convolution_backward(*arguments)
    return cast(
        Gradients,
        tuple(
            like if gradient is None else _laid_out_as(like, gradient)
            for like, gradient in zip(_shapes(*arguments), found, strict=True)
        ),
    )


@_convolution_backward.register_fake
def _shapes(*arguments: object) -> Gradients:
    """Empty tensors of the shapes and layouts of the gradients; of nothing where none is wanted."""
    slopes, inputs, weight = cast(Gradients, arguments[:3])
    mask = cast(list[bool], arguments[-1])
    likes = (inputs, weight, weight.new_empty(slopes.shape[1]))
    return cast(
        Gradients,
        tuple(
            torch.empty_like(like) if wanted else like.new_empty(0)
            for like, wanted in zip(likes, mask, strict=True)
        ),
    )


def _laid_out_as(like: Tensor, tensor: Tensor) -> Tensor:
    return tensor if tensor.stride() == like.stride() else like.copy_(tensor)


def made_fit(program: GraphModule) -> list[Tensor]:
    """Rewrite a program for the compiler; return what it held, which it now takes after its own."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.target in _VIEWS:
            node.target = _ATEN.reshape.default
        elif node.target in _SUMS and "alpha" in node.kwargs:
            _scale_apart(graph, node)
        elif node.target == _ATEN.convolution_backward.default:
            node.target = torch.ops.seepage.convolution_backward.default
    constants = _lifted(program)
    program.recompile()
    return constants


def _scale_apart(graph: Graph, node: Node) -> None:
    first, second = node.args
    with graph.inserting_before(node):
        scaled = graph.call_function(_ATEN.mul.Tensor, (second, node.kwargs["alpha"]))
    node.args, node.kwargs = (first, scaled), {}


def _lifted(program: GraphModule) -> list[Tensor]:
    graph, constants = program.graph, []
    last = [node for node in graph.nodes if node.op == "placeholder"][-1]
    inputs: dict[str, Node] = {}
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        name = str(node.target)
        if name not in inputs:
            with graph.inserting_after(last):
                last = inputs[name] = graph.placeholder(f"held_{len(inputs)}")
            constants.append(getattr(program, name))
        node.replace_all_uses_with(inputs[name])
        graph.erase_node(node)
    return constants
