"""Units of a layer that measure one thing and cut it at many places, whatever their rows are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.core import Rng, Task
from seepage.core.errors import NotApplicable
from seepage.domains import Tokens
from seepage.exposure.repeated_rows import CONVOLUTIONS, DIMENSIONS
from seepage.probing.first_layer import list_calls
from seepage.rehearsal.public_data import make_up

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
class SortingUnits:
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


def find_sorting_units(task: Task) -> Iterator[SortingUnits]:
    """Find linear layers with many units of one value that are zero at different inputs.

    A row that sorts inputs into bins can be hidden by noise as large as the row, since inputs have
    far more of what the row measures than of noise. So units are compared by their values on
    made-up inputs, and not by their weights. Of the units in a group, those count that are positive
    for different numbers of inputs. Where random rows are as much alike, as behind a layer of few
    units, inputs differ too little to tell.

    Kernels as large as what they read are linear layers as well; other convolutions are left out,
    since places of an image are alike under most kernels.
    """
    if isinstance(task.domain, Tokens):
        return
    try:
        natural = make_up(task.domain, _INPUTS, rng=Rng(0).fork("sorting units")).inputs
    except NotApplicable:
        return
    low, high = getattr(task.domain, "bounds", (0.0, 1.0))
    dark = low + _DARK * (natural - low)
    found: dict[str, SortingUnits] = {}
    for inputs in (natural, dark, low + high - dark):
        for name, read, values in _run(task, task.domain.project(inputs)):
            group = _find_group(read, values)
            if group is None:
                continue
            count, cuts = group
            if name not in found or cuts > found[name].cuts:
                found[name] = SortingUnits(name, count, values.shape[1], cuts)
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
    count, cuts = _count_cuts(values)
    if cuts < FEWEST_CUTS:
        return None
    rows = Rng(0).fork("rows").normal((read.shape[1], values.shape[1]), like=read)
    # Random rows that are as much alike say that the inputs leave no other choice.
    alone = _count_cuts((read - read.mean(0)) @ rows)[0]
    return None if alone >= FEWEST_CUTS else (count, cuts)


def _count_cuts(values: Tensor) -> tuple[int, int]:
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
