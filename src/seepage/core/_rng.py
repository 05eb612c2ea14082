"""Explicit randomness as a value.

A generator that is advanced by use makes results depend on the order of calls. `Rng` is a key
instead: the same key always gives the same draw, and `fork` derives independent keys by name.
So restart 3 starts from the same point whether it runs alone, in a chunk or on another machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue

# Tables and generators hold no larger numbers.
_LARGEST = 2**63


@dataclass(frozen=True, init=False, repr=False)
class Rng:
    """A key for random draws: a hash of a seed and of the names forked from it.

    A forked key holds its own hash and nothing else, so neither the seed, the key it was forked
    from nor any other fork can be computed from it.

    Draws are made on the CPU and moved, so that a key means the same numbers on every device; a key
    that is `on` a GPU draws other numbers there, much faster.

    Args:
        seed: Any whole number.

    Attributes:
        digest: The hash that decides every draw, in hexadecimal.
        device: Where draws are made.

    Example:
        >>> key = rng(0)
        >>> bool((key.normal((2,)) == key.normal((2,))).all())
        True
        >>> key.fork("client") == key.fork("adversary")
        False
    """

    digest: str
    device: str

    def __init__(self, seed: int) -> None:
        self._set(hashlib.sha256(repr((seed, ())).encode()).hexdigest(), "cpu")

    def __repr__(self) -> str:
        """Show enough of the hash to tell keys apart."""
        return f"Rng({self.digest[:16]})"

    def fork(self, *names: str | int) -> Rng:
        """Derive an independent key, from which this one cannot be computed."""
        digest = self.digest
        for name in names:
            digest = hashlib.sha256(f"{digest}{name!r}".encode()).hexdigest()
        return self._copy(digest, self.device)

    def on(self, device: torch.device | str) -> Rng:
        """Return the key that draws on this device: for training, not for results to compare."""
        return self._copy(self.digest, str(device))

    def generator(self) -> torch.Generator:
        """Return a fresh generator, seeded by the hash."""
        return torch.Generator(self.device).manual_seed(int(self.digest[:14], 16))

    def normal(self, shape: Sequence[int], like: Tensor | None = None) -> Tensor:
        """Draw standard normal numbers, like `like`, or float32 on the CPU."""
        return self._draw(torch.randn, shape, like)

    def uniform(self, shape: Sequence[int], like: Tensor | None = None) -> Tensor:
        """Draw numbers uniform in [0, 1), like `like`, or float32 on the CPU."""
        return self._draw(torch.rand, shape, like)

    def permutation(self, size: int) -> Tensor:
        """Draw a random order of `size` things."""
        return torch.randperm(size, generator=self.generator(), device=self.device).cpu()

    def _draw(
        self, draw: Callable[..., Tensor], shape: Sequence[int], like: Tensor | None
    ) -> Tensor:
        wide = {"dtype": torch.float64, "device": self.device}
        drawn = draw(tuple(shape), generator=self.generator(), **wide)
        return drawn.float().cpu() if like is None else drawn.to(like.device, like.dtype)

    def _copy(self, digest: str, device: str) -> Rng:
        key = object.__new__(Rng)
        key._set(digest, device)
        return key

    def _set(self, digest: str, device: str) -> None:
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "device", device)


def rng(seed: int) -> Rng:
    """Return the root key of a seed."""
    return Rng(seed)


def require_seed(seed: object) -> int:
    """Return a seed that records and the generators of torch hold, or raise `InvalidValue`.

    Example:
        >>> require_seed(-3)
        -3
        >>> require_seed(2**63)
        Traceback (most recent call last):
        seepage.core.errors.InvalidValue: expected a seed between -2**63 and 2**63, got a larger one
    """
    if not isinstance(seed, Integral) or isinstance(seed, bool):
        raise InvalidValue(f"expected seed to be a whole number, got {seed!r}")
    if abs(int(seed)) >= _LARGEST:
        raise InvalidValue("expected a seed between -2**63 and 2**63, got a larger one")
    return int(seed)


def require_key(*keys: object) -> None:
    """Refuse a seed or a generator in place of a key.

    Example:
        >>> require_key(0)
        Traceback (most recent call last):
        seepage.core.errors.InvalidValue: expected rng to be sp.rng(SEED), got 0
    """
    for key in keys:
        if not isinstance(key, Rng):
            raise InvalidValue(f"expected rng to be sp.rng(SEED), got {key!r}")
