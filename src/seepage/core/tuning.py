"""Whether a card times the algorithms of a convolution before it takes one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tuning(wanted: bool) -> Iterator[None]:
    """Time them inside the block or not, and put it back afterwards.

    It pays where the same shapes come again thousands of times. It never happens where algorithms
    must be deterministic, nor on a CPU.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    cudnn.benchmark = wanted and not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        cudnn.benchmark = before
