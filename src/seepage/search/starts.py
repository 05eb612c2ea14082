"""Starts of a search.

If labels are searched for, their logits are drawn from N(0, 1) by a separate key, so that the
inputs of a restart are the same whether labels are known or not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from seepage.core import Rng
from seepage.core.errors import InvalidValue, require_at_least, require_positive
from seepage.search.objective import Layout


class Start(Protocol):
    """A rule for the first point."""

    def __call__(self, layout: Layout, *, rng: Rng, like: Tensor) -> Tensor:
        """Return the first point `(D,)`, with the dtype and device of `like`."""


@dataclass(frozen=True)
class NormalStart:
    """Normal noise around zero, the mean input, in normalised coordinates.

    Args:
        spread: Its standard deviation; 1 in the papers. Less of it has to be searched away again.

    References:
        Zhu et al., 2019 (zhu2019deep); Geiping et al., 2020 (geiping2020inverting)
    """

    spread: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        require_positive(spread=self.spread)

    def __call__(self, layout: Layout, *, rng: Rng, like: Tensor) -> Tensor:
        """Draw every entry."""
        return _point(self.spread * rng.normal(layout.shape, like=like), layout, rng)


@dataclass(frozen=True)
class UniformStart:
    """Uniform within the bounds of the domain, in natural units: U(0, 1) for images.

    Deviations:
        Label logits are N(0, 1) as everywhere here; the paper draws them from U(0, 1) too.

    References:
        Qian and Hansen, 2020, Algorithm 2 (qian2020what)
    """

    def __call__(self, layout: Layout, *, rng: Rng, like: Tensor) -> Tensor:
        """Draw every entry."""
        natural = layout.domain.sample(layout.batch_size, rng=rng).to(like)
        return _point(layout.domain.normalise(natural), layout, rng)


@dataclass(frozen=True, eq=False, repr=False)
class WarmStart:
    """The inputs that another attack found.

    Args:
        inputs: The `inputs` of a `Reconstruction`, `(B, ...)`, in natural units.
        spread: Standard deviation of normal noise added in normalised coordinates, which makes
            restarts differ.

    Example:
        >>> WarmStart(torch.zeros(1, 1, 2, 2))
        WarmStart((1, 1, 2, 2), 66687aad, spread=0.0)
    """

    inputs: Tensor
    spread: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        require_at_least(0, spread=self.spread)

    def __repr__(self) -> str:
        """Name shape and content, so that records tell two warm starts apart."""
        content = self.inputs.detach().cpu().double().contiguous().numpy().tobytes()
        digest = hashlib.sha256(content).hexdigest()[:8]
        return f"WarmStart({tuple(self.inputs.shape)}, {digest}, spread={self.spread!r})"

    def __call__(self, layout: Layout, *, rng: Rng, like: Tensor) -> Tensor:
        """Normalise the inputs and add the noise."""
        if tuple(self.inputs.shape) != layout.shape:
            raise InvalidValue(
                f"expected a warm start of shape {layout.shape}, got {tuple(self.inputs.shape)}; "
                "was it found for another batch?"
            )
        normalised = layout.domain.normalise(self.inputs.detach().to(like))
        noise = rng.normal(layout.shape, like=like)
        return _point(normalised + self.spread * noise, layout, rng)


def generated_point(layout: Layout, *, rng: Rng) -> Tensor:
    """The start of a generator, joined with label logits if the layout has any."""
    assert layout.generated is not None
    return _point(layout.generated.start(rng=rng), layout, rng)


def _point(normalised: Tensor, layout: Layout, rng: Rng) -> Tensor:
    """Join the inputs with label logits, if the layout has any."""
    flat = normalised.flatten()
    count = layout.size - len(flat)
    return torch.cat([flat, rng.fork("labels").normal((count,), like=flat)]) if count else flat
