"""Random numbers of somebody else's code, drawn without touching what other threads draw."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class PrivateDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets this thread draw from copies of torch's generators, which all threads share.

    The copies are made at the first draw, so the numbers are those that would be drawn otherwise.

    Args:
        seed: Begins every generator with this seed instead.

    Attributes:
        drew: Whether anything was drawn.

    Example:
        >>> before = torch.get_rng_state()
        >>> with PrivateDraws(seed=3) as draws:
        ...     drawn = torch.randn(2)
        >>> torch.equal(torch.get_rng_state(), before), draws.drew
        (True, True)
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drew = False
        self._seed = seed
        self._own: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        """Run one operation of torch."""
        del types
        given = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags or given.get("generator") is not None:
            return func(*args, **given)
        shared = _find_generator((*args, *given.values()))
        if shared.device not in self._own:
            self._own[shared.device] = self._begin(shared)
        own = self._own[shared.device]
        before, drawing = own.get_state(), _find_overload(func)
        if drawing is not None:
            drawn = drawing(*args, **{**given, "generator": own})
        else:
            # Such as the dropout inside cuDNN's recurrent layers: lend it the shared one.
            kept = shared.get_state()
            shared.set_state(before)
            try:
                drawn = func(*args, **given)
            finally:
                own.set_state(shared.get_state())
                shared.set_state(kept)
        # Fused attention draws only if it drops out.
        self.drew |= not torch.equal(before, own.get_state())
        return drawn

    def _begin(self, shared: torch.Generator) -> torch.Generator:
        own = torch.Generator(shared.device)
        if self._seed is not None:
            return own.manual_seed(self._seed)
        own.set_state(shared.get_state())
        return own


def _find_generator(values: tuple[object, ...]) -> torch.Generator:
    """The shared generator of the device on which an operation runs."""
    device = next((v.device for v in values if isinstance(v, Tensor)), None)
    device = device or next((v for v in values if isinstance(v, torch.device)), None)
    if device is None or device.type != "cuda":
        return torch.default_generator
    number = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[number]


def _find_overload(func: Any) -> Any:  # noqa: ANN401
    """The operation, or its form that takes a generator; None if there is none."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    plain = func._overloadname == "default"
    name = "generator" if plain else f"{func._overloadname}_generator"
    return getattr(func.overloadpacket, name, None)


@contextmanager
def private_draws(*, again: bool = False) -> Iterator[PrivateDraws]:
    """Draw from `PrivateDraws` inside, and leave what Python and numpy draw as it was.

    Drawing `again` gives other numbers.
    """
    with restored_draws() as alone, PrivateDraws(seed=1 if again else None) as draws:
        if again and alone:
            random.seed(1)
            np.random.seed(1)
        yield draws


@contextmanager
def restored_draws() -> Iterator[bool]:
    """Restore the generators of Python and numpy after the block, unless another thread runs.

    That one may have drawn meanwhile, and would draw the same again. Says whether there is none.
    """
    plain, arrays = random.getstate(), np.random.get_state()
    alone = threading.active_count() == 1
    try:
        yield alone
    finally:
        if alone:
            random.setstate(plain)
            np.random.set_state(arrays)
