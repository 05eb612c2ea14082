"""Layers with rows that repeat one row, or units that measure one thing: they sort into bins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core import Rng, Task
from seepage.core._digest import digest
from seepage.core.errors import NotApplicable
from seepage.data._public_data import make_up
from seepage.probing._first_layer import list_calls

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# In fewer dimensions, directions coincide by chance.
DIMENSIONS = 16
# Rows are compared with so many of them, so many at a time.
PIVOTS, HELD = 512, 64
FEWEST_ROWS = 4
# A cosine, the share of rows that nearly no training brings so near to one row, and how many such
# rows are enough to sort inputs into bins, however many others there are.
REPEATED = ((0.999, 0.1, 16.0), (0.9, 0.3, math.inf))
# Entries are also compared cut off at this multiple of the median entry of their row.
LARGEST_ENTRY = 3.0


@dataclass(frozen=True, eq=False)
class _LayerRows:
    """The weights of a layer as a matrix `(rows, entries)`, and the bias, without rows of zeros."""

    name: str
    convolutional: bool
    matrix: Tensor
    bias: Tensor | None


def list_rows(task: Task) -> Iterator[_LayerRows]:
    """Every linear layer and convolution of a network."""
    for name, module in task.model.named_modules():
        if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            matrix = module.weight.detach().flatten(1)
            # Below the smallest normal number rounding decides the direction. How large other rows
            # are must not matter: one huge row would hide all others.
            alive = matrix.abs().amax(1) >= torch.finfo(matrix.dtype).tiny
            bias = None if module.bias is None else module.bias.detach()[alive]
            yield _LayerRows(name, isinstance(module, CONVOLUTIONS), matrix[alive], bias)


@dataclass(frozen=True)
class _RepeatedRows:
    """How many rows of a layer are one row up to scale, and whether their biases make bins."""

    count: int
    is_bins: bool


def find_repeated_rows(rows: _LayerRows) -> _RepeatedRows | None:
    """The group of parallel rows that says most: bins before rows that only repeat; None if few.

    Example:
        >>> biases = torch.linspace(-1.0, 1.0, 20)
        >>> find_repeated_rows(_LayerRows("bins", False, torch.ones(20, 30), biases))
        _RepeatedRows(count=20, is_bins=True)
    """
    found = list[_RepeatedRows]()
    for directions in (rows.matrix, _cut_entries(rows.matrix)):
        groups = _parallel_rows(directions, [cosine for cosine, _, _ in REPEATED])
        for group, (_, share, enough) in zip(groups, REPEATED, strict=True):
            fewest = max(FEWEST_ROWS, share * len(rows.matrix))
            cuts = 0 if rows.bias is None else _count_cuts(rows.matrix[group], rows.bias[group])
            is_bins = rows.bias is not None and cuts >= min(fewest, enough)
            if is_bins or len(group) >= fewest:
                found.append(_RepeatedRows(len(group), is_bins))
    return max(found, key=lambda one: one.is_bins, default=None)


def _cut_entries(matrix: Tensor) -> Tensor:
    """The rows with no entry above a multiple of the median of those that are not zero."""
    size = matrix.double().abs()
    median = torch.where(size > 0, size, torch.nan).nanmedian(dim=1, keepdim=True).values
    return matrix.sign() * torch.minimum(size, LARGEST_ENTRY * median)


def _parallel_rows(matrix: Tensor, cosines: Sequence[float]) -> list[Tensor]:
    """For each cosine, the numbers of the most rows that are so near to one row, up to sign.

    Rows are compared with some of them. Which these are depends on the weights, so that nobody can
    place rows around them.
    """
    if matrix.shape[1] < DIMENSIONS or len(matrix) < FEWEST_ROWS:
        return [torch.empty(0, dtype=torch.long)] * len(cosines)
    # `normalize` alone would not make rows of tiny entries unit vectors.
    scaled = matrix.double() / matrix.double().abs().amax(1, keepdim=True)
    unit = torch.nn.functional.normalize(scaled, dim=1).float()
    chosen = Rng(0).fork("pivots", digest(matrix)).permutation(len(unit))[:PIVOTS]
    best = [torch.zeros(len(unit), dtype=torch.bool, device=unit.device)] * len(cosines)
    for part in torch.split(unit[chosen.to(unit.device)], HELD):
        near = (part @ unit.T).abs()
        for number, cosine in enumerate(cosines):
            alike = near > cosine
            most = alike[alike.sum(1).argmax()]
            best[number] = max(best[number], most, key=lambda rows: int(rows.sum()))
    return [rows.nonzero()[:, 0] for rows in best]


def _count_cuts(matrix: Tensor, bias: Tensor) -> int:
    """At how many different places parallel rows cut their common direction."""
    if not len(matrix):
        return 0
    wide = matrix.double()
    side = (wide @ wide[0]).sign()
    cuts = (side * bias.double() / wide.norm(dim=1)).sort().values
    spread = cuts[-1] - cuts[0]
    return 1 + int((cuts.diff() > 1e-9 * spread).sum())


# Made-up inputs, each also dark and light: bins lie where the private inputs are expected.
_INPUTS, _DARK = 64, 0.25
# Units whose values have this correlation over the inputs measure one thing. Of honest first
# layers, trained or not, at most five such units cut it at different places.
_ALIKE, FEWEST_CUTS = 0.95, 16
# Units are compared with at most so many of them, so many at a time; values of so many inputs.
_PIVOTS, _HELD, _ROWS = 2048, 256, 2048
# What is read is linear in the input if the mean of two inputs gives the mean, up to this share.
_EXACT = 1e-4
# A unit whose values vary less than this, relative to the most, measures nothing.
_STILL = 1e-9


@dataclass(frozen=True)
class _SortingUnits:
    """A layer whose units sort inputs into bins.

    Args:
        layer: Its name.
        count: Units that measure the same.
        units: Units in all.
        cuts: Places at which these cut inputs apart.
    """

    layer: str
    count: int
    units: int
    cuts: int


def find_sorting_units(task: Task) -> Iterator[_SortingUnits]:
    """Find linear layers with many units of one value that are zero at different inputs.

    A row that sorts inputs into bins can be hidden by noise as large as the row, since inputs have
    far more of what the row measures than of noise. So units are compared by their values on
    made-up inputs, and not by their weights. Of the units in a group, those count that are positive
    for different numbers of inputs. Where random rows are as much alike, as behind a layer of few
    units, inputs differ too little to tell.

    Kernels as large as what they read are linear layers as well; other convolutions are left out,
    since places of an image are alike under most kernels.
    """
    if task.domain.discrete:
        return
    try:
        natural = make_up(task.domain, _INPUTS, rng=Rng(0).fork("sorting units")).inputs
    except NotApplicable:
        return
    low, high = task.domain.bounds
    dark = low + _DARK * (natural - low)
    found: dict[str, _SortingUnits] = {}
    for inputs in (natural, dark, low + high - dark):
        for name, read, values in _run(task, task.domain.project(inputs)):
            group = _find_group(read, values)
            if group is None:
                continue
            count, cuts = group
            if name not in found or cuts > found[name].cuts:
                found[name] = _SortingUnits(name, count, values.shape[1], cuts)
    yield from found.values()


def _run(task: Task, inputs: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
    """What each layer read and gave that is linear in the input, as `(N, n)` and `(N, units)`."""
    halves = inputs.chunk(2)
    both = torch.cat([*halves, (halves[0] + halves[1]) / 2])
    normalised = task.domain.normalise(task.move_inputs(both))
    modules = dict(task.in_mode("eval").network.named_modules())
    for name, read in list_calls(task, (nn.Linear, *CONVOLUTIONS), normalised):
        layer = modules[name]
        if len(read) != len(both) or read.ndim < 2 or not _is_linear(read):
            continue
        with torch.no_grad():
            values = layer(read[: len(inputs)])
        if isinstance(layer, CONVOLUTIONS):
            if values[0, 0].numel() > 1:
                continue
            values = values.flatten(1)
        wide = values.reshape(-1, values.shape[-1]).double()[:_ROWS]
        held = read[: len(inputs)].double()
        held = held.reshape(len(wide), -1) if len(wide) < _ROWS else held.flatten(0, -2)[:_ROWS]
        if wide.shape[1] >= FEWEST_CUTS and held.shape[1] >= DIMENSIONS and wide.isfinite().all():
            yield name, held, wide


def _is_linear(read: Tensor) -> bool:
    """Whether the last third of what was read is the mean of the other two, up to rounding."""
    first, second, middle = read.double().chunk(3)
    off = float((middle - (first + second) / 2).abs().max())
    return off <= _EXACT * float(read.abs().max())


def _find_group(read: Tensor, values: Tensor) -> tuple[int, int] | None:
    """How many units are alike, and how many different cuts they make; None if too few."""
    count, cuts = _count_sorting_cuts(values)
    if cuts < FEWEST_CUTS:
        return None
    rows = Rng(0).fork("rows").normal((read.shape[1], values.shape[1]), like=read)
    # Random rows that are as much alike say that the inputs leave no other choice.
    alone = _count_sorting_cuts((read - read.mean(0)) @ rows)[0]
    return None if alone >= FEWEST_CUTS else (count, cuts)


def _count_sorting_cuts(values: Tensor) -> tuple[int, int]:
    """The size of the group with the most cuts, and how many cuts it makes."""
    centred = values - values.mean(0)
    length = centred.norm(dim=0)
    moving = length > _STILL * length.max()
    values, unit = values[:, moving], centred[:, moving] / length[moving]
    positive = (values > 0).sum(0)
    chosen = Rng(0).fork("pivots").permutation(unit.shape[1])[:_PIVOTS].to(unit.device)
    best = (0, 0)
    for part in torch.split(unit[:, chosen], _HELD, dim=1):
        near = part.T @ unit
        for row in near[(near.abs() > _ALIKE).sum(1) >= FEWEST_CUTS]:
            alike = row.abs() > _ALIKE
            # A unit of the other sign is positive for the others.
            sorted_ = torch.where(row > 0, positive, len(values) - positive)[alike]
            cuts = torch.unique(sorted_[(sorted_ > 0) & (sorted_ < len(values))])
            best = max(best, (int(alike.sum()), len(cuts)), key=lambda one: (one[1], one[0]))
        if best[1] >= 4 * FEWEST_CUTS:
            break
    return best
