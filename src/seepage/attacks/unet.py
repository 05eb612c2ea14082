"""The U-Net of the image prior."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

_GROUPS = 32
_TOGETHER = 4
_BLOCKS = 2


class _ResidualBlock(nn.Module):
    """Two convolutions behind group normalisation, with the features of each image added between.

    h = conv(silu(norm(x))) + W z;   x + conv(silu(norm(h)))
    """

    def __init__(self, before: int, after: int, features: int) -> None:
        """Build the layers; `features` is the length of the embedding, 0 for none."""
        super().__init__()
        self.first_norm = _norm(before)
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.inject = nn.Linear(features, after) if features else None
        self.second_norm = _norm(after)
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
    """Every place looks at every other: one head, residual."""

    def __init__(self, channels: int) -> None:
        """Build the projections."""
        super().__init__()
        self.norm = _norm(channels)
        self.project = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape `(B, C, H, W)`."""
        query, key, value = self.project(self.norm(x)).flatten(2).chunk(3, dim=1)
        weights = (query.transpose(1, 2) @ key / math.sqrt(x.shape[1])).softmax(-1)
        seen: Tensor = self.out((value @ weights.transpose(1, 2)).reshape(x.shape))
        return x + seen


class UNet(nn.Module):
    """Down to the coarsest resolution and up again, two residual blocks on each level.

    Args:
        codes: Channels of the code that the network turns into an image.
        channels: Of the image.
        side: Width of the image, which says where attention stands.
        widths: Channels of each level, finest first.
        attention: The width at which blocks are followed by self-attention.
        features: Length of the features of each image; 0 for none.
    """

    def __init__(
        self,
        codes: int,
        channels: int,
        *,
        side: int,
        widths: Sequence[int],
        attention: int,
        features: int,
    ) -> None:
        """Build both halves."""
        super().__init__()
        embedded = 4 * widths[0] if features else 0
        self.embed = nn.Linear(features, embedded) if features else None
        self.enter = nn.Conv2d(codes, widths[0], 3, padding=1)
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
        self.norm = _norm(widths[0])
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
                x = _doubled(x)
            *_, x = self.up[level](x, embedded, kept[level])
        image: Tensor = self.leave(silu(self.norm(x)))
        return image


class _Level(nn.Module):
    """The residual blocks of one resolution, each followed by attention where there is any."""

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
        """What each block gives, joined on the way up with what its counterpart gave."""
        for number, block in enumerate(self.blocks):
            joined = torch.cat([x, kept[-1 - number]], dim=1) if kept else x
            x = block(joined, embedded)
            if self.attention:
                x = self.attention[number](x)
            yield x


def _norm(channels: int) -> nn.GroupNorm:
    # Several channels to a group: with one each, normalisation would undo what features add.
    groups = max(1, min(_GROUPS, channels // _TOGETHER))
    return nn.GroupNorm(math.gcd(channels, groups), channels)


def _doubled(x: Tensor) -> Tensor:
    """Every pixel four times; unlike interpolation, with a derivative that is deterministic."""
    rows, columns = x.shape[2:]
    wide = x[:, :, :, None, :, None].expand(-1, -1, -1, 2, -1, 2)
    return wide.reshape(*x.shape[:2], 2 * rows, 2 * columns)
