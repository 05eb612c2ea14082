"""Images of a vision transformer, found by the spans of what its layers read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from seepage.attacks.jacobian import load_forward_mode
from seepage.attacks.text.readers import (
    Reader,
    SpanCheck,
    find_span,
    group_readers,
    run_until,
    stack_gradients,
)
from seepage.clients.gradient import batch_gradient
from seepage.core import Rng, Task, Update
from seepage.core.errors import NotApplicable
from seepage.core.progress import report
from seepage.numerics.least_squares import least_squares
from seepage.numerics.row_span import row_span, share_outside, split_span
from seepage.probing.hooks import layer_inputs

# Singular values of gradients above this share of the largest are no rounding.
_RANK = 1e-6
# What the first layer read fixes directions of a patch down to this share of the largest.
_FIXED = 1e-2
# An image lies in the spans if no place of it lies further outside.
_INSIDE = 1e-3
# Layers above the first attention that are looked at, and those that check images, at most.
_TRIED, _LATER = 8, 3
# Steps of a search, searches for an image, and unknowns of one at most.
_STEPS, _STARTS, _MOST = 25, 6, 256
# What an image that was taken off leaves behind, as a share of the largest singular value, and how
# much small patches count.
_ROUGH, _RIDGE = (1e-5, 1e-4, 1e-3), 1e-2
# How far starts lie apart, in standard deviations of normalised pixels.
_SPREAD = 0.15
# Where an image may change with slopes below this share of the largest, it is not determined.
_FLAT = 1e-4
# Directions that are differentiated together.
_TOGETHER = 32
# By how much scales of an image may differ that was told from the others.
_AGREE = 0.03


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
            alike = _sees_patches(seen[:, (seen[0] != seen[1]).any(-1)], count)
            (single if alike else later).append(group)
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
    """Keep later layers as wide as the first, whose gradient spans what they read of an image.

    Above the last attention only the place of the class may count. The wide layers inside a block
    span enough as well, but a search by them ends in the wrong place more often.
    """
    inputs = task.domain.denormalise(image[None])
    gradient = Update(batch_gradient(task, task.parameters, inputs, task.blank_labels(1)))
    kept = []
    for group in later[:_TRIED]:
        stacked = stack_gradients(task, group, gradient)
        if bool(stacked.any()):
            basis = row_span(stacked, tolerance=_RANK**2)
            inside = share_outside(basis, read[group[0]][0]) < _INSIDE
            if len(basis) < stacked.shape[1] == len(found.matrix) and bool(inside.all()):
                kept.append(group)
    return replace(found, later=tuple(kept))


@dataclass(frozen=True, eq=False)
class FoundImages:
    """Images that were read.

    Args:
        images: Normalised `(B, C, H, W)`: those that were found, then for each other one what is
            likely by the first attention alone.
        labels: Of the images found.
        solved: How many were found.
    """

    images: Tensor
    labels: list[int]
    solved: int


def read_images(
    task: Task, update: Update, *, size: int | None, classes: Sequence[int], rng: Rng
) -> FoundImages:
    """Find the images of a batch by the spans of the gradients, one after the other.

    What the first attention read of a patch lies in the span of its gradient. That leaves every
    patch the same (B - 1) N directions open, none if there is one image. What later layers read of
    the whole image lies in their spans: Levenberg-Marquardt searches the directions for an image
    of which every place lies in every span. The gradient of an image that was found is taken off,
    and the rest tells roughly where the next one is.

    Args:
        task: The network.
        update: What was observed.
        size: Number of images, if known.
        classes: Labels that may occur.
        rng: Where searches begin.

    Raises:
        NotApplicable: The spans tell nothing, or no image was found.
    """
    task = task.to(dtype=torch.float64)
    readers = find_patch_readers(task)
    rest = Update({name: tensor.double() for name, tensor in update.tensors.items()})
    first, later, size = _find_spans(task, readers, rest, size)
    hull = _find_hull(readers, first, rest)
    images: list[Tensor] = []
    labels: list[int] = []
    alone = len(hull.directions) == 0
    if alone:
        images, size = [readers.join(hull.base)], 1
    else:
        _require_search(readers, hull, later)
    while True:
        if not alone:
            left = rest if images else None
            found = _search_image(task, readers, hull, later, left, rng=rng.fork(len(images)))
            images += [] if found is None else [found]
        if not images:
            raise NotApplicable(
                f"no image of which every place lies in the spans was found from {_STARTS} starts; "
                "use gradient matching"
            )
        last, told = len(images) == size, None
        if len(labels) < len(images):
            reader = None if last else later[0].reader
            told = _tell_label(task, rest, images[-1], reader, classes)
        if told is not None:
            labels, rest = [*labels, told[0]], told[1]
        if last or told is None:
            break
    rough = hull.image(readers, _aim(readers, hull, rest, _ROUGH[0]).flatten())
    solved = len(images)
    images += [rough] * (size - solved)
    return FoundImages(torch.stack(images), labels, solved)


def _find_spans(
    task: Task, readers: PatchReaders, update: Update, size: int | None
) -> tuple[SpanCheck, list[SpanCheck], int]:
    """The spans of what the first layers read and later ones, where whole; the number of images.

    Raises:
        NotApplicable: That of the first layers is not.
    """
    readers.require_room(task, size or 1)
    count = readers.count
    # Layers that read the same count alike, however small the gradient of one is.
    even = Update({n: t / t.norm().clamp_min(1e-300) for n, t in update.tensors.items()})
    spans = [
        find_span(
            task,
            reader,
            even,
            places=None if size is None else size * (count + readers.others),
            rank_tolerance=_RANK,
            tolerance=_INSIDE,
        )
        for reader in (readers.first, *readers.later)
    ]
    first = spans[0]
    if first is None or not first.whole:
        raise NotApplicable(
            f"the gradient of {', '.join(readers.first)} spans more than the patches, or nothing, "
            "so it tells none apart: it is noisy, or of several steps, or zero"
        )
    size = size or max(1, (len(first.basis) - readers.others) // count)
    # Rounding hides directions of vectors that are nearly dependent; such a span holds no image.
    full = size * (count + readers.others)
    later = [s for s in spans[1:] if s is not None and s.whole and len(s.basis) == full]
    return first, later[:_LATER], size


@dataclass(frozen=True, eq=False)
class _Hull:
    """What the first attention leaves of the patches: base_p plus any of the directions.

    Args:
        base: `(N, P)`.
        directions: `(k, P)`, orthonormal.
    """

    base: Tensor
    directions: Tensor

    def image(self, readers: PatchReaders, unknowns: Tensor) -> Tensor:
        """The image at unknowns `(N k,)`."""
        shares = unknowns.reshape(len(self.base), len(self.directions))
        return readers.join(self.base + shares @ self.directions)


def _find_hull(readers: PatchReaders, span: SpanCheck, update: Update) -> _Hull:
    """Solve for patches of which what was read lies in the span.

    Outside the span and the shift, s (matrix x + places) vanishes, and so does it without s. Two
    images in one place may differ by what two images differ by in any place, so the differences of
    all places are free. Patches also lie in the row space of the gradient of the embedding.
    """
    matrix, size = readers.matrix, readers.matrix.shape[1]
    patches = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    embedding = update.tensors.get(f"{readers.embedding}.weight")
    if embedding is not None and bool(embedding.any()):
        rows, _ = split_span(embedding.flatten(1), tolerance=_RANK)
        patches = rows if len(rows) < min(embedding.flatten(1).shape) else patches
    held = torch.cat([span.basis, readers.shift[None]]) if readers.shift.any() else span.basis
    held = row_span(held, tolerance=_RANK)
    outside = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device) - held.T @ held
    system = outside @ matrix @ patches.T
    fixed = row_span(system, tolerance=_FIXED)
    solved = torch.linalg.lstsq(system @ fixed.T, -outside @ readers.places.T).solution
    return _Hull(solved.T @ fixed @ patches, _complement(fixed) @ patches)


def _complement(basis: Tensor) -> Tensor:
    """An orthonormal basis of what an orthonormal basis `(r, d)` leaves, `(d - r, d)`."""
    rest: Tensor = torch.linalg.svd(basis, full_matrices=True)[2][len(basis) :]
    return rest


@dataclass(frozen=True, eq=False)
class _OutsideSpans:
    """How far what later layers read of an image lies outside their spans, place by place."""

    task: Task
    readers: PatchReaders
    hull: _Hull
    layers: Sequence[str]
    complements: Sequence[Tensor]

    def shares(self, unknowns: Tensor) -> list[Tensor]:
        """Of every layer, the part outside its span of vectors of length one, `(T, d - r)`."""
        image = self.hull.image(self.readers, unknowns)[None]
        read = run_until(self.task, self.task.domain.denormalise(image), self.layers)
        return [
            nn.functional.normalize(read[layer][0], dim=-1) @ complement.T
            for layer, complement in zip(self.layers, self.complements, strict=True)
        ]

    def __call__(self, unknowns: Tensor) -> Tensor:
        """All of them, `(e,)`."""
        return torch.cat([part.flatten() for part in self.shares(unknowns)])

    def derivative(self, unknowns: Tensor) -> Tensor:
        """The derivative by each unknown, `(e, n)`."""
        load_forward_mode()
        unit = torch.eye(len(unknowns), dtype=unknowns.dtype, device=unknowns.device)
        along = vmap(lambda way: jvp(self, (unknowns,), (way,))[1], chunk_size=_TOGETHER)
        columns: Tensor = along(unit)
        return columns.T


def _require_search(readers: PatchReaders, hull: _Hull, checks: Sequence[SpanCheck]) -> None:
    seen = torch.linalg.svdvals(readers.matrix @ hull.directions.T)
    if len(seen) < len(hull.directions) or not bool(seen[-1] > _RANK * seen[0]):
        raise NotApplicable(
            f"the {len(readers.matrix)} channels of {readers.embedding} tell not all of the "
            f"{readers.matrix.shape[1]} entries of a patch, and its gradient does not tell the "
            "rest; use gradient matching"
        )
    opened = (
        f"the gradient of the first attention leaves {len(hull.directions)} directions of each of "
        f"{len(hull.base)} patches open, and"
    )
    if not checks:
        raise NotApplicable(
            f"{opened} no later layer spans what it read of whole images; use gradient matching"
        )
    if len(hull.base) * len(hull.directions) > _MOST:
        raise NotApplicable(
            f"{opened} at most {_MOST} in all can be searched; use gradient matching"
        )


def _aim(readers: PatchReaders, hull: _Hull, rest: Update, noise: float) -> Tensor:
    """Unknowns of which what is read lies in the span of what is left of the gradient, roughly.

    Directions of that span count the less, the further they exceed what images that were taken
    off left behind; where it tells nothing, small patches are likely.

    Returns:
        `(N, k)`.
    """
    gradients = [rest.tensors[f"{layer}.weight"] for layer in readers.first]
    stacked = torch.cat([g / g.norm().clamp_min(1e-300) for g in gradients])
    _, values, rows = torch.linalg.svd(stacked, full_matrices=False)
    weighed = (noise / (values / values[0] + noise))[:, None] * rows
    system = weighed @ readers.matrix @ hull.directions.T
    wanted = -weighed @ (readers.matrix @ hull.base.T + readers.places.T)
    ridge = _RIDGE * torch.linalg.matrix_norm(readers.matrix, 2)
    unit = torch.eye(system.shape[1], dtype=system.dtype, device=system.device)
    likely = -hull.base @ hull.directions.T
    left, right = torch.cat([system, ridge * unit]), torch.cat([wanted, ridge * likely.T])
    solved: Tensor = torch.linalg.lstsq(left, right).solution
    return solved.T


def _search_image(
    task: Task,
    readers: PatchReaders,
    hull: _Hull,
    checks: Sequence[SpanCheck],
    rest: Update | None,
    *,
    rng: Rng,
) -> Tensor | None:
    """An image that lies in the spans; None if none is found.

    Searches begin where `rest`, what is left of the update, points to; None if it is whole.
    """
    layers = [check.reader[0] for check in checks]
    outside = _OutsideSpans(task, readers, hull, layers, [_complement(c.basis) for c in checks])
    for number in range(_STARTS):
        start = -hull.base @ hull.directions.T
        if rest is not None:
            start = _aim(readers, hull, rest, _ROUGH[number % len(_ROUGH)])
        start = start + _SPREAD * rng.fork(number).normal(tuple(start.shape), like=start)
        found, _ = least_squares(outside, start.flatten(), steps=_STEPS)
        worst = max(float(part.norm(dim=-1).max()) for part in outside.shares(found))
        report(number + 1, _STARTS, worst)
        if worst < _INSIDE:
            slopes = torch.linalg.svdvals(outside.derivative(found))
            if not bool(slopes[-1] > _FLAT * slopes[0]):
                raise NotApplicable(
                    "more than one image lies in the spans, so they tell none apart; use gradient "
                    "matching"
                )
            return hull.image(readers, found)
    return None


def _tell_label(
    task: Task, update: Update, image: Tensor, reader: Reader | None, classes: Sequence[int]
) -> tuple[int, Update] | None:
    """The label of an image, and the update without it.

    The gradient is G = sum_b c g_b. With the label of image b the matrix G^+ g_b has the
    eigenvalue 1 / c as often as the image has places, and 0 else. Of the last image g_b is a
    multiple of G.
    """
    inputs = task.domain.denormalise(image[None])
    best: tuple[float, float, int, Update] | None = None
    for label in classes:
        target = torch.full_like(task.blank_labels(1), label)
        own = Update(batch_gradient(task, task.parameters, inputs, target))
        if reader is None:
            pairs = [(update.tensors[n].flatten(), own.tensors[n].flatten()) for n in own.tensors]
            seen, made = (torch.cat(parts) for parts in zip(*pairs, strict=True))
            scale = float(made @ seen / made.square().sum().clamp_min(1e-300))
            off = float((seen - scale * made).norm() / seen.norm().clamp_min(1e-300))
        else:
            observed, made = (stack_gradients(task, reader, one) for one in (update, own))
            left, values, right = torch.linalg.svd(observed, full_matrices=False)
            kept = len(split_span(observed, tolerance=_RANK)[0])
            core = (left[:, :kept].T @ made @ right[:kept].T) / values[:kept, None]
            found = torch.linalg.eigvals(core)
            count = len(run_until(task, inputs, reader[:1])[reader[0]][0])
            found = found[found.abs().argsort(descending=True)[:count]]
            middle = found.real.median()
            scale = float(1 / middle)
            off = float(((found - middle).abs() / middle.abs()).median())
        if best is None or off < best[0]:
            rest = {n: t - scale * own.tensors[n] for n, t in update.tensors.items()}
            best = (off, scale, label, Update(rest))
    if best is None or best[0] > _AGREE:
        return None
    return best[2], best[3]
