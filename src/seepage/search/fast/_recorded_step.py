"""A pure function of tensors as a list of operations, recorded once and replayed without autograd.

A step of a search differentiates twice and then calls some hundred small operations. On a CPU the
bookkeeping around them takes as long as the operations themselves. The recorded list holds only
what depends on the arguments:

- What is computed from constants alone, such as the norm of the observed update, is computed once.
- Views of views become one view, and what only passes a tensor on disappears.
- An operation that occurs twice on the same tensors runs once, and one without use never.

Recording takes as long as a few steps. A function that changes its arguments, draws a random
number, or reads a number to decide what to do next is refused. Autograd adds gradients in place;
the list holds a sum instead, and other views of what was written may not be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, MethodDescriptorType, NoneType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

_ATEN = torch.ops.aten
# The most operations that are worth writing down: a hundred local steps have 100 000.
_MOST_OPERATIONS = 30_000
# They return what they are given, and are views although their signature does not say so.
_COPIES = (_ATEN.clone.default, _ATEN._to_copy.default, _ATEN._unsafe_view.default)
_JOINS = (_ATEN.stack.default, _ATEN.cat.default)
_BY_ONE = (_ATEN.mul.Tensor, _ATEN.mul.Scalar, _ATEN.div.Tensor, _ATEN.div.Scalar)
_BY_ZERO = (_ATEN.add.Tensor,)
# Their result does not depend on the numbers in their arguments.
_MAKERS = (
    *(_ATEN.ones_like.default, _ATEN.zeros_like.default, _ATEN.full_like.default),
    *(_ATEN.new_zeros.default, _ATEN.new_ones.default, _ATEN.new_full.default),
)
_READS_A_NUMBER = _ATEN._local_scalar_dense.default
# Its last argument says which gradients it computes.
_CONVOLUTION_BACKWARD = _ATEN.convolution_backward.default
_LITERALS = (int, bool, NoneType)

# Operations of torch, and what they are called with, have no types.
_Operation = Any
_Given = Any
Flat = Callable[..., Sequence[Tensor]]


class _Unrecordable(Exception):  # noqa: N818 - not an error: the function runs as it is
    """The function does something that a list of operations cannot repeat."""


@dataclass(frozen=True)
class _Line:
    """One line of the program: `name = text`, which reads the names in `used`."""

    name: str
    text: str
    used: tuple[str, ...]


@dataclass(eq=False)
class _Storage:
    """One piece of memory: the first name of it, and a name for every view, by its form."""

    name: str
    is_contiguous: bool
    numel: int
    views: dict[tuple[object, ...], str] = field(default_factory=dict)
    overwritten: bool = False


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the operations that depend on the arguments.

    A tensor without a place is a constant. So whatever is computed from constants is one too.
    """

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[_Line] = []
        self.known: dict[str, object] = {}
        self.held: list[object] = []
        self.masked: set[str] = set()
        self._held_names: dict[int, str] = {}
        self._texts: dict[str, str] = {}
        self._places = WeakTensorKeyDictionary()
        for number, tensor in enumerate(arguments):
            self._place(tensor, f"s{number}")

    def __torch_dispatch__(
        self, operation: _Operation, types: object, arguments: _Given = (), options: _Given = None
    ) -> object:
        options = options or {}
        writes = operation._schema.is_mutable
        depends = self._depends(operation, arguments, options)
        text = self._write_over(operation, arguments, options) if writes and depends else None
        result = operation(*arguments, **options)
        if text is not None:
            self._place(arguments[0], text)
        elif depends:
            self._note(operation, arguments, options, result)
        return result

    def reference(self, tensor: Tensor) -> str:
        """The name of a tensor: of what is computed, or of a constant."""
        if tensor not in self._places:
            return self._hold(tensor)
        name, memory = self._places[tensor]
        if memory.overwritten:
            raise _Unrecordable("it reads a view of a tensor that was written to")
        return str(name)

    def _depends(self, operation: _Operation, arguments: _Given, options: _Given) -> bool:
        """Whether the result depends on the arguments of the function."""
        if torch.Tag.nondeterministic_seeded in operation.tags:
            raise _Unrecordable(f"{operation} is random")
        given = [*_tensors(arguments), *_tensors(options.values())]
        if operation in _MAKERS or not any(tensor in self._places for tensor in given):
            return False
        if operation is _READS_A_NUMBER:
            raise _Unrecordable("it reads a number of a tensor, which may differ the next time")
        return True

    def _write_over(self, operation: _Operation, arguments: _Given, options: _Given) -> str:
        """Write an operation in place as the one that makes a new tensor."""
        written = [one.name for one in operation._schema.arguments if one.is_write]
        name = operation._schema.name.removeprefix("aten::").removesuffix("_")
        pure = getattr(getattr(_ATEN, name, None), operation._overloadname, None)
        if written != ["self"] or pure is None:
            raise _Unrecordable(f"{operation} writes into a tensor")
        into, *others = arguments
        if into not in self._places:
            # A constant until now, with the numbers that it has before the operation.
            return self._write(pure, [into.clone(), *others], options)
        memory = self._places[into][1]
        if memory.name.startswith("s"):
            raise _Unrecordable(f"{operation} writes into an argument")
        text = self._write(pure, arguments, options)
        memory.overwritten = True
        return text

    def _note(
        self, operation: _Operation, arguments: _Given, options: _Given, result: _Given
    ) -> None:
        source = next(t for t in _tensors(arguments) if t in self._places)
        if isinstance(result, Tensor):
            if self._passes_on(operation, arguments, options, source, result):
                return
            self._place(result, self._write(operation, arguments, options))
            return
        several = None
        if operation is _CONVOLUTION_BACKWARD:
            self.masked.add(self._write(operation, arguments, options))
        for number, part in enumerate(result):
            if not isinstance(part, Tensor):
                continue
            if _is_view(operation) and self._reuse(source, part):
                continue
            several = several or self._write(operation, arguments, options)
            name = self._add(f"{several}[{number}]", (several,))
            self._place(part, name, self._places[source][1] if _is_view(operation) else None)

    def _passes_on(
        self,
        operation: _Operation,
        arguments: _Given,
        options: _Given,
        source: Tensor,
        result: Tensor,
    ) -> bool:
        """Give the result the place of what it repeats; whether there is such a thing."""
        if _is_view(operation):
            if self._reuse(source, result):
                return True
            name = self._write(operation, arguments, options)
            self._place(result, name, self._places[source][1])
            return True
        alone = operation in _JOINS and len(arguments[0]) == 1
        copies = alone or operation in _COPIES
        # An option may scale an argument before it is added.
        neutral = not copies and not options and self._is_neutral(operation, arguments)
        return (copies or neutral) and self._repeat(source, result)

    def _is_neutral(self, operation: _Operation, arguments: _Given) -> bool:
        """Whether one argument is the neutral element of the operation."""
        if operation in _BY_ZERO:
            return any(self._is_constant(a) and not bool(a.any()) for a in arguments)
        if operation not in _BY_ONE:
            return False
        others = arguments if operation is _ATEN.mul.Tensor else arguments[1:]
        for other in others:
            number = other
            if self._is_constant(other) and other.numel() == 1:
                number = other.item()
            if isinstance(number, int | float) and number == 1:
                return True
        return False

    def _is_constant(self, argument: object) -> bool:
        return isinstance(argument, Tensor) and argument not in self._places

    def _repeat(self, source: Tensor, result: Tensor) -> bool:
        """Let the result be the source, in memory of its own, if it has the same entries."""
        plain = source.is_contiguous() and result.is_contiguous()
        same = (result.shape, result.stride()) == (source.shape, source.stride())
        if result.dtype != source.dtype or result.numel() != source.numel() or not (same or plain):
            return False
        name = self.reference(source)
        if result.shape != source.shape:
            name = self._view(name, result)
        self._place(result, name)
        return True

    def _reuse(self, source: Tensor, result: Tensor) -> bool:
        """Give a view the name of an earlier view of the same form, or make it one view."""
        self.reference(source)
        if result.dtype != source.dtype:
            return False
        memory = self._places[source][1]
        form = _form(result)
        name = memory.views.get(form)
        if name is None:
            plain = result.is_contiguous() and memory.is_contiguous
            if not plain or result.numel() != memory.numel:
                return False
            name = self._view(memory.name, result)
            memory.views[form] = name
        self._places[result] = (name, memory)
        return True

    def _view(self, name: str, result: Tensor) -> str:
        sides = ", ".join(map(str, result.shape)) or "()"
        return self._add(f"{name}.view({sides})", (name,))

    def _place(self, tensor: Tensor, name: str, memory: _Storage | None = None) -> None:
        if memory is None:
            memory = _Storage(name, tensor.is_contiguous(), tensor.numel())
        memory.views[_form(tensor)] = name
        self._places[tensor] = (name, memory)

    def _write(self, operation: _Operation, arguments: _Given, options: _Given) -> str:
        if operation is _ATEN.mm.default and arguments[0].shape[1] == 1:
            # The weight gradient of one example: a product of matrices takes four times as long.
            operation = _ATEN.mul.Tensor
        used: list[str] = []
        texts = [self._text(argument, used) for argument in arguments]
        texts += [f"{key}={self._text(value, used)}" for key, value in options.items()]
        call = f"({', '.join(texts)})"
        key = f"{operation}{call}"
        if key not in self._texts:
            quick = self._hold(_quickest(operation, arguments, options))
            self._texts[key] = self._add(quick + call, tuple(used))
        return self._texts[key]

    def _add(self, text: str, used: tuple[str, ...]) -> str:
        if text not in self._texts:
            if len(self.lines) > _MOST_OPERATIONS:
                raise _Unrecordable(f"it has more than {_MOST_OPERATIONS} operations")
            name = self._texts[text] = f"t{len(self.lines)}"
            self.lines.append(_Line(name, text, used))
        return self._texts[text]

    def _text(self, argument: _Given, used: list[str]) -> str:
        if isinstance(argument, Tensor):
            name = self.reference(argument)
            used.append(name)
            return name
        if isinstance(argument, list | tuple):
            return f"[{', '.join(self._text(one, used) for one in argument)}]"
        if isinstance(argument, _LITERALS):
            return repr(argument)
        return self._hold(argument)

    def _hold(self, what: object) -> str:
        """Name something that stays the same from call to call."""
        # By value, where it has one: numbers and types of numbers.
        plain = isinstance(what, float | torch.dtype | torch.device | str)
        key = hash((type(what), repr(what))) if plain else id(what)
        if key not in self._held_names:
            name = self._held_names[key] = f"h{len(self.held)}"
            self.held.append(what)
            self.known[name] = what
        return self._held_names[key]


def _quickest(operation: _Operation, arguments: _Given, options: _Given) -> Callable[..., Any]:
    """The function of the same name in torch, called in half the time, if it does the same."""
    name = operation._schema.name.removeprefix("aten::")
    plain = getattr(torch, name, None)
    # What is written in Python may do more.
    if not isinstance(plain, BuiltinFunctionType):
        plain = getattr(Tensor, name, None)
    if isinstance(plain, BuiltinFunctionType | MethodDescriptorType):
        try:
            pairs = zip(
                _tensors([plain(*arguments, **options)]),
                _tensors([operation(*arguments, **options)]),
                strict=True,
            )
            if all(_are_same(ours, theirs) for ours, theirs in pairs):
                return plain
        except (TypeError, ValueError, RuntimeError):
            pass
    general: Callable[..., Any] = operation._op
    return general


def _are_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same form and the same numbers, NaN where the other has NaN."""
    if (one.shape, one.stride(), one.dtype) != (other.shape, other.stride(), other.dtype):
        return False
    return bool(((one == other) | (one != one)).all())


def _tensors(arguments: _Given) -> Iterator[Tensor]:
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, list | tuple):
            yield from _tensors(argument)


def _is_view(operation: _Operation) -> bool:
    return any(one.alias_info is not None for one in operation._schema.returns)


def _form(tensor: Tensor) -> tuple[object, ...]:
    """Where the entries of a tensor lie; the strides of axes of length one say nothing."""
    if tensor.is_contiguous():
        return tensor.shape, "contiguous", tensor.storage_offset()
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.shape, tuple(s for n, s in strides if n > 1), tensor.storage_offset()


def record(function: Flat, arguments: Sequence[Tensor]) -> Flat:
    """Record a function at these arguments; the result is for arguments of the same shapes.

    The function takes and returns tensors, and is pure.
    """
    recorder = _Recorder(arguments)
    with recorder:
        results = function(*arguments)
    returned = [recorder.reference(tensor) for tensor in results]
    takes = [f"s{n}" for n in range(len(arguments))]
    source = _write_program(recorder.lines, takes, returned, recorder.masked)
    names: dict[str, Any] = dict(recorder.known)
    exec(compile(source, "<recorded step>", "exec"), names)
    program: Flat = names["program"]
    return program


def _write_program(
    lines: Sequence[_Line], arguments: list[str], returned: list[str], masked: Container[str]
) -> str:
    """Write a function of the lines that are needed, which forgets a tensor after its last use.

    Of convolutions differentiated, those in `masked`, only the gradients that are used are
    computed: nobody asks for the input gradient of the first layer.
    """
    needed, kept, texts = set(returned), [], set()
    for line in reversed(lines):
        if line.name not in needed:
            continue
        texts.add(line.text)
        text = line.text
        if line.name in masked:
            wanted = [f"{line.name}[{number}]" in texts for number in range(3)]
            text = f"{text[: text.rindex('[')]}{wanted})"
        last = [name for name in dict.fromkeys(line.used) if name not in needed and name[0] == "t"]
        needed.update(line.used)
        forget = "".join(f"; {name} = None" for name in last)
        kept.append(f"    {line.name} = {text}{forget}")
    kept.append(f"def program({', '.join(arguments)}):")
    return "\n".join([*reversed(kept), f"    return [{', '.join(returned)}]"])
