"""From one update to everybody's feature maps, and what can be said of each person."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.feature_maps._layer_below import solve_below
from seepage.attacks.feature_maps._map_layers import MapLayer, choose_layer, find_map_layers
from seepage.attacks.feature_maps._map_span import find_map_span, find_open_maps
from seepage.attacks.feature_maps._tell_apart import tell_apart
from seepage.attacks.feature_recovery._features import NotToldApartWarning
from seepage.core import Observation, Rng, require_continuous
from seepage.core._device import precision
from seepage.core._progress import report, staged
from seepage.core.errors import NotApplicable
from seepage.numerics._row_span import split_span
from seepage.search import KnownMap

# Singular values above this share of the largest are no rounding.
_RANK = 1e-6
# A map follows from the layer below if it does up to this share of its length.
FOLLOWS = 0.2


@dataclass(frozen=True, eq=False)
class FoundMaps:
    """What layers read of each person who was told apart.

    Args:
        known: What the lower of the two layers read, which says most about the images, or else what
            the upper one did.
        directions: What the upper layer read, up to a factor for each person, `(N, ...)`.
        layer: The name of the upper layer, whose gradient told the people apart.
        batch_size: Number of people in the batch.
        zeros: Share of the entries of each map that are zero, `(N,)`, by which people are told
            apart.
        outside: How far the patches of each map lie outside the row space of the gradient, relative
            to them, `(N,)`.
        misfits: How far each map is from what follows from the layer below, relative to it, `(N,)`;
            None if the layer below is not known.
    """

    known: KnownMap
    directions: Tensor
    layer: str
    batch_size: int
    zeros: Tensor
    outside: Tensor
    misfits: Tensor | None

    def __len__(self) -> int:
        """How many people were told apart."""
        return len(self.zeros)

    @property
    def missing(self) -> int:
        """How many people were not."""
        return self.batch_size - len(self)


def require_maps(observation: Observation) -> None:
    """Raise `NotApplicable` unless some layer may hold everybody's feature maps."""
    require_continuous(observation.task)
    choose_layer(trained_layers(observation), observation.batch_size or 1)


def trained_layers(observation: Observation) -> dict[str, MapLayer]:
    """The layers that read maps and whose gradient was shared and is not zero."""
    tensors = observation.update.tensors
    found = find_map_layers(observation.task)
    return {name: one for name, one in found.items() if bool(tensors[f"{name}.weight"].any())}


def recover_maps(observation: Observation, *, rng: Rng) -> FoundMaps:
    """Find everybody's feature maps, and what the layer below read, by linear algebra.

    Raises:
        NotApplicable: No layer has room for the batch, or nobody was told apart.
    """
    layers = trained_layers(observation)
    size = observation.batch_size or _infer_size(observation, layers)
    layer = choose_layer(layers, size)
    lower = layers.get(layer.below) if layer.below is not None else None
    tensors = observation.update.tensors
    with precision("float32"), torch.no_grad(), staged("feature maps"):
        span = find_map_span(layer, tensors[f"{layer.name}.weight"], size, rng=rng.fork("span"))
        report(1, 3, float(span.misfits[-1]))
        people = tell_apart(span.flat, span.misfits, rng=rng.fork("people"))
        report(2, 3, float(size - len(people)))
        if not len(people):
            raise NotApplicable(
                f"the gradient of {layer.name!r} holds the feature maps of {size} people, of whom "
                "none was told apart: their maps are too alike, as in a network that has learned "
                "little, or the update is noisy; use gradient matching"
            )
        below = None
        if lower is not None and lower.budget >= size:
            gradient = tensors[f"{lower.name}.weight"]
            opened = find_open_maps(lower, gradient, size, rng=rng.fork("below"))
            below = solve_below(observation.task, opened, people.maps)
        if below is not None and float(below.misfits.median()) > FOLLOWS:
            below = None
        if below is not None:
            # What follows from no input of the layer below is nobody's map.
            true = below.misfits <= FOLLOWS
            people, below = people.select(true), below.select(true)
        maps = people.maps.reshape(-1, *layer.shape)
        report(3, 3, 0.0)
    if len(people) < size:
        warnings.warn(
            f"{len(people)} of {size} people were told apart by their feature maps; the share of "
            "the others in the update is too small, their maps are too alike, or they are "
            "duplicates",
            NotToldApartWarning,
            stacklevel=2,
        )
    directions = maps.clamp_min(0).reshape(len(maps), *layer.read_shape)
    known = KnownMap(layer.name, directions, scaled=False)
    if lower is not None and below is not None:
        values = below.maps.reshape(len(maps), *lower.read_shape)
        known = KnownMap(lower.name, values, scaled=below.scaled)
    misfits = None if below is None else below.misfits
    outside = span.share_outside(maps)
    return FoundMaps(known, directions, layer.name, size, people.zeros, outside, misfits)


def _infer_size(observation: Observation, layers: Mapping[str, MapLayer]) -> int:
    """The batch size, from the rank of the gradient of a layer with room."""
    for layer in sorted(layers.values(), key=lambda one: -one.budget):
        if not (layer.serves and layer.budget):
            continue
        gradient = observation.update.tensors[f"{layer.name}.weight"].flatten(1)
        rank = len(split_span(gradient, tolerance=_RANK)[0])
        size = -(-rank // layer.positions)
        if size <= layer.budget:
            return size
    raise NotApplicable(
        "the gradient of no layer tells how many people are in the batch: it is noisy, or the "
        "batch is larger than any layer has room for; give the batch size"
    )
