"""Images of a vision transformer, found by the spans of what its layers read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from seepage.attacks._jacobian import load_forward_mode
from seepage.attacks.linear_systems._patch_readers import (
    INSIDE,
    RANK,
    PatchReaders,
    find_patch_readers,
)
from seepage.attacks.text._readers import Reader, run_until, stack_gradients
from seepage.attacks.text._span_check import SpanCheck, find_span
from seepage.clients._gradient import batch_gradient
from seepage.core import Rng, Task, Update
from seepage.core._progress import report
from seepage.core.errors import NotApplicable
from seepage.numerics._least_squares import least_squares
from seepage.numerics._row_span import row_span, split_span

# What the first layer read fixes directions of a patch down to this share of the largest.
_FIXED = 1e-2
# Later layers that check images, at most.
_LATER = 3
# Steps of a search, searches for an image, and unknowns of one at most.
_STEPS, _STARTS, _MOST = 25, 8, 256
# What an image that was taken off leaves behind, as a share of the largest singular value, and how
# much small patches count.
_ROUGH, _RIDGE = (1e-5, 1e-4, 1e-3), 1e-2
# How far the first start lies from likely patches, in standard deviations of normalised pixels; the
# second lies twice as far, and so on.
_SPREAD = 0.25
# An image lies in the spans if no place of it lies further outside; wrong ones came to 3e-4.
_INSIDE = 2e-4
# Where an image may change with slopes below this share of the largest, it is not determined.
_FLAT = 1e-4
# Directions that are differentiated together.
_TOGETHER = 32
# By how much scales of an image may differ that was told from the others.
_AGREE = 0.03
# An image this near to another, as a share of its length, was found before.
_SAME = 1e-2


@dataclass(frozen=True, eq=False)
class _FoundImages:
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
) -> _FoundImages:
    """Find the images of a batch by the spans of the gradients, one after the other.

    What the first attention read of a patch lies in the span of its gradient. That leaves every
    patch the same (B - 1) N directions open, none if there is one image. What later layers read of
    the whole image lies in their spans: Levenberg-Marquardt searches the directions for an image
    of which every place lies in every span. The gradient of an image that was found is taken off,
    and the rest tells roughly where the next one is.

    Raises:
        NotApplicable: The spans tell nothing, or no image was found.
    """
    task = task.to(dtype=torch.float64)
    readers = find_patch_readers(task)
    rest = Update({name: tensor.double() for name, tensor in update.tensors.items()})
    first, later, size = _find_spans(task, readers, rest, size)
    space = _find_patch_space(readers, first, rest)
    images: list[Tensor] = []
    labels: list[int] = []
    alone = len(space.directions) == 0
    if alone:
        images, size = [readers.join(space.base)], 1
    else:
        _require_search(readers, space, later)
    while True:
        if not alone:
            key = rng.fork(len(images))
            found = _search_image(task, readers, space, later, rest, images, rng=key)
            images += [] if found is None else [found]
        if not images:
            raise NotApplicable(
                f"no image of which every place lies in the spans was found from {_STARTS} starts; "
                "use gradient matching"
            )
        last, told = len(images) == size, None
        if len(labels) < len(images):
            reader = None if last else later[0].reader
            told = _read_label(task, rest, images[-1], reader, classes)
        if told is not None:
            labels, rest = [*labels, told[0]], told[1]
        if last or told is None:
            break
    rough = space.image(readers, _guess_unknowns(readers, space, rest, _ROUGH[0]).flatten())
    solved = len(images)
    images += [rough] * (size - solved)
    return _FoundImages(torch.stack(images), labels, solved)


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
            rank_tolerance=RANK,
            tolerance=INSIDE,
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
class _PatchSpace:
    """Patches that the first attention allows: base_p plus combinations of the directions.

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


def _find_patch_space(readers: PatchReaders, span: SpanCheck, update: Update) -> _PatchSpace:
    """Solve for patches of which what was read lies in the span.

    Outside the span and the shift, s (matrix x + places) vanishes, and so does it without s. Two
    images in one place may differ by what two images differ by in any place, so the differences of
    all places are free. Patches also lie in the row space of the gradient of the embedding.
    """
    matrix, size = readers.matrix, readers.matrix.shape[1]
    patches = torch.eye(size, dtype=matrix.dtype, device=matrix.device)
    embedding = update.tensors.get(f"{readers.embedding}.weight")
    if embedding is not None and bool(embedding.any()):
        rows, _ = split_span(embedding.flatten(1), tolerance=RANK)
        patches = rows if len(rows) < min(embedding.flatten(1).shape) else patches
    held = torch.cat([span.basis, readers.shift[None]]) if readers.shift.any() else span.basis
    held = row_span(held, tolerance=RANK)
    outside = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device) - held.T @ held
    system = outside @ matrix @ patches.T
    fixed = row_span(system, tolerance=_FIXED)
    solved = torch.linalg.lstsq(system @ fixed.T, -outside @ readers.places.T).solution
    return _PatchSpace(solved.T @ fixed @ patches, _complement(fixed) @ patches)


def _complement(basis: Tensor) -> Tensor:
    """An orthonormal basis of what an orthonormal basis `(r, d)` leaves, `(d - r, d)`."""
    rest: Tensor = torch.linalg.svd(basis, full_matrices=True)[2][len(basis) :]
    return rest


@dataclass(frozen=True, eq=False)
class _OutsideSpans:
    """How far what later layers read of an image lies outside their spans, place by place."""

    task: Task
    readers: PatchReaders
    space: _PatchSpace
    layers: Sequence[str]
    complements: Sequence[Tensor]

    def shares(self, unknowns: Tensor) -> list[Tensor]:
        """For each layer, the part of its unit vectors that lies outside the span, `(T, d - r)`."""
        image = self.space.image(self.readers, unknowns)[None]
        read = run_until(self.task, self.task.domain.denormalise(image), self.layers)
        return [
            nn.functional.normalize(read[layer][0], dim=-1) @ complement.T
            for layer, complement in zip(self.layers, self.complements, strict=True)
        ]

    def __call__(self, unknowns: Tensor) -> Tensor:
        """The shares of all layers as one vector, `(e,)`."""
        return torch.cat([part.flatten() for part in self.shares(unknowns)])

    def derivative(self, unknowns: Tensor) -> Tensor:
        """The derivative by each unknown, `(e, n)`."""
        load_forward_mode()
        unit = torch.eye(len(unknowns), dtype=unknowns.dtype, device=unknowns.device)
        along = vmap(lambda way: jvp(self, (unknowns,), (way,))[1], chunk_size=_TOGETHER)
        columns: Tensor = along(unit)
        return columns.T


def _require_search(readers: PatchReaders, space: _PatchSpace, checks: Sequence[SpanCheck]) -> None:
    seen = torch.linalg.svdvals(readers.matrix @ space.directions.T)
    if len(seen) < len(space.directions) or not bool(seen[-1] > RANK * seen[0]):
        raise NotApplicable(
            f"the {len(readers.matrix)} channels of {readers.embedding} tell not all of the "
            f"{readers.matrix.shape[1]} entries of a patch, and its gradient does not tell the "
            "rest; use gradient matching"
        )
    opened = (
        f"the gradient of the first attention leaves {len(space.directions)} directions of each of "
        f"{len(space.base)} patches open, and"
    )
    if not checks:
        raise NotApplicable(
            f"{opened} no later layer spans what it read of whole images; use gradient matching"
        )
    if len(space.base) * len(space.directions) > _MOST:
        raise NotApplicable(
            f"{opened} at most {_MOST} in all can be searched; use gradient matching"
        )


def _guess_unknowns(
    readers: PatchReaders, space: _PatchSpace, rest: Update, noise: float
) -> Tensor:
    """Rough unknowns: what is read of them lies nearly in the span of the remaining gradient.

    Directions of that span count the less, the further they exceed what images that were taken
    off left behind; where it tells nothing, small patches are likely.

    Returns:
        `(N, k)`.
    """
    gradients = [rest.tensors[f"{layer}.weight"] for layer in readers.first]
    stacked = torch.cat([g / g.norm().clamp_min(1e-300) for g in gradients])
    _, values, rows = torch.linalg.svd(stacked, full_matrices=False)
    weighed = (noise / (values / values[0] + noise))[:, None] * rows
    system = weighed @ readers.matrix @ space.directions.T
    wanted = -weighed @ (readers.matrix @ space.base.T + readers.places.T)
    ridge = _RIDGE * torch.linalg.matrix_norm(readers.matrix, 2)
    unit = torch.eye(system.shape[1], dtype=system.dtype, device=system.device)
    likely = -space.base @ space.directions.T
    left, right = torch.cat([system, ridge * unit]), torch.cat([wanted, ridge * likely.T])
    solved: Tensor = torch.linalg.lstsq(left, right).solution
    return solved.T


def _search_image(
    task: Task,
    readers: PatchReaders,
    space: _PatchSpace,
    checks: Sequence[SpanCheck],
    rest: Update,
    found: Sequence[Tensor],
    *,
    rng: Rng,
) -> Tensor | None:
    """A further image that lies in the spans; None if none is found.

    Once some are found, searches begin where `rest`, what is left of the update, points to.
    """
    layers = [check.reader[0] for check in checks]
    outside = _OutsideSpans(task, readers, space, layers, [_complement(c.basis) for c in checks])
    for number in range(_STARTS):
        start = -space.base @ space.directions.T
        if found:
            start = _guess_unknowns(readers, space, rest, _ROUGH[number % len(_ROUGH)])
        start = start + _SPREAD * (number + 1) * rng.fork(number).normal(
            tuple(start.shape), like=start
        )
        solved, _ = least_squares(outside, start.flatten(), steps=_STEPS)
        worst = max(float(part.norm(dim=-1).max()) for part in outside.shares(solved))
        report(number + 1, _STARTS, worst)
        image = space.image(readers, solved)
        new = all(float((image - one).norm()) > _SAME * float(one.norm()) for one in found)
        if worst < _INSIDE and new:
            slopes = torch.linalg.svdvals(outside.derivative(solved))
            if not bool(slopes[-1] > _FLAT * slopes[0]):
                raise NotApplicable(
                    "more than one image lies in the spans, so they tell none apart; use gradient "
                    "matching"
                )
            return image
    return None


def _read_label(
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
            kept = len(split_span(observed, tolerance=RANK)[0])
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
