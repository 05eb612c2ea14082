"""The feature maps all of whose patches lie in the row space of a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.feature_maps._map_layers import MapLayer
from seepage.core import Rng

# Maps with a smaller misfit may lie in the span.
_OPEN = 1e-3
# A map lies in the span if its misfit is below this share of that of the next ones.
_NEXT = 0.5
# Rounds of the iteration, its degree, and the changes of misfits at which it ends.
_ROUNDS, _DEGREE, _SETTLED, _CLOSE = 40, 8, 1e-12, 1e-2
# Maps with so few entries need no iteration.
_DENSE = 2048
# Eigenvalues up to this are damped at first, then those below all that are kept.
_DAMPED, _MOST_DAMPED = 0.8, 0.97


@dataclass(frozen=True, eq=False)
class MapSpan:
    """Maps whose patches lie in the span, up to mixtures.

    Args:
        layer: The layer that reads them.
        rows: An orthonormal basis `(C k k, r)` of the patches.
        basis: Maps `(K, C, H, W)`.
        misfits: Share of the squared patches that lies outside the span, ascending, `(K,)`.
        next_misfit: The same of the best map that was left out.
    """

    layer: MapLayer
    rows: Tensor
    basis: Tensor
    misfits: Tensor
    next_misfit: float

    @property
    def flat(self) -> Tensor:
        """An orthonormal basis of the maps as columns, `(C H W, K)`."""
        flat: Tensor = torch.linalg.qr(self.basis.flatten(1).T).Q
        return flat

    def share_outside(self, maps: Tensor) -> Tensor:
        """How far patches of maps `(N, C, H, W)` lie outside the span, relative to them, `(N,)`."""
        patches = _centre(self.layer, self.layer.unfold(maps.to(self.rows)))
        left = patches - self.rows @ (self.rows.T @ patches)
        whole = patches.flatten(1).norm(dim=1).clamp_min(1e-300)
        shares: Tensor = left.flatten(1).norm(dim=1) / whole
        return shares


def patch_rows(gradient: Tensor, rank: int) -> Tensor:
    """An orthonormal basis `(C k k, rank)` of the patches that a layer read, by its gradient."""
    rows: Tensor = torch.linalg.svd(gradient.flatten(1).double(), full_matrices=False)[2][:rank]
    return rows.T.contiguous()


def find_map_span(layer: MapLayer, gradient: Tensor, batch_size: int, *, rng: Rng) -> MapSpan:
    """Find the maps of a batch up to mixtures: exactly B if patches overlap enough.

    A map lies in the space if all its patches do. With D, how often an entry is read, and Q, the
    patches' basis, these are the eigenvectors of eigenvalue one of

        D^-1/2 fold(Q Q^T unfold(D^-1/2 .))

    Behind normalisation by the batch the errors of a channel sum to zero, so that the gradient
    holds differences of patches only. Then the patches of a map are taken less their mean.
    """
    rows = patch_rows(gradient, layer.rank(batch_size))
    width = batch_size + max(8, batch_size // 2)
    basis, misfits = _largest(layer, rows, width, settle=batch_size, rng=rng)
    kept = max(1, int((misfits[:batch_size] < _NEXT * misfits[batch_size]).sum()))
    return MapSpan(layer, rows, basis[:kept], misfits[:kept], float(misfits[kept]))


def find_open_maps(layer: MapLayer, gradient: Tensor, batch_size: int, *, rng: Rng) -> MapSpan:
    """Find all maps whose patches lie nearly in the span, also where strides leave many.

    More than fit cost nothing, as other equations choose among them.
    """
    rows = patch_rows(gradient, layer.rank(batch_size))
    width = rows.shape[1] + (layer.shape[0] if layer.by_batch else 0) + 16
    while True:
        width = min(width, layer.entries)
        basis, misfits = _largest(layer, rows, width, rng=rng)
        kept = int((misfits < _OPEN).sum())
        if kept < width or width == layer.entries:
            last = float(misfits[kept]) if kept < width else 1.0
            return MapSpan(layer, rows, basis[:kept], misfits[:kept], last)
        width = 2 * width


def _centre(layer: MapLayer, patches: Tensor) -> Tensor:
    return patches - patches.mean(2, keepdim=True) if layer.by_batch else patches


def _largest(
    layer: MapLayer, rows: Tensor, width: int, *, rng: Rng, settle: int | None = None
) -> tuple[Tensor, Tensor]:
    """So many maps that fit best, and their misfits, ascending; large ones by Chebyshev iteration.

    It ends once so many misfits have settled, or all that are small.
    """
    scale = layer.cover(rows).rsqrt()

    def apply(flat: Tensor) -> Tensor:
        done = []
        for maps in layer.in_parts(flat.reshape(-1, *layer.shape)):
            patches = _centre(layer, layer.unfold(maps * scale))
            outside = patches - rows @ (rows.T @ patches)
            done.append(maps - layer.fold(outside) * scale)
        return torch.cat(done).flatten(1)

    width = min(layer.entries, width)
    if layer.entries <= _DENSE:
        whole = apply(torch.eye(layer.entries, dtype=rows.dtype, device=rows.device))
        values, vectors = torch.linalg.eigh((whole + whole.T) / 2)
        vectors, values = vectors.T[-width:].flip(0), values[-width:].flip(0)
        return vectors.reshape(-1, *layer.shape) * scale, 1 - values
    vectors = rng.fork(layer.name).normal((width, layer.entries), like=rows)
    misfits, before, damped = rows.new_zeros(width), rows.new_ones(width), _DAMPED
    for _ in range(_ROUNDS):
        last, now = vectors, (2 / damped) * apply(vectors) - vectors
        for _ in range(_DEGREE):
            last, now = now, 2 * ((2 / damped) * apply(now) - now) - last
        vectors = torch.linalg.qr(now.T).Q.T
        values, turn = torch.linalg.eigh(vectors @ apply(vectors).T)
        vectors, misfits = (turn.T @ vectors).flip(0), 1 - values.flip(0)
        change = (misfits - before).abs()
        settled = change < _SETTLED + _CLOSE * misfits
        watched = settled[:settle] if settle else settled[misfits < _OPEN]
        if len(watched) and bool(watched.all()):
            break
        before = misfits
        damped = min(max(1 - float(misfits[-1]), _DAMPED / 2), _MOST_DAMPED)
    return vectors.reshape(-1, *layer.shape) * scale, misfits
