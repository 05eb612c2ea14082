"""A step of a search as a list of operations, replayed or compiled.

A step differentiates twice. Once recorded, it needs no autograd: the same operations run in the
same order without the bookkeeping, which takes half of the time of a small network on a CPU.

torch's compiler cannot handle a step that differentiates twice, but it can compile the traced one.
Activations are then read and written far less often, which dominates a step of many rows.

Four things must be rewritten before a traced step compiles well. Tensors that the program holds
become inputs. Views become reshapes, since the compiler may choose another memory layout. A sum
that scales its second part is split, since the compiler loses the scale when it fuses the sum with
a matrix product. Gradients of convolutions get a fixed memory layout that the compiler knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from seepage.core._device import precision
from seepage.search.fast._recorded_step import record

if TYPE_CHECKING:
    from seepage.search._runner import State

log = logging.getLogger("seepage.engine")

_ATEN = torch.ops.aten
_DETACH = _ATEN.detach.default
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default)
_SUMS = (_ATEN.add.Tensor, _ATEN.sub.Tensor)
_SCHEMA = (
    "(Tensor slopes, Tensor inputs, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, "
    "SymInt groups, bool[3] output_mask) -> (Tensor, Tensor, Tensor)"
)

# Compiling takes about a second per hundred operations; a hundred local steps have 100 000.
_MOST_OPERATIONS = 20_000

Gradients = tuple[Tensor, Tensor, Tensor]
Flat = Callable[..., Sequence[Tensor]]


@torch.library.custom_op("seepage::convolution_backward", mutates_args=(), schema=_SCHEMA)
def _convolution_backward(*arguments: object) -> Gradients:
    """The library's gradients, each with the memory layout of what it is the gradient of."""
    found: tuple[Tensor | None, ...] = _ATEN.convolution_backward(*arguments)
    pairs = zip(_empty_gradients(*arguments), found, strict=True)
    return cast(Gradients, tuple(_copy_layout(like, gradient) for like, gradient in pairs))


@_convolution_backward.register_fake
def _empty_gradients(*arguments: object) -> Gradients:
    """Empty tensors with the shapes and layouts of the gradients, of size 0 if not wanted."""
    slopes, inputs, weight = cast(Gradients, arguments[:3])
    likes = (inputs, weight, weight.new_empty(slopes.shape[1]))
    pairs = zip(likes, cast(list[bool], arguments[-1]), strict=True)
    empty = (torch.empty_like(like) if wanted else like.new_empty(0) for like, wanted in pairs)
    return cast(Gradients, tuple(empty))


def _copy_layout(like: Tensor, tensor: Tensor | None) -> Tensor:
    if tensor is None:
        return like
    return tensor if tensor.stride() == like.stride() else like.copy_(tensor)


def _fit_to_compiler(program: GraphModule) -> list[Tensor]:
    """Rewrite a program for the compiler; return the tensors it held, now its last arguments."""
    graph = program.graph
    for node in list(graph.nodes):
        if node.target in _VIEWS:
            node.target = _ATEN.reshape.default
        elif node.target in _SUMS and "alpha" in node.kwargs:
            _split_scale(graph, node)
        elif node.target == _ATEN.convolution_backward.default:
            node.target = torch.ops.seepage.convolution_backward.default
    constants = _lift_constants(program)
    program.recompile()
    return constants


def _split_scale(graph: Graph, node: Node) -> None:
    first, second = node.args
    with graph.inserting_before(node):
        scaled = graph.call_function(_ATEN.mul.Tensor, (second, node.kwargs["alpha"]))
    node.args, node.kwargs = (first, scaled), {}


def _lift_constants(program: GraphModule) -> list[Tensor]:
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


def trace_step(advance: Callable[[State], State], state: State) -> Callable[[State], State] | None:
    """Record a step and replay it, to the bit; if that fails, log why and return None.

    The result is for states of the same shapes.
    """

    def flat(*tensors: Tensor) -> list[Tensor]:
        return advance(state.of(list(tensors))).tensors()

    try:
        # Tried at the next state: here a number that was taken for a constant would not show.
        after = advance(state)
        program = record(flat, state.tensors())
    except Exception as error:  # noqa: BLE001 - the step can still run as it is
        log.info("not replaying the step: %s: %s", type(error).__name__, first_line(error))
        return None

    def step(at: State) -> State:
        # Like no_grad, but torch does not even look whether there is something to differentiate.
        with torch._C._AutoDispatchBelowAutograd():
            return at.of(list(program(*at.tensors())))

    pairs = zip(step(after).tensors(), advance(after).tensors(), strict=True)
    if not all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs):
        log.info("not replaying the step: replayed it gives other numbers")
        return None
    return step


def _trace(advance: Callable[[State], State], state: State) -> GraphModule:
    """Trace the operations of a step, from the tensors of a state to those of the next."""

    def flat(*tensors: Tensor) -> list[Tensor]:
        return advance(state.of(list(tensors))).tensors()

    tensors = state.tensors()
    flat(*tensors)  # so that nothing that is made on first use is traced
    program: GraphModule = make_fx(flat)(*tensors)
    for node in program.graph.nodes:
        if node.target == _DETACH:
            node.replace_all_uses_with(node.args[0])
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def first_line(error: Exception) -> str:
    """The first line of an error message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def compile_step(
    advance: Callable[[State], State], state: State
) -> Callable[[State], State] | None:
    """Compile a step; if that fails, log why and return None."""
    try:
        step = _compile(advance, state)
        if step is None or _agree(advance, step, state):
            return step
    except Exception as error:  # noqa: BLE001 - the step can still run as it is
        log.info("not fusing the step: %s: %s", type(error).__name__, first_line(error))
        return None
    log.info("not fusing the step: compiled it gives other numbers")
    return None


def _compile(advance: Callable[[State], State], state: State) -> Callable[[State], State] | None:
    program, tensors = _trace(advance, state), state.tensors()
    if len(program.graph.nodes) > _MOST_OPERATIONS:
        log.info("not fusing a step of %d operations", len(program.graph.nodes))
        return None
    constants = _fit_to_compiler(program)
    with torch.no_grad(), _cache_on_disk():
        compiled: Flat = torch._inductor.compile(program, [*tensors, *constants])

    def step(at: State) -> State:
        with torch.no_grad():
            return at.of(list(compiled(*at.tensors(), *constants)))

    return step


@contextmanager
def _cache_on_disk() -> Iterator[None]:
    """Let the compiler cache its result on disk: it must be told that shapes are fixed."""
    # Slow to import, and few runs are compiled.
    from torch._guards import TracingContext, tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True, allow_non_fake_inputs=True)
    with tracing(TracingContext(mode)):
        yield


def _agree(
    plain: Callable[[State], State], compiled: Callable[[State], State], state: State
) -> bool:
    """Whether both steps give the same objective and move almost all entries alike.

    Not all, since rounding decides the sign of a gradient that is nearly zero.
    """
    # In full precision, since a deep network amplifies the rounding of TF32.
    with precision("float32"):
        ours, theirs = compiled(state), plain(state)
    at = int(state.step)
    apart = (ours.values[at] - theirs.values[at]).abs()
    same = bool((apart <= 1e-3 * theirs.values[at].abs() + 1e-6).all())
    moved = (theirs.points - state.points).abs().mean()
    return same and bool((ours.points - theirs.points).abs().mean() <= 0.02 * moved)
