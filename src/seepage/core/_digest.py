"""Content hashes: equal for equal content, in every process and on every machine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from itertools import chain
from types import CellType, FunctionType

import torch
from torch import Tensor, nn

LENGTH = 24


def digest(*parts: str | Tensor) -> str:
    """Hash words and tensors, in this order.

    Example:
        >>> digest("a", torch.zeros(2)) == digest("a", torch.zeros(2))
        True
        >>> digest("a", torch.zeros(2)) == digest("a", torch.zeros(1, 2))
        False
    """
    state = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            plain = part.detach().cpu().contiguous()
            part = f"{plain.dtype} {tuple(plain.shape)}"
            # A single entry of a larger tensor keeps its stride, which a view of bytes cannot have.
            flat = plain.as_strided((plain.numel(),), (1,))
            state.update(flat.view(torch.uint8).numpy().data)
        # Each word ends in its length, so that "ab", "c" differs from "a", "bc".
        state.update(f"{part}{len(part):08d}".encode())
    return state.hexdigest()[:LENGTH]


def stable_repr(value: object) -> str:
    """Return the `repr` without addresses of functions, which differ from run to run.

    Example:
        >>> stable_repr(digest)
        '<function digest>'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def content(value: object) -> Iterator[str | Tensor]:
    """Yield all that decides what a network or a loss computes, as words and tensors.

    A `repr` shows neither weights, nor which of them are trained, nor the closure and defaults of a
    function. Globals of a function are not seen here either.

    Example:
        >>> def times(factor):
        ...     return lambda x: factor * x
        >>> digest(*content(times(2))) == digest(*content(times(2)))
        True
        >>> digest(*content(times(2))) == digest(*content(times(3)))
        False
    """
    return _content(value, frozenset())


def _content(value: object, around: frozenset[int]) -> Iterator[str | Tensor]:
    if id(value) in around:
        return
    around |= {id(value)}
    match value:
        case Tensor():
            yield value
        case nn.Module():
            yield from _network(value)
        case FunctionType():
            given = (
                *map(_open_cell, value.__closure__ or ()),
                value.__defaults__,
                value.__kwdefaults__,
            )
            yield stable_repr(value)
            yield from chain.from_iterable(_content(one, around) for one in given)
        case partial():
            held = (value.func, value.args, value.keywords)
            yield from chain.from_iterable(_content(one, around) for one in held)
        case tuple() | list():
            yield from chain.from_iterable(_content(one, around) for one in value)
        case dict():
            yield from chain.from_iterable(_content(pair, around) for pair in value.items())
        case _ if is_dataclass(value):
            yield type(value).__qualname__
            parts = [getattr(value, one.name) for one in fields(value)]
            yield from chain.from_iterable(_content(one, around) for one in parts)
        case _:
            yield stable_repr(value)


def _network(model: nn.Module) -> Iterator[str | Tensor]:
    yield stable_repr(model)
    yield ", ".join(name for name, p in model.named_parameters() if p.requires_grad)
    state = model.state_dict()
    tensors = [(name, t) for name, t in state.items() if isinstance(t, Tensor)]
    unsaved = [(name, t) for name, t in model.named_buffers() if name not in state]
    yield from chain.from_iterable((*tensors, *unsaved))
    for name, module in model.named_modules():
        # Layers of torch show their settings in their repr; its losses and a user's own do not.
        loss = isinstance(module, nn.modules.loss._Loss)
        if loss or not type(module).__module__.startswith("torch."):
            yield name
            yield repr(sorted(pair for pair in vars(module).items() if _is_setting(*pair)))


def _is_setting(name: str, value: object) -> bool:
    """Whether an attribute of a module is a setting, the same on every machine."""
    if isinstance(value, tuple | list):
        return all(_is_setting(name, one) for one in value)
    # A path depends on the machine.
    path = isinstance(value, str) and ("/" in value or "\\" in value)
    public = not name.startswith("_") and name != "training"
    return public and not path and isinstance(value, bool | int | float | str | None)


def _open_cell(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None
