"""Read what a training loop has: the batch, the range of its inputs, and the loss."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.inverting_gradients import inverting_gradients
from seepage.attacks.labels.infer_labels import InferLabels
from seepage.core import Attack, Batch, Domain, Observation, Reconstruction, Rng
from seepage.core.device import upcast
from seepage.core.errors import InvalidValue, SeepageError
from seepage.core.rng import require_key
from seepage.domains import Image, Signal, Vector
from seepage.domains.box import Box

_INPUTS = ("pixel_values", "inputs", "inputs_embeds", "x", "input_ids")


def read_batch(batch: object) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the inputs of a batch as data loaders give it, and everything behind them.

    That is labels, and weights or masks if there are any; nothing if the inputs are alone.
    """
    match batch:
        case Batch():
            parts: tuple[object, ...] = (batch.inputs, batch.labels)
        case Tensor():
            parts = (batch,)
        case Mapping():
            named = next((key for key in _INPUTS if key in batch), None)
            parts = tuple(batch.get(key) for key in (named, "labels"))
        case tuple() | list() if batch:
            parts = tuple(batch)
        case _:
            parts = (None,)
    parts = parts[:1] if parts[1:] == (None,) else parts
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if len(tensors) < len(parts):
        raise InvalidValue(
            "expected a batch as (inputs, labels), as (inputs, labels, weights), as inputs alone, "
            f"or a mapping of {', '.join(_INPUTS)} and labels, all of them tensors, got "
            f"{_describe_parts(batch, parts)}; labels of other kinds, such as boxes, cannot be "
            "audited"
        )
    return tensors[0], tuple(tensors[1:])


def _describe_parts(batch: object, parts: tuple[object, ...]) -> str:
    if parts == (None,):
        return type(batch).__name__
    return f"({', '.join(type(part).__name__ for part in parts)})"


def check_batch(inputs: Tensor, targets: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the batch as attacks can read it, or raise with the reason why they cannot."""
    if inputs.ndim < 2 or not len(inputs):
        raise InvalidValue(f"expected inputs (B, ...) with B >= 1, got {tuple(inputs.shape)}")
    for target in targets:
        if target.ndim == 0 or len(target) != len(inputs):
            raise InvalidValue(
                f"expected one label per input, got {len(inputs)} inputs and labels of shape "
                f"{tuple(target.shape)}"
            )
    # Double precision stays, or a network in it would read other numbers than in training.
    kept = upcast(inputs) if inputs.is_floating_point() else inputs.long()
    return kept.detach().clone(), tuple(_copy_target(target) for target in targets)


def _copy_target(target: Tensor) -> Tensor:
    """A copy, with class numbers as `(B,)` int64."""
    if target.is_floating_point():
        return target.detach().clone()
    if target.dtype != torch.bool and target.ndim == 2 and target.shape[1] == 1:
        target = target[:, 0]
    return target.detach().clone().long()


# Images that were normalised by the usual means and deviations lie in the first range. Other
# numbers, such as standardised columns and embeddings, have longer tails.
_IMAGES, _NUMBERS = (-3.0, 3.0), (-8.0, 8.0)
# Ranges that searches try besides.
_NARROWER = ((0.0, 1.0), (-1.0, 1.0))


def choose_domain(
    shape: tuple[int, ...], *, declared: Domain | tuple[float, float] | None, others: Tensor | None
) -> tuple[Domain, str | None]:
    """Choose the space of the inputs, and say what was assumed; None if it was declared.

    The private batch is not looked at, since its lowest and highest value are private. A declared
    domain or range is taken as it is. Otherwise the range is that of public inputs, rounded up to
    [0, 1], [-1, 1] or the next powers of two. Without them it is wide: [-3, 3] for images and
    [-8, 8] for other numbers. Entries keep the scale in which the network reads them.

    Args:
        shape: Of one input, as the network reads it.
        declared: The domain, or the lowest and highest value.
        others: Inputs of people who are not in the batch.

    Example:
        >>> choose_domain((3, 8, 8), declared=(0, 1), others=None)[0]
        Image(shape=(3, 8, 8), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), bounds=(0, 1))
        >>> choose_domain((3, 8, 8), declared=None, others=None)[0].bounds
        (-3.0, 3.0)
    """
    if isinstance(declared, tuple):
        if not (len(declared) == 2 and all(math.isfinite(end) for end in declared)):
            raise InvalidValue(f"expected domain=(low, high) or a domain, got {declared!r}")
        return _box(shape, declared), None
    if declared is not None:
        return declared, None
    if others is not None and others.numel():
        bounds, source = _round_range(others), "as others= does"
    else:
        bounds = _IMAGES if len(shape) == 3 else _NUMBERS
        source = "wide enough for normalised inputs, and searches also try [0, 1] and [-1, 1]"
    return _box(shape, bounds), (
        f"inputs are assumed to lie in [{bounds[0]:g}, {bounds[1]:g}] as the network reads them, "
        f"{source}; give domain=(low, high) for their true range, or a domain for natural units"
    )


def require_range(inputs: Tensor, domain: Domain) -> None:
    """Raise `InvalidValue` if private inputs leave a range that was assumed."""
    if not bool(inputs.isfinite().all()):
        raise InvalidValue("expected finite inputs, got NaN or infinity; check the batch")
    low, high = domain.bounds
    if bool(((inputs < low) | (inputs > high)).any()):
        raise InvalidValue(
            f"expected inputs in [{low:g}, {high:g}], which is assumed where no range is declared, "
            "got values outside it; give domain=(low, high) with the range that everybody's inputs "
            "have"
        )


@dataclass(frozen=True)
class TryRanges:
    """Runs a search once for each range that inputs may have, and keeps the lowest objective.

    A search in too wide a range keeps the noise that it began with, and in too narrow a range it
    cannot explain the update. So the objective tells which range is right, and no truth is needed.

    Args:
        attack: The search.
        ranges: Lowest and highest values to try; each lies in the bounds of the domain.
    """

    attack: Attack
    ranges: tuple[tuple[float, float], ...]

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Search in each range."""
        require_key(rng)
        found = [self._search(observation, bounds, rng) for bounds in self.ranges]
        best = min(found, key=lambda guess: min(guess.trace.finals, default=math.inf))
        effort = replace(
            best.trace,
            finals=tuple(final for guess in found for final in guess.trace.finals),
            diverged=sum(guess.trace.diverged for guess in found),
            seconds=sum(guess.trace.seconds for guess in found),
        )
        return replace(best, trace=effort)

    def _search(
        self, observation: Observation, bounds: tuple[float, float], rng: Rng
    ) -> Reconstruction:
        return self.attack(_narrow(observation, bounds), rng=rng)


def _narrow(observation: Observation, bounds: tuple[float, float]) -> Observation:
    """The same observation, with inputs known to lie in a narrower range."""
    domain = observation.task.domain
    assert isinstance(domain, Box)
    task = replace(observation.task, domain=replace(domain, bounds=bounds))
    return replace(observation, task=task, simulate=observation.simulate.with_task(task))


@dataclass(frozen=True)
class FindRange:
    """Finds the range of inputs by a short search in each, then attacks in that range.

    Args:
        attack: The attack.
        ranges: As for `TryRanges`; the first is kept if no search runs.
        steps: Steps of the search in each range.
    """

    attack: Attack
    ranges: tuple[tuple[float, float], ...]
    steps: int = 100

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Probe every range, and attack in the best."""
        require_key(rng)
        probe = InferLabels(inverting_gradients(steps=self.steps, restarts=1, tv=1e-3))
        lowest: dict[tuple[float, float], float] = {}
        for bounds in self.ranges:
            with suppress(SeepageError):
                found = probe(_narrow(observation, bounds), rng=rng.fork("range"))
                lowest[bounds] = min(found.trace.finals, default=math.inf)
        best = min(lowest, key=lambda bounds: lowest[bounds], default=self.ranges[0])
        return self.attack(_narrow(observation, best), rng=rng)


def list_ranges(
    shape: tuple[int, ...], *, declared: Domain | tuple[float, float] | None, others: Tensor | None
) -> tuple[tuple[float, float], ...]:
    """List the ranges that a search tries; one that is declared or public is the only one.

    The arguments are those of `choose_domain`.

    Example:
        >>> list_ranges((3, 8, 8), declared=None, others=None)
        ((-3.0, 3.0), (0.0, 1.0), (-1.0, 1.0))
    """
    domain, assumed = choose_domain(shape, declared=declared, others=others)
    if assumed is None or others is not None:
        return (domain.bounds,)
    return (domain.bounds, *_NARROWER)


def _round_range(public: Tensor) -> tuple[float, float]:
    low, high = float(public.min()), float(public.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidValue("expected finite others, got NaN or infinity; check them")
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    reach = 2.0 ** max(0, math.ceil(math.log2(max(abs(low), abs(high), 1.0))))
    return -reach, reach


def _box(shape: tuple[int, ...], bounds: tuple[float, float]) -> Domain:
    """Make images of three axes and rows of one; others are channels of numbers in a row."""
    if len(shape) == 3:
        return Image(shape, bounds=bounds)
    if len(shape) == 1:
        return Vector(shape, bounds=bounds)
    return Signal((shape[0], math.prod(shape[1:])), bounds=bounds)
