"""Read what a training loop has: the batch, the range of its inputs, and the loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seepage.attacks.inverting_gradients import inverting_gradients
from seepage.attacks.labels.infer_labels import InferLabels
from seepage.clients.gradient import Reduction
from seepage.core import Attack, Batch, Domain, Observation, Reconstruction, Rng
from seepage.core.device import upcast
from seepage.core.errors import InvalidValue, NotApplicable, SeepageError, summarise_error
from seepage.core.rng import require_key
from seepage.core.task import Loss
from seepage.domains import Image, Signal
from seepage.domains.box import Box

_INPUTS = ("pixel_values", "inputs", "inputs_embeds", "x", "input_ids")


def read_batch(batch: object) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of a pair, a `Batch`, or a mapping as data loaders give them."""
    if isinstance(batch, Batch):
        return batch.inputs, batch.labels
    if isinstance(batch, Mapping):
        named = next((key for key in _INPUTS if key in batch), None)
        pair = (None if named is None else batch.get(named), batch.get("labels"))
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        pair = (batch[0], batch[1])
    else:
        pair = (None, None)
    inputs, labels = pair
    if not isinstance(inputs, Tensor) or not isinstance(labels, Tensor):
        raise InvalidValue(
            "expected a batch as (inputs, labels), two tensors, or a mapping of "
            f"{', '.join(_INPUTS)} and labels, got {type(batch).__name__}"
        )
    return inputs, labels


def check_batch(inputs: Tensor, labels: Tensor) -> Batch:
    """Return the batch as attacks can read it, or raise with the reason why they cannot."""
    if labels.ndim == 1 and not labels.is_floating_point() and labels.dtype != torch.bool:
        labels = labels.long()
    if labels.ndim == 2 and labels.shape[1] == 1 and not labels.is_floating_point():
        labels = labels[:, 0].long()
    if labels.ndim not in (1, 2) or (labels.ndim == 1 and labels.dtype != torch.int64):
        raise NotApplicable(
            f"expected class numbers (B,) or class probabilities (B, K), got labels of shape "
            f"{tuple(labels.shape)} and {labels.dtype}: only classifiers can be audited so far"
        )
    # Double precision stays, or a network in it would read other numbers than in training.
    whole = not inputs.is_floating_point()
    kept = inputs.long() if whole else upcast(inputs)
    return Batch(kept.detach().clone(), labels.detach().clone())


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
    """Make images of three axes; anything else is channels of numbers in a row."""
    if len(shape) == 3:
        return Image(shape, bounds=bounds)
    if len(shape) == 1:
        return Signal((1, *shape), bounds=bounds)
    return Signal((shape[0], math.prod(shape[1:])), bounds=bounds)


_CLOSE = 1e-4


@dataclass(frozen=True)
class _OneByOne:
    """A reduced loss, computed for each example alone."""

    loss: Callable[[Any, Tensor], Tensor]

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Compute one value per example."""
        pairs = ((outputs[i : i + 1], labels[i : i + 1]) for i in range(len(labels)))
        return torch.stack([self.loss(one, label).reshape(()) for one, label in pairs])


@dataclass(frozen=True)
class _OfLogits:
    """A loss that reads `.logits` of what a network returns, given the logits alone."""

    loss: Callable[[Any, Tensor], Tensor]

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Wrap the logits and call the loss."""
        return self.loss(SimpleNamespace(logits=outputs), labels)


def unreduce_loss(
    loss: Callable[[Any, Tensor], Tensor], outputs: Tensor, labels: Tensor
) -> tuple[Loss, Reduction]:
    """Return the loss unreduced, and how it was reduced, found on the outputs of the step itself.

    Args:
        loss: As the training loop calls it.
        outputs: Logits `(B, K)`.
        labels: `(B,)` or `(B, K)`.

    Example:
        >>> outputs, labels = torch.eye(3), torch.tensor([0, 1, 1])
        >>> unreduce_loss(nn.CrossEntropyLoss(reduction="sum"), outputs, labels)
        (CrossEntropyLoss(), 'sum')
    """
    if not callable(loss):
        raise InvalidValue(f"expected a loss to call on outputs and labels, got {loss!r}")
    loss, value = _call_loss(loss, outputs, labels)
    if value.shape == labels.shape[:1] and (len(labels) > 1 or value.ndim == 1):
        return loss, "mean"
    if value.numel() != 1:
        raise InvalidValue(
            f"expected a loss of one number, or one per example ({len(labels)},), got "
            f"{tuple(value.shape)}"
        )
    for unreduced in _list_unreduced(loss):
        losses = unreduced(outputs, labels)
        if losses.shape != labels.shape[:1]:
            continue
        reductions: tuple[tuple[Reduction, Tensor], ...] = (
            ("mean", losses.mean()),
            ("sum", losses.sum()),
        )
        for name, reduced in reductions:
            if torch.allclose(reduced, value.reshape(()), rtol=_CLOSE, atol=1e-7):
                return unreduced, name
    raise InvalidValue(
        "expected a loss that is the mean or the sum of the losses of each example, got one that "
        "is neither; leave class weights and terms that tie examples together out of the audit"
    )


def _call_loss(
    loss: Callable[[Any, Tensor], Tensor], outputs: Tensor, labels: Tensor
) -> tuple[Callable[[Any, Tensor], Tensor], Tensor]:
    try:
        try:
            value = loss(outputs, labels)
        except AttributeError:
            loss = _OfLogits(loss)
            value = loss(outputs, labels)
    except Exception as error:
        raise InvalidValue(
            f"expected a loss of outputs {tuple(outputs.shape)} and labels {tuple(labels.shape)}, "
            f"but it raised {summarise_error(error)}"
        ) from error
    if not isinstance(value, Tensor):
        raise InvalidValue(f"expected a loss that is a tensor, got {type(value).__name__}")
    return loss, value


def _list_unreduced(loss: Callable[[Any, Tensor], Tensor]) -> list[Loss]:
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", "none") != "none":
        unreduced = copy.deepcopy(loss)
        unreduced.reduction = "none"  # type: ignore[assignment]
        return [unreduced, _OneByOne(loss)]
    return [_OneByOne(loss)]
