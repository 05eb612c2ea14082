"""Weights that depend on a seed and on nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from seepage.zoo.arguments import whole


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Make everything drawn inside the block a function of the seed, and leave no trace.

    Example:
        >>> with seeded(3):
        ...     first = torch.nn.Linear(2, 2).weight
        >>> with seeded(3):
        ...     second = torch.nn.Linear(2, 2).weight
        >>> torch.equal(first, second)
        True
    """
    whole("seed", seed, at_least=0)
    # On the CPU, so that a seed means the same weights whatever the caller's default device, and
    # through the CPU generator alone: torch.manual_seed would also reseed the caller's GPUs.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield
