"""A step of a search as a list of operations, replayed or compiled.

A step differentiates twice. Traced by running it once, it needs no autograd any more: the same
operations in the same order, without the bookkeeping, which for a small network on a CPU is a
fifth of the time.

torch's compiler cannot look into a step that differentiates twice, but it can compile the traced
one. Activations are then read and written far less often, which is where a step of many rows
spends its time.

Four things that run well as traced do not compile well. Tensors that the program holds are inputs
to the compiler. A view of one layout need not be one of the layout that it chooses. A sum that
scales its second part loses the scale where that part is a matrix product and the two are joined.
And the library lays out gradients of convolutions in its own way, which the compiler must know.
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

from seepage.core.device import precision

if TYPE_CHECKING:
    from seepage.search.runner import State

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


def fit_to_compiler(program: GraphModule) -> list[Tensor]:
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


def trace_step(advance: Callable[[State], State], state: State) -> Callable[[State], State] | None:
    """The same step to the bit, replayed; None, with a logged reason, where that fails.

    Args:
        advance: The pure step.
        state: One it can be tried on; the result is for states of the same shapes.
    """
    try:
        program = _program_of(advance, state)
    except Exception as error:  # noqa: BLE001 - what cannot be traced can be run as it is
        log.info("not replaying the step: %s: %s", type(error).__name__, first_line(error))
        return None

    def step(at: State) -> State:
        with torch.no_grad():
            return at.of(list(program(*at.tensors())))

    pairs = zip(step(state).tensors(), advance(state).tensors(), strict=True)
    if not all(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs):
        log.warning("not replaying the step: replayed it gives other numbers")
        return None
    return step


def _program_of(advance: Callable[[State], State], state: State) -> GraphModule:
    """The operations of a step, from the tensors of a state to those of the next."""

    def flat(*tensors: Tensor) -> list[Tensor]:
        return advance(state.of(list(tensors))).tensors()

    tensors = state.tensors()
    flat(*tensors)  # what is made on first use must not be traced
    program: GraphModule = make_fx(flat)(*tensors)
    for node in program.graph.nodes:
        if node.target == _DETACH:
            node.replace_all_uses_with(node.args[0])
    program.graph.eliminate_dead_code()
    program.recompile()
    return program


def first_line(error: Exception) -> str:
    """What an error says first; compilers say much more."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def compile_step(
    advance: Callable[[State], State], state: State
) -> Callable[[State], State] | None:
    """The same step compiled, or None, with a logged reason, where that fails.

    Args:
        advance: The pure step.
        state: One it can be tried on; the result is for states of the same shapes.
    """
    try:
        step = _compiled(advance, state)
        if step is None or _agree(advance, step, state):
            return step
    except Exception as error:  # noqa: BLE001 - whatever the compiler cannot do, the plain step can
        log.warning("not fusing the step: %s: %s", type(error).__name__, first_line(error))
        return None
    log.warning("not fusing the step: compiled it gives other numbers")
    return None


def _compiled(advance: Callable[[State], State], state: State) -> Callable[[State], State] | None:
    program, tensors = _program_of(advance, state), state.tensors()
    if len(program.graph.nodes) > _MOST_OPERATIONS:
        log.info("not fusing a step of %d operations", len(program.graph.nodes))
        return None
    constants = fit_to_compiler(program)
    with torch.no_grad(), _remembered():
        compiled: Flat = torch._inductor.compile(program, [*tensors, *constants])

    def step(at: State) -> State:
        with torch.no_grad():
            return at.of(list(compiled(*at.tensors(), *constants)))

    return step


@contextmanager
def _remembered() -> Iterator[None]:
    """Let the compiler keep what it makes on disk, for the next run of the same step.

    It does so only where it is told about shapes; all of ours are fixed.
    """
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
    """Whether a step from one state gives the same objective and moves almost everything alike.

    Not everything: the sign of a gradient that is nearly zero is a matter of rounding.
    """
    # In full precision: a deep network amplifies the rounding of TF32 too far to judge by.
    with precision("float32"):
        ours, theirs = compiled(state), plain(state)
    at = int(state.step)
    apart = (ours.values[at] - theirs.values[at]).abs()
    same = bool((apart <= 1e-3 * theirs.values[at].abs() + 1e-6).all())
    moved = (theirs.points - state.points).abs().mean()
    return same and bool((ours.points - theirs.points).abs().mean() <= 0.02 * moved)
