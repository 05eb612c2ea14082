"""The image prior: candidates are what an untrained network makes of fixed noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import silu

from seepage.core import Attack, Domain, Rng
from seepage.core._digest import digest
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.search._matching import GradientMatching
from seepage.search._optimisers import Adam

# Channels of the noise that the network turns into images, as in deep image prior.
_CODES = 32
_SMALLEST = 4
_GROUPS = 32
_CHANNELS_PER_GROUP = 4
_BLOCKS = 2


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PriorNetwork:
    """An untrained U-Net whose weights are searched instead of pixels.

    One network makes the whole batch. Each image is made of a fixed code of noise and, if there are
    any, of its recovered features, which enter every residual block. Convolutions on several
    scales make natural images long before noise, so the search meets them first. A sigmoid keeps
    pixels within their bounds.

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

    def bind(self, batch_size: int, domain: Domain, *, like: Tensor) -> _PriorImages:
        """Build the network for one batch, with the dtype and device of `like`."""
        if len(domain.shape) != 3:
            raise NotApplicable(
                f"expected images (C, H, W) for a prior network, got inputs of {domain.shape}; "
                "search for the inputs themselves"
            )
        features = self.features
        if features is not None:
            if len(features) != batch_size:
                raise InvalidValue(
                    f"expected one feature for each of {batch_size} images, got {len(features)}; "
                    "were they recovered from another batch?"
                )
            features = features.detach().to(like)
            floor = torch.finfo(features.dtype).tiny
            features = features / features.square().mean(1, keepdim=True).clamp_min(floor).sqrt()
        channels, *sides = domain.shape
        with torch.device("meta"):
            network = _UNet(
                channels,
                side=sides[1],
                widths=[self.width * m for m in self.multipliers[: _count_levels(sides)]],
                attention=self.attention,
                features=0 if features is None else features.shape[1],
            )
        codes = Rng(0).fork("codes").normal((batch_size, _CODES, *sides), like=like)
        return _PriorImages(network, codes, features, domain)


def _count_levels(sides: list[int]) -> int:
    """Count the resolutions of an image, each half the one before, none below four pixels."""
    levels = 1
    while all(side % 2 == 0 and side // 2 >= _SMALLEST for side in sides):
        sides, levels = [side // 2 for side in sides], levels + 1
    return levels


@dataclass(frozen=True, eq=False)
class _PriorImages:
    """A prior network for one batch, whose weights are searched.

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
        return sum(shape.numel() for shape in self.shapes.values())

    def start(self, *, rng: Rng) -> Tensor:
        """Draw weights of variance one over the number of inputs; norms and biases do nothing.

        They are drawn by name, so a key means the same weights wherever it is used.
        """
        return torch.cat([self._draw(name, shape, rng) for name, shape in self.shapes.items()])

    def __call__(self, points: Tensor) -> Tensor:
        """Make normalised images `(..., B, C, H, W)` of weights `(..., size)`."""
        if points.ndim == 1:
            return self._make_images(points, self.features)
        if len(points) == 1:
            return self._make_images(points.squeeze(0), self.features).unsqueeze(0)
        own = 0 if self.features is not None and self.features.ndim == 3 else None
        images: Tensor = vmap(self._make_images, in_dims=(0, own))(points, self.features)
        return images

    @property
    def held(self) -> dict[str, Tensor]:
        return {} if self.features is None else {"features": self.features}

    def with_held(self, held: Mapping[str, Tensor]) -> _PriorImages:
        """Return the same network with the features of every row."""
        return replace(self, features=held.get("features"))

    def _make_images(self, weights: Tensor, features: Tensor | None) -> Tensor:
        parts = torch.split(weights, [shape.numel() for shape in self.shapes.values()])
        shaped = zip(self.shapes.items(), parts, strict=True)
        named = {name: part.reshape(shape) for (name, shape), part in shaped}
        unbounded: Tensor = functional_call(self.network, named, (self.codes, features))
        low, high = self.domain.bounds
        return self.domain.normalise(low + (high - low) * unbounded.sigmoid())

    def _draw(self, name: str, shape: torch.Size, rng: Rng) -> Tensor:
        if len(shape) > 1:
            spread = 1 / math.sqrt(math.prod(shape[1:]))
            return spread * rng.fork("weights", name).normal(shape, like=self.codes).flatten()
        ones = name.endswith("norm.weight")
        return self.codes.new_full((shape.numel(),), 1.0 if ones else 0.0)


class _UNet(nn.Module):
    """Down to the coarsest resolution and up again, two residual blocks on each level.

    Args:
        channels: Of the image.
        side: Width of the image; it decides which levels have attention.
        widths: Channels of each level, finest first.
        attention: The width at which blocks are followed by self-attention.
        features: Length of the features of each image; 0 for none.
    """

    def __init__(
        self, channels: int, *, side: int, widths: Sequence[int], attention: int, features: int
    ) -> None:
        super().__init__()
        embedded = 4 * widths[0] if features else 0
        self.embed = nn.Linear(features, embedded) if features else None
        self.enter = nn.Conv2d(_CODES, widths[0], 3, padding=1)
        attends = [side >> level == attention for level in range(len(widths))]
        before = [widths[0], *widths[:-1]]
        self.down = nn.ModuleList(
            _Level(b, w, embedded, 0, at) for b, w, at in zip(before, widths, attends, strict=True)
        )
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = _Level(widths[-1], widths[-1], embedded, 0, True)
        below = [*widths[1:], widths[-1]]
        self.up = nn.ModuleList(
            _Level(b, w, embedded, w, at) for b, w, at in zip(below, widths, attends, strict=True)
        )
        self.norm = _group_norm(widths[0])
        self.leave = nn.Conv2d(widths[0], channels, 3, padding=1)

    def forward(self, codes: Tensor, features: Tensor | None) -> Tensor:
        """Unbounded images `(B, C, H, W)` of codes `(B, codes, H, W)` and features `(B, d)`."""
        embedded = None
        if self.embed is not None and features is not None:
            embedded = silu(self.embed(features))
        x, kept = self.enter(codes), []
        for level, down in enumerate(self.down):
            outputs = list(down(x, embedded, ()))
            kept.append(outputs)
            x = self.shrink[level](outputs[-1]) if level < len(self.shrink) else outputs[-1]
        *_, x = self.middle(x, embedded, ())
        for level in reversed(range(len(self.up))):
            if level < len(self.shrink):
                # Double the size. Interpolation would have a derivative that is not deterministic.
                wide = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
                x = wide.reshape(*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
            *_, x = self.up[level](x, embedded, kept[level])
        image: Tensor = self.leave(silu(self.norm(x)))
        return image


class _Level(nn.Module):
    """The residual blocks of one resolution, each followed by attention if the level has it."""

    def __init__(self, before: int, width: int, features: int, kept: int, attends: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            _ResidualBlock((before if block == 0 else width) + kept, width, features)
            for block in range(_BLOCKS)
        )
        self.attention = nn.ModuleList(
            _SelfAttention(width) for _ in range(_BLOCKS if attends else 0)
        )

    def forward(
        self, x: Tensor, embedded: Tensor | None, kept: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        """Yield the output of each block; on the way up it also reads its counterpart's output."""
        for number, block in enumerate(self.blocks):
            joined = torch.cat([x, kept[-1 - number]], dim=1) if kept else x
            x = block(joined, embedded)
            if self.attention:
                x = self.attention[number](x)
            yield x


class _ResidualBlock(nn.Module):
    """Two convolutions behind group normalisation, with the features of each image added between.

    h = conv(silu(norm(x))) + W z;   x + conv(silu(norm(h)))
    """

    def __init__(self, before: int, after: int, features: int) -> None:
        super().__init__()
        self.first_norm = _group_norm(before)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.inject = nn.Linear(features, after) if features else None
        self.second_norm = _group_norm(after)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.shortcut = nn.Conv2d(before, after, 1) if before != after else None

    def forward(self, x: Tensor, embedded: Tensor | None) -> Tensor:
        """From `(B, before, H, W)` to `(B, after, H, W)`."""
        hidden = self.first(silu(self.first_norm(x)))
        if self.inject is not None and embedded is not None:
            hidden = hidden + self.inject(embedded)[:, :, None, None]
        hidden = self.second(silu(self.second_norm(hidden)))
        outputs: Tensor = hidden + (x if self.shortcut is None else self.shortcut(x))
        return outputs


class _SelfAttention(nn.Module):
    """Self-attention over all pixels: one head, residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _group_norm(channels)
        self.project = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.project(self.norm(x)).flatten(2).chunk(3, dim=1)
        weights = (query.transpose(1, 2) @ key / math.sqrt(x.shape[1])).softmax(-1)
        seen: Tensor = self.out((value @ weights.transpose(1, 2)).reshape(x.shape))
        return x + seen


def _group_norm(channels: int) -> nn.GroupNorm:
    # Several channels to a group: with one each, normalisation would undo what features add.
    groups = max(1, min(_GROUPS, channels // _CHANNELS_PER_GROUP))
    return nn.GroupNorm(math.gcd(channels, groups), channels)


def through(attack: Attack, prior: PriorNetwork, *, step_size: float = 1e-3) -> GradientMatching:
    """Search over the weights of a prior network instead of pixels.

    Terms, schedule, steps and restarts stay. Adam on the plain gradient replaces the optimiser,
    because step sizes and signs are made for pixels.

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
