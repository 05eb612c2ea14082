"""The image prior: candidates are what an untrained network makes of fixed noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from seepage.attacks.unet import UNet
from seepage.core import Attack, Domain, Rng
from seepage.core.digest import digest
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.search.matching import GradientMatching
from seepage.search.optimisers import Adam

# Of noise that the network turns into images, as in deep image prior.
_CODES = 32
_SMALLEST = 4


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PriorNetwork:
    """An untrained U-Net whose weights are searched instead of pixels.

    One network makes the whole batch, each image of a code of noise that stays fixed and, where
    there are any, of its recovered features, which enter every residual block. Convolutions on
    several scales make natural images long before noise, so that the search meets them first. A
    sigmoid keeps pixels within their bounds.

    Args:
        width: Channels of the first level.
        multipliers: Channels of each level, in multiples of the width; images that cannot be
            halved so often have fewer levels.
        attention: Width in pixels of the level that has self-attention.
        features: `(B, d)`, scaled to unit mean square before they enter; None for none.

    Example:
        >>> PriorNetwork(width=8)
        PriorNetwork(width=8, multipliers=(1, 2, 2, 2), attention=16)

    Deviations:
        The paper names neither channels nor code. The coarsest level has attention between two
        more blocks in the middle, as in networks of this family.

    References:
        Liu et al., 2024, appendix F (liu2024systematic); Ulyanov et al., 2018 (ulyanov2018deep);
        Ronneberger et al., 2015 (ronneberger2015convolutional)
    """

    width: int = 64
    multipliers: tuple[int, ...] = (1, 2, 2, 2)
    attention: int = 16
    features: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the sizes."""
        object.__setattr__(self, "multipliers", tuple(self.multipliers))
        if self.width < 1 or not self.multipliers or min(self.multipliers) < 1:
            raise InvalidValue(
                f"expected width and multipliers >= 1, got {self.width!r} and {self.multipliers!r}"
            )

    def __repr__(self) -> str:
        """Name the content of the features: a record must tell two sets apart."""
        shown = f"width={self.width}, multipliers={self.multipliers}, attention={self.attention}"
        if self.features is not None:
            shown += f", features=({tuple(self.features.shape)}, {digest(self.features)[:8]})"
        return f"PriorNetwork({shown})"

    @property
    def informed(self) -> bool:
        """Whether it has features."""
        return self.features is not None

    def given(self, features: Tensor) -> PriorNetwork:
        """The same network with these features in every block."""
        return replace(self, features=features)

    def bind(self, batch_size: int, domain: Domain, *, like: Tensor) -> _PriorImages:
        """The network for one batch, with the dtype and device of `like`."""
        if len(domain.shape) != 3:
            raise NotApplicable(
                f"expected images (C, H, W) for a prior network, got inputs of {domain.shape}; "
                "search for the inputs themselves"
            )
        features = None if self.features is None else _scaled(self.features, batch_size, like)
        channels, *sides = domain.shape
        with torch.device("meta"):
            network = UNet(
                _CODES,
                channels,
                side=sides[1],
                widths=[self.width * m for m in self.multipliers[: _levels(sides)]],
                attention=self.attention,
                features=0 if features is None else features.shape[1],
            )
        codes = Rng(0).fork("codes").normal((batch_size, _CODES, *sides), like=like)
        return _PriorImages(network, codes, features, domain)


@dataclass(frozen=True, eq=False)
class _PriorImages:
    """A prior network for one batch; its weights are what is searched.

    Args:
        network: The architecture, without weights of its own.
        codes: `(B, codes, H, W)`.
        features: `(B, d)`, or `(R, B, d)` if every row has its own; None for none.
        domain: The space of the images.
    """

    network: nn.Module
    codes: Tensor
    features: Tensor | None
    domain: Domain

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """The shapes of the weights, in the order in which they are laid out."""
        return {name: p.shape for name, p in self.network.named_parameters()}

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum(shape.numel() for shape in self.shapes.values())

    def start(self, *, rng: Rng) -> Tensor:
        """Weights of variance one over the number of inputs, and norms and biases that do nothing.

        Drawn by name, so that a key means the same weights wherever it is used.
        """
        return torch.cat([self._drawn(name, shape, rng) for name, shape in self.shapes.items()])

    def __call__(self, points: Tensor) -> Tensor:
        """The normalised images `(..., B, C, H, W)` of weights `(..., size)`."""
        if points.ndim == 1:
            return self._images(points, self.features)
        if len(points) == 1:
            return self._images(points.squeeze(0), self.features).unsqueeze(0)
        own = 0 if self.features is not None and self.features.ndim == 3 else None
        images: Tensor = vmap(self._images, in_dims=(0, own))(points, self.features)
        return images

    @property
    def held(self) -> dict[str, Tensor]:
        """The features, which are of one case."""
        return {} if self.features is None else {"features": self.features}

    def with_held(self, held: Mapping[str, Tensor]) -> _PriorImages:
        """The same network with the features of every row."""
        return replace(self, features=held.get("features"))

    def _images(self, weights: Tensor, features: Tensor | None) -> Tensor:
        parts = torch.split(weights, [shape.numel() for shape in self.shapes.values()])
        shaped = zip(self.shapes.items(), parts, strict=True)
        named = {name: part.reshape(shape) for (name, shape), part in shaped}
        unbounded: Tensor = functional_call(self.network, named, (self.codes, features))
        low, high = self.domain.bounds
        return self.domain.normalise(low + (high - low) * unbounded.sigmoid())

    def _drawn(self, name: str, shape: torch.Size, rng: Rng) -> Tensor:
        if len(shape) > 1:
            spread = 1 / math.sqrt(math.prod(shape[1:]))
            return spread * rng.fork("weights", name).normal(shape, like=self.codes).flatten()
        ones = name.endswith("norm.weight")
        return self.codes.new_full((shape.numel(),), 1.0 if ones else 0.0)


def _levels(sides: list[int]) -> int:
    """How many resolutions an image has, each half the one before, none below four pixels."""
    levels = 1
    while all(side % 2 == 0 and side // 2 >= _SMALLEST for side in sides):
        sides, levels = [side // 2 for side in sides], levels + 1
    return levels


def _scaled(features: Tensor, batch_size: int, like: Tensor) -> Tensor:
    if len(features) != batch_size:
        raise InvalidValue(
            f"expected one feature for each of {batch_size} images, got {len(features)}; "
            "were they recovered from another batch?"
        )
    moved = features.detach().to(like)
    floor = torch.finfo(moved.dtype).tiny
    return moved / moved.square().mean(1, keepdim=True).clamp_min(floor).sqrt()


def through(attack: Attack, prior: PriorNetwork, *, step_size: float = 1e-3) -> GradientMatching:
    """The same search over the weights of a prior network instead of pixels.

    Terms, schedule, steps and restarts stay; Adam on the plain gradient takes the place of the
    optimiser, because step sizes and signs are made for pixels.

    Args:
        attack: A gradient matching attack, as recipes such as `inverting_gradients` return.
        prior: What makes the images.
        step_size: Of Adam, on the weights.

    Example:
        >>> import seepage as sp
        >>> attack = through(sp.attacks.inverting_gradients(restarts=1), PriorNetwork(width=8))
        >>> attack.search.generator
        PriorNetwork(width=8, multipliers=(1, 2, 2, 2), attention=16)

    References:
        Ulyanov et al., 2018 (ulyanov2018deep)
    """
    if not isinstance(attack, GradientMatching):
        raise InvalidValue(
            f"expected an attack by gradient matching, such as inverting_gradients(), got {attack}"
        )
    search = replace(
        attack.search, generator=prior, optimiser=Adam(step_size=step_size, sign="none")
    )
    return replace(attack, search=search)
