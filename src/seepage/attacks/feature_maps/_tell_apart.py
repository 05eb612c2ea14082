"""Tell people apart within a span of feature maps, by the zeros that a ReLU left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from seepage.attacks.feature_maps._extreme_maps import MapCone
from seepage.core import Rng

# Entries that are no larger, relative to the largest of the span, are zero for everybody.
_DEAD = 1e-4
# Maps that lie in the span better than this are searched for corners; programs for each person, and
# some more.
_CLEAN, _PROGRAMS, _MORE = 1e-4, 5, 8
# How far below zero entries may be, in units of the root of the misfit and at least.
_SLACK, _LEAST = 3.0, 1e-6
# Starts of the descent for each person; its steps; entries that it looks at.
_STARTS, _STEPS, _ENTRIES = 100, 150, 2_000
# Entries of this size count half as nonzero, at first and at the end; usual ones have size 1.
_FIRST, _LAST = 1.0, 0.03
# Shares of the largest entry below which entries count as zero, as the fit gets better.
_SHARES, _FINAL = (0.02, 0.005, 1e-3), (2e-4, 2e-4)
_QUIETEST = 0.03
# A person's map has so many zeros at least, and no more negative entries than that. Other corners
# have fewer zeros than the third number.
_ZEROS, _NEGATIVE, _ZERO = 0.04, 0.02, 2e-3
_CORNER_ZEROS, _CORNER_ZERO = 0.15, 5e-4
_SAME, _EQUAL = 0.995, 1 - 1e-6


@dataclass(frozen=True, eq=False)
class People:
    """Those who were told apart.

    Args:
        maps: Their directions, `(N, n)`, of length one, hardly an entry of which is negative.
        zeros: Share of the entries of each that are zero though they are not for all, `(N,)`.
    """

    maps: Tensor
    zeros: Tensor

    def __len__(self) -> int:
        return len(self.maps)

    def select(self, chosen: Tensor) -> People:
        """Some of them, by a mask."""
        return People(self.maps[chosen], self.zeros[chosen])


def tell_apart(span: Tensor, misfits: Tensor, *, rng: Rng) -> People:
    """Find the people in an orthonormal span of their maps, `(n, K)`.

    Behind a ReLU no entry of a map is negative, and many are zero. So people are corners of the
    cone of maps without negative entries, with far more zeros than other corners. Linear programs
    find them where the span is exact, however alike the maps are. Where it is noisy, a descent
    finds directions with many small entries. Least squares on the smallest entries makes both
    exact.

    Args:
        span: The first columns lie in the row space best.
        misfits: How well each does, `(K,)`.
        rng: All randomness.
    """
    if span.shape[1] == 1:
        alone = span.T * span.sum().sign()
        return People(alone, (alone < _ZERO * alone.max()).double().mean(1))
    sizes = span.norm(dim=1)
    rows = span[sizes > _DEAD * sizes.max()]
    kept, shares = list[Tensor](), list[float]()
    clean = int((misfits < _CLEAN).sum())
    if clean > 1:
        _search_corners(rows[:, :clean], misfits[:clean], kept, shares, rng=rng.fork("corners"))
        unused = rows.shape[1] - clean
        kept = [torch.cat([one, one.new_zeros(unused)]) for one in kept]
    if len(kept) < rows.shape[1]:
        _search_zeros(rows, kept, shares, rng=rng.fork("zeros"))
    maps = torch.stack([span @ one for one in kept]) if kept else span.new_zeros(0, len(span))
    maps = normalize(maps * maps.sum(1, keepdim=True).sign(), dim=1)
    return People(maps, span.new_tensor(shares))


def _accept(
    rows: Tensor,
    direction: Tensor,
    kept: list[Tensor],
    shares: list[float],
    *,
    zero: float = _ZERO,
    zeros: float = _ZEROS,
    negative: float = _NEGATIVE,
) -> None:
    """Keep a direction if it is a person, and a new one."""
    values = rows @ direction
    values = values * values.sum().sign()
    peak = values.max()
    share = float((values.abs() < zero * peak).double().mean())
    below = float((values < -zero * peak).double().mean())
    new = all(abs(float(direction @ other)) < _EQUAL for other in kept)
    if new and below <= negative and share >= zeros:
        kept.append(direction)
        shares.append(share)


def _search_corners(
    rows: Tensor, misfits: Tensor, kept: list[Tensor], shares: list[float], *, rng: Rng
) -> None:
    """Corners of the cone; an objective that is zero for all people found leads to another."""
    size = rows.shape[1]
    scaled = rows / rows.square().mean().sqrt()
    slack = max(_LEAST, _SLACK * float(misfits.max().clamp_min(0).sqrt()))
    cone = MapCone(scaled, slack=slack, rng=rng.fork("rows"))
    apart = scaled - scaled.mean(0)
    values, axes = torch.linalg.eigh(apart.T @ apart / len(apart))
    # Objectives are drawn evenly over the ways in which maps differ, however alike they are.
    even = axes * values.clamp_min(float(values[-1]) * 1e-12).sqrt()
    first = max(_FINAL[0], 0.3 * slack)
    for number in range(_PROGRAMS * size + _MORE):
        objective = even @ rng.fork("objective", number).normal((size,), like=rows)
        if kept:
            basis = torch.linalg.qr(torch.stack(kept).T).Q
            objective = objective - basis @ (basis.T @ objective)
        corner = cone.corner(objective)
        if corner is None:
            continue
        direction = _refine(rows, normalize(corner, dim=0), (first, max(_FINAL[0], first / 4)))
        zero = max(_CORNER_ZERO, slack)
        _accept(
            rows, direction, kept, shares, zero=zero, zeros=_CORNER_ZEROS, negative=_QUIETEST / size
        )
        if len(kept) == size:
            break


def _search_zeros(rows: Tensor, kept: list[Tensor], shares: list[float], *, rng: Rng) -> None:
    """Directions with many small entries, beside those that were kept already."""
    ends = _descend(rows, rng=rng)
    known = torch.zeros(len(ends), dtype=torch.bool, device=ends.device)
    for one in kept:
        known |= (ends @ one).abs() > _SAME
    for number in range(len(ends)):
        if known[number]:
            continue
        direction = _refine(rows, ends[number], _SHARES)
        known |= (ends @ direction).abs() > _SAME
        known[number] = True
        _accept(rows, direction, kept, shares)
        if len(kept) == rows.shape[1]:
            break


def _descend(rows: Tensor, *, rng: Rng) -> Tensor:
    """Directions `(N, K)` with many small entries, those with the most first."""
    count, width = len(rows), rows.shape[1]
    scaled = (rows * count**0.5).float()
    starts = _STARTS * width
    ends = normalize(rng.fork("starts").normal((starts, width), like=scaled), dim=1)
    # Half of the starts are orthogonal to an entry, so that this one is zero.
    drawn = (rng.fork("entries").uniform((starts // 2,)) * count).long().to(rows.device)
    away = normalize(scaled[drawn], dim=1)
    half = ends[: starts // 2]
    half = normalize(half - (half * away).sum(1, keepdim=True) * away, dim=1)
    ends = torch.cat([half, ends[starts // 2 :]])
    some = scaled[:: max(1, count // _ENTRIES)]
    for step in range(_STEPS):
        done = step / _STEPS
        size = _FIRST * (_LAST / _FIRST) ** done
        values = ends @ some.T
        slope = (torch.exp(-0.5 * (values / size).square()) * values) @ some
        slope = slope - (slope * ends).sum(1, keepdim=True) * ends
        ends = normalize(ends - 0.3 * (1 - 0.9 * done) * normalize(slope, dim=1), dim=1)
    small = ((ends @ some.T).abs() < 0.02).float().mean(1)
    return ends[small.argsort(descending=True)].double()


def _refine(rows: Tensor, direction: Tensor, shares: Sequence[float]) -> Tensor:
    """The direction in which the smallest entries vanish; chosen anew at each step."""
    for share in (*shares, *_FINAL):
        values = (rows @ direction).abs()
        limit = max(share * float(values.max()), float(values.quantile(_QUIETEST)))
        quiet = rows[values < limit]
        direction = torch.linalg.eigh(quiet.T @ quiet)[1][:, 0]
    return direction
