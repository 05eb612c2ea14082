"""Layers whose gradient holds everybody's feature map, and for batches of what size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import fold, unfold

from seepage.core import Rng, Task
from seepage.core.errors import NotApplicable
from seepage.probing._hooks import Visit, record_visits

_PROBES = 4
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
# Maps are folded so many at a time, which bounds the memory.
_TOGETHER = 64


@dataclass(frozen=True, eq=False)
class MapLayer:
    """A layer as a matrix on patches of its input, which is seen as an image.

    A signal is an image of height one.

    Args:
        name: As in `network.named_modules()`.
        read_shape: Shape of its input, without the batch axis.
        shape: The same as an image `(C, H, W)`.
        kernel, stride, padding, dilation: Along both axes.
        outputs: Channels that it returns, O.
        norm: Name of the batch normalisation that reads what it returns; None if there is none.
        by_batch: Whether that normalises by the batch.
        rectified: Whether no entry of its input is negative, and some are zero.
        below: Name of the layer of which, normalised, its input is the positive part; None if there
            is none.
    """

    name: str
    read_shape: tuple[int, ...]
    shape: tuple[int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    outputs: int
    norm: str | None
    by_batch: bool
    rectified: bool
    below: str | None = None

    def __repr__(self) -> str:
        return (
            f"MapLayer({self.name!r}, {self.shape}, {self.positions} positions, O={self.outputs})"
        )

    @cached_property
    def positions(self) -> int:
        """Patches that it reads of one input, P."""
        sizes = zip(
            self.shape[1:], self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        return math.prod((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)

    @property
    def entries(self) -> int:
        """Entries of its input."""
        return math.prod(self.shape)

    @property
    def patch(self) -> int:
        """Entries of a patch."""
        return self.shape[0] * math.prod(self.kernel)

    @property
    def budget(self) -> int:
        """The largest batch whose patches do not fill what its gradient can span."""
        rows = min(self.outputs, self.patch)
        return (rows if self.by_batch else rows - 1) // self.positions

    @property
    def overlaps(self) -> bool:
        """Whether only true maps have all patches in the span; with strides, others do too."""
        apart = zip(self.kernel, self.stride, self.shape[1:], strict=True)
        return all((k > 1 and s == 1) or n == 1 for k, s, n in apart)

    @property
    def serves(self) -> bool:
        """Whether feature maps can be read from its gradient and told apart."""
        return self.overlaps and self.rectified

    def rank(self, batch_size: int) -> int:
        """Directions that the patches of a batch span: one less if errors sum to zero."""
        return self.positions * batch_size - self.by_batch

    def unfold(self, maps: Tensor) -> Tensor:
        """The patches `(N, C k k, P)` of maps `(N, C, H, W)`."""
        return unfold(maps, self.kernel, self.dilation, self.padding, self.stride)

    def fold(self, patches: Tensor) -> Tensor:
        """Add patches where they lie: the transpose of `unfold`."""
        return fold(patches, self.shape[1:], self.kernel, self.dilation, self.padding, self.stride)

    def cover(self, like: Tensor) -> Tensor:
        """How many patches read each entry, `(1, C, H, W)`; one where none does."""
        ones = torch.ones(1, *self.shape, dtype=like.dtype, device=like.device)
        return self.fold(self.unfold(ones)).clamp_min(1)

    def in_parts(self, maps: Tensor) -> Sequence[Tensor]:
        """Maps in parts small enough to unfold."""
        return torch.split(maps, _TOGETHER)


def find_map_layers(task: Task) -> dict[str, MapLayer]:
    """All trained layers that read maps, in running order; found by watching a pass over noise.

    Grouped convolutions, padding other than zeros, and layers that run more than once are left
    out.

    Example:
        >>> from seepage.zoo import resnet18
        >>> layers = find_map_layers(resnet18())
        >>> layers["layer4.0.conv2"], layers["layer4.0.conv2"].budget
        (MapLayer('layer4.0.conv2', (512, 4, 4), 16 positions, O=512), 31)
    """
    # In double precision two different computations do not agree by rounding.
    task = task.to(dtype=torch.float64)
    inputs = task.move_inputs(task.domain.sample(_PROBES, rng=Rng(0).fork("maps")))
    seen, _ = record_visits(task.network, task.domain.normalise(inputs))
    names = [visit.name for visit in seen]
    layers: dict[str, MapLayer] = {}
    returned: list[tuple[str, Tensor]] = []
    for place, visit in enumerate(seen):
        after = seen[place + 1] if place + 1 < len(seen) else None
        found = None
        if names.count(visit.name) == 1 and f"{visit.name}.weight" in task.parameters:
            found = _read_layer(task, visit, after, returned)
        if found is not None:
            layers[visit.name] = found
            normed = after.outputs if after is not None and found.norm else visit.outputs
            returned.append((visit.name, normed))
    return layers


def _read_layer(
    task: Task, visit: Visit, after: Visit | None, returned: Sequence[tuple[str, Tensor]]
) -> MapLayer | None:
    """The layer, if it is one that can serve."""
    module, read = visit.module, visit.inputs
    if isinstance(module, _CONVOLUTIONS) and read.ndim == len(module.kernel_size) + 2:
        if module.groups != 1 or module.padding_mode != "zeros":
            return None
        padding = _read_padding(module)
        if padding is None:
            return None
        flat = read.ndim == 3
        channels, *sides = read.shape[1:]
        height, length = (1, *sides) if flat else sides
        shape = (channels, height, length)
        raw = (module.kernel_size, module.stride, padding, module.dilation)
        kernel, stride, zeros, dilation = (
            (fill if flat else one[0], one[-1]) for fill, one in zip((1, 1, 0, 1), raw, strict=True)
        )
        outputs = module.out_channels
    else:
        return None
    norm = None
    if after is not None and isinstance(after.module, _NORMS):
        norm = after.name if torch.equal(after.inputs, visit.outputs) else None
    below = None
    for name, values in returned:
        if values.shape == read.shape and torch.equal(values.relu(), read):
            below = name
    return MapLayer(
        visit.name,
        tuple(read.shape[1:]),
        shape,
        kernel,
        stride,
        zeros,
        dilation,
        outputs,
        norm,
        norm is not None and task.mode == "train",
        bool((read >= 0).all() and (read == 0).any()),
        below,
    )


def _read_padding(module: nn.Conv1d | nn.Conv2d) -> tuple[int, ...] | None:
    """Zeros on either side of each axis; None if the two sides differ."""
    if not isinstance(module.padding, str):
        return tuple(module.padding)
    sides = module._reversed_padding_repeated_twice
    pairs = [(sides[i], sides[i + 1]) for i in range(0, len(sides), 2)]
    if any(left != right for left, right in pairs):
        return None
    return tuple(left for left, _ in reversed(pairs))


def choose_layer(layers: dict[str, MapLayer], batch_size: int) -> MapLayer:
    """The layer that tells most of each input, among those with room for the batch.

    Raises:
        NotApplicable: None has.
    """
    able = [layer for layer in layers.values() if layer.serves]
    if not able:
        raise NotApplicable(
            "no trained layer reads maps behind a ReLU in overlapping patches, so feature maps "
            "cannot be told apart; use gradient matching"
        )
    roomy = [layer for layer in able if layer.budget >= batch_size]
    if not roomy:
        widest = max(able, key=lambda layer: layer.budget)
        raise NotApplicable(
            f"a batch of {batch_size} has more patches than the gradient of any layer can span; "
            f"{widest.name!r} of {widest.outputs} outputs at {widest.positions} positions has room "
            f"for {widest.budget}; use gradient matching"
        )
    return max(roomy, key=lambda layer: layer.entries)
