"""Normal noise as a pure function of a seed, a step and a place.

A generator would have to be saved with a run and cannot be replayed inside a CUDA graph; a hash of
a counter needs no state, and gives the same numbers on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _signed(word: int) -> int:
    """A 64-bit word as torch's signed integers hold it."""
    return (word + 2**63) % 2**64 - 2**63


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def normal_noise(seeds: Tensor, step: Tensor, size: int) -> Tensor:
    """Standard normal numbers `(R, size)` in double precision, by Box and Muller's method.

    Args:
        seeds: One 64-bit integer per row, `(R, 1)`.
        step: A counter, a scalar.
        size: Numbers per row.

    References:
        Steele et al., 2014 (steele2014fast)
    """
    key = scrambled(seeds + scrambled(step.to(torch.int64) * _GOLDEN))
    bits = stream(key, size)
    # Halves of one word; the half added keeps the logarithm finite.
    first = (_shifted(bits, 32).double() + 0.5) * 2.0**-32
    second = (bits & (2**32 - 1)).double() * 2.0**-32
    return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()


def row_seeds(points: Tensor, seed: int) -> Tensor:
    """A seed for each row `(R, 1)`, made of the row itself.

    So a row meets the same noise alone, among others, and in single or double precision. Equal
    rows are told apart by their order.
    """
    # Adding zero makes minus zero plus zero.
    bits = (points.float() + 0.0).view(torch.int32).long()
    content = scrambled(bits + stream(torch.zeros_like(bits[:, :1]), bits.shape[1])).sum(1)
    earlier = (content.unsqueeze(1) == content).tril(-1).sum(1)
    own = scrambled(content + _signed(seed)) + earlier * _GOLDEN
    return scrambled(own).unsqueeze(1)


def stream(key: Tensor, size: int) -> Tensor:
    """The first `size` words of SplitMix64 seeded with each key `(R, 1)`."""
    count = torch.arange(1, size + 1, device=key.device)
    return scrambled(key + count * _GOLDEN)


def scrambled(word: Tensor) -> Tensor:
    """SplitMix64's bijection of 64-bit integers; products wrap around."""
    word = (word ^ _shifted(word, 30)) * _FIRST
    word = (word ^ _shifted(word, 27)) * _SECOND
    return word ^ _shifted(word, 31)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """Shift right, filling with zeros where torch fills with the sign."""
    return torch.bitwise_and(word >> bits, 2 ** (64 - bits) - 1)
