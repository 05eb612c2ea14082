"""Content hashes: what is the same has the same name, whoever computed it."""

from __future__ import annotations

import hashlib
import re

import torch
from torch import Tensor

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
            state.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        # Its length ends each word, lest "ab", "c" be "a", "bc".
        state.update(f"{part}{len(part):08d}".encode())
    return state.hexdigest()[:LENGTH]


def lasting(value: object) -> str:
    """A `repr` without the address that a function shows, which differs from run to run.

    Example:
        >>> lasting(digest)
        '<function digest>'
    """
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
