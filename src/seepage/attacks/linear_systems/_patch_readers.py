"""Which layers of a vision transformer read single patches, and which read whole images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from seepage.attacks.text._readers import Reader, group_readers, run_until, stack_gradients
from seepage.clients._gradient import batch_gradient
from seepage.core import Rng, Task, Update
from seepage.core.errors import NotApplicable
from seepage.numerics._row_span import row_span, share_outside
from seepage.probing._hooks import layer_inputs

# Singular values of gradients above this share of the largest are no rounding.
RANK = 1e-6
# An image lies in the spans if no place of it lies further outside.
INSIDE = 1e-3
# Layers above the first attention that are looked at, at most.
_TRIED = 8


@dataclass(frozen=True, eq=False)
class PatchReaders:
    """What the layers of a vision transformer read.

    The first ones read s (matrix x_p + places_p) + shift of patch p, where s is one over the
    standard deviation that the norm divides by, or 1.

    Args:
        first: Layers that read a function of one patch and its place, as the first attention does.
        later: Layers above that read the whole image at every place.
        embedding: Name of the convolution that cuts the patches.
        matrix: `(d, P)`, for patches of P normalised entries.
        places: `(N, d)`.
        shift: `(d,)`.
        grid: Patches in a column and in a row.
        patch: Shape of a patch.
        others: Places that are no patches, such as that of the class.
    """

    first: Reader
    later: tuple[Reader, ...]
    embedding: str
    matrix: Tensor
    places: Tensor
    shift: Tensor
    grid: tuple[int, int]
    patch: tuple[int, ...]
    others: int

    @property
    def count(self) -> int:
        """The number N of patches."""
        return math.prod(self.grid)

    def room(self, task: Task) -> int:
        """How many images the gradient of the first layers has rows and columns for.

        None if the embedding is frozen and has fewer channels than a patch has entries.
        """
        rows, width = stack_gradients(task, self.first, Update(task.parameters)).shape
        trained = f"{self.embedding}.weight" in task.parameters
        if not trained and int(torch.linalg.matrix_rank(self.matrix)) < self.matrix.shape[1]:
            return 0
        return max(0, (min(rows, width) - 1 - self.others) // self.count)

    def require_room(self, task: Task, size: int) -> None:
        """Raise `NotApplicable` if the first layers cannot hold so many images."""
        rows, width = stack_gradients(task, self.first, Update(task.parameters)).shape
        if size > self.room(task):
            raise NotApplicable(
                f"the gradient of {', '.join(self.first)} has {rows} rows and {width} columns, too "
                f"few for {size} x {self.count} patches of {self.matrix.shape[1]} entries; use "
                "gradient matching"
            )

    def join(self, rows: Tensor) -> Tensor:
        """Put patches `(N, P)` together to an image `(C, H, W)`."""
        return join_patches(rows, self.grid, self.patch)


def join_patches(rows: Tensor, grid: tuple[int, int], patch: Sequence[int]) -> Tensor:
    """Put patches `(N, P)` of shape `(C, k, k)` together to an image `(C, H, W)`.

    Example:
        >>> join_patches(torch.arange(4.0)[:, None], (2, 2), (1, 1, 1)).tolist()
        [[[0.0, 1.0], [2.0, 3.0]]]
    """
    channels, height, width = patch
    parts = rows.reshape(*grid, channels, height, width)
    return parts.permute(2, 0, 3, 1, 4).reshape(channels, grid[0] * height, grid[1] * width)


def _cut_patches(images: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cut images `(B, C, H, W)` into patches `(B, N, P)`.

    Example:
        >>> _cut_patches(torch.arange(4.0).reshape(1, 1, 2, 2), (2, 2)).tolist()
        [[[0.0], [1.0], [2.0], [3.0]]]
    """
    count, channels, height, width = images.shape
    shape = (count, channels, grid[0], height // grid[0], grid[1], width // grid[1])
    return images.reshape(shape).permute(0, 2, 4, 1, 3, 5).reshape(count, math.prod(grid), -1)


def list_patch_layers(task: Task) -> dict[str, nn.Conv2d]:
    """Convolutions that read an image patch by patch, without overlaps or gaps."""
    return {
        name: module
        for name, module in task.network.named_modules()
        if isinstance(module, nn.Conv2d) and _cuts_patches(module, task.domain.shape)
    }


def _cuts_patches(layer: nn.Conv2d, shape: tuple[int, ...]) -> bool:
    size = layer.kernel_size
    plain = layer.padding in ((0, 0), "valid") and layer.groups == 1 and layer.dilation == (1, 1)
    fits = len(shape) == 3 and all(side % k == 0 for side, k in zip(shape[1:], size, strict=True))
    return plain and fits and layer.stride == size and layer.in_channels == shape[0]


def find_patch_readers(task: Task) -> PatchReaders:
    """Find what reads single patches and whole images, by running the network on random images.

    Raises:
        NotApplicable: No trained linear layer reads an affine function of one patch, up to a norm.
    """
    exact = task.to(dtype=torch.float64)
    for name, layer in list_patch_layers(exact).items():
        height, width = layer.kernel_size
        grid = (task.domain.shape[1] // height, task.domain.shape[2] // width)
        found = _try_patch_layer(exact, name, layer, grid)
        if found is not None:
            return found
    raise NotApplicable(
        f"expected {task.name} to cut images into patches by a convolution, and to train an "
        "attention that reads one patch at each place, as vision transformers do; use gradient "
        "matching"
    )


def _try_patch_layer(
    task: Task, name: str, layer: nn.Conv2d, grid: tuple[int, int]
) -> PatchReaders | None:
    count = math.prod(grid)
    shape = (layer.in_channels, *layer.kernel_size)
    one, other = (
        task.domain.normalise(task.domain.sample(2, rng=Rng(0).fork("patches")).double())
        .to(layer.weight.device)
        .unbind()
    )
    rows = _cut_patches(torch.stack([one, other]), grid)
    mixed = torch.cat([rows[0, : count // 2], rows[1, count // 2 :]])
    images = torch.stack([one, other, join_patches(mixed, grid, shape), torch.zeros_like(one)])
    norms = {n: m for n, m in task.network.named_modules() if isinstance(m, nn.LayerNorm)}
    with torch.no_grad(), layer_inputs(task.network, list(norms)) as before:
        read = run_until(task, task.domain.denormalise(images))
        read = {n: seen for n, seen in read.items() if seen.shape[1] >= count}
        single: list[Reader] = []
        later: list[Reader] = []
        for group in group_readers(read):
            seen = read[group[0]]
            single_patch = _sees_patches(seen[:, (seen[0] != seen[1]).any(-1)], count)
            (single if single_patch else later).append(group)
        if not single:
            return None
        seen = read[single[0][0]]
        at = (seen[0] != seen[1]).any(-1)
        shift, scale = torch.zeros_like(seen[0, 0]), None
        for key, given in before.items():
            norm = norms[key]
            if given.shape == seen.shape and torch.allclose(norm(given), seen):
                seen, scale = given, norm.weight.detach()
                shift = shift if norm.bias is None else norm.bias.detach()
                break
    matrix, places = layer.weight.flatten(1).detach(), seen[3, at]
    if not torch.allclose(rows[0] @ matrix.T + places, seen[0, at], atol=1e-6):
        return None
    if scale is not None:
        matrix = scale[:, None] * (matrix - matrix.mean(0))
        places = scale * (places - places.mean(1, keepdim=True))
    others = seen.shape[1] - count
    found = PatchReaders(single[0], (), name, matrix, places, shift, grid, shape, others)
    return _keep_spanning(task, found, later, images[0], read)


def _sees_patches(seen: Tensor, count: int) -> bool:
    """Whether what was read of one, another and a mixed image depends on one patch a place."""
    half = count // 2
    return (
        seen.shape[1] == count
        and torch.allclose(seen[2, :half], seen[0, :half])
        and torch.allclose(seen[2, half:], seen[1, half:])
    )


def _keep_spanning(
    task: Task, found: PatchReaders, later: Sequence[Reader], image: Tensor, read: dict[str, Tensor]
) -> PatchReaders:
    """Keep layers as wide as the first whose gradient spans what they read of one image.

    Above the last attention only the place of the class may count. The wide layers inside a block
    span enough as well, but a search by them ends in the wrong place more often.
    """
    inputs = task.domain.denormalise(image[None])
    gradient = Update(batch_gradient(task, task.parameters, inputs, task.blank_labels(1)))
    kept = []
    for group in later[:_TRIED]:
        stacked = stack_gradients(task, group, gradient)
        if bool(stacked.any()):
            basis = row_span(stacked, tolerance=RANK**2)
            inside = share_outside(basis, read[group[0]][0]) < INSIDE
            if len(basis) < stacked.shape[1] == len(found.matrix) and bool(inside.all()):
                kept.append(group)
    return replace(found, later=tuple(kept))
