"""How well a guess explains an update, tensor by tensor, and how exactly each tensor is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks._jacobian import exact_simulation
from seepage.core import Observation, Update
from seepage.core._device import convert, precision

# Rounding in float32 leaves a residual of 1e-7 to 1e-5; a defense that hides anything leaves more.
EXPLAINED = 1e-3
# How many times the error of a guess another one may leave that fits the update as well.
_AS_WELL = 10.0
# Precisions below float32, and the factor of their epsilon if their rounding cannot be measured.
_NARROW, _UNMEASURED = (torch.bfloat16, torch.float16), 10
# How far from a multiple of a step, in steps, rounding to float32 leaves entries of a grid.
_ON_GRID = 0.01

# Raised by networks whose parts, or whose device, only support float32.
FLOAT32_ALONE = (RuntimeError, TypeError)


@dataclass(frozen=True)
class Agreement:
    """How well a guess explains the update, tensor by tensor.

    Args:
        residual: The largest relative difference ||g_l(x, y) - g_l*|| / ||g_l*|| of a tensor l that
            tells anything, or that of the whole update if that is larger.
        telling: Names of the tensors that tell anything. The others are zero, or rounding changes
            them by more than 1e-3 of their length.
        errors: e_l, by how much each tensor may be off: its difference, and its rounding or what a
            known defense added.
    """

    residual: float
    telling: frozenset[str]
    errors: Mapping[str, float]

    def proves(self, *names: str) -> bool:
        """Whether the guess explains the update, and none of these tensors is zero or rounding."""
        return self.residual <= EXPLAINED and self.telling.issuperset(names)


def residual(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """Return the largest relative difference of a simulated tensor; see `Agreement`."""
    return compare_updates(observation, inputs, labels).residual


def fits_as_well(
    observation: Observation, inputs: Tensor, labels: Tensor, *, errors: Mapping[str, float]
) -> bool:
    """Whether another guess explains every tensor within these `errors`."""
    with torch.no_grad(), precision("float32"):
        apart = _distances(observation.simulate(inputs, labels), observation.update)
    # Rounding at the other guess is not measured, and may be somewhat larger.
    return all(apart[name] <= _AS_WELL * error for name, error in errors.items())


def compare_updates(observation: Observation, inputs: Tensor, labels: Tensor) -> Agreement:
    """Compare the update simulated at a guess with the observed one, tensor by tensor."""
    observed = observation.update
    with torch.no_grad(), precision("float32"):
        simulated = observation.simulate(inputs, labels)
    differences = _distances(simulated, observed)
    lengths = {name: _length(tensor) for name, tensor in observed.tensors.items()}
    whole, off = math.hypot(*lengths.values()), math.hypot(*differences.values())
    exact = _simulate_exactly(observation, inputs, labels)
    rounding = _estimate_rounding(observation, simulated, exact, whole=whole)
    telling = frozenset(
        name
        for name, length in lengths.items()
        if length > 0 and rounding[name] <= EXPLAINED * length
    )
    apart = [differences[name] / lengths[name] for name in telling]
    relative = off / whole if whole else (math.inf if off else 0.0)
    narrow = _estimate_narrow_rounding(observation, inputs, labels, exact)
    added = _estimate_added(observation)
    errors = {
        name: differences[name] + max(rounding[name], narrow.get(name, 0.0), added[name])
        for name in lengths
    }
    return Agreement(max([relative, *apart]), telling, errors)


def _simulate_exactly(observation: Observation, inputs: Tensor, labels: Tensor) -> Update | None:
    """Simulate in double precision; None if that does not run."""
    inputs, labels = (convert(t, torch.float64) for t in (inputs, labels))
    try:
        simulation = exact_simulation(observation)
        with torch.no_grad():
            return None if simulation is None else simulation(inputs, labels)
    except FLOAT32_ALONE:
        return None


def _estimate_rounding(
    observation: Observation, simulated: Update, exact: Update | None, *, whole: float
) -> dict[str, float]:
    """Estimate how much of each tensor is rounding: at least what double precision changes.

    If a simulation does not run in double precision, it is what its own precision may change.
    """
    update, parameters = observation.update, observation.task.parameters
    measured = dict.fromkeys(update.tensors, 0.0) if exact is None else _distances(simulated, exact)
    precise = next(iter(update)).dtype if exact is None else torch.float64
    rounding: dict[str, float] = {}
    for name, tensor in update.tensors.items():
        # A difference of parameters is rounded as they are.
        after = _length(parameters[name]) if update.kind == "difference" else 0.0
        rounding[name] = max(
            measured[name],
            torch.finfo(precise).eps * max(whole, after),
            torch.finfo(tensor.dtype).eps * _length(tensor),
        )
    return rounding


def _estimate_narrow_rounding(
    observation: Observation, inputs: Tensor, labels: Tensor, exact: Update | None
) -> dict[str, float]:
    """Estimate the rounding of a client that computed below float32; empty if it did not.

    The adversary gets its numbers in float32, so they tell by themselves: all of them are numbers
    of float16 or bfloat16.
    """
    task, update = observation.task, observation.update
    narrow = [
        dtype
        for dtype in _NARROW
        if _fits(update.tensors.values(), dtype) or _fits(task.parameters.values(), dtype)
    ]
    if not narrow:
        return {}
    dtype = max(narrow, key=lambda fitting: torch.finfo(fitting).eps)
    soft = convert(labels, dtype)
    measured = None
    if exact is not None:
        try:
            simulation = observation.simulate.with_task(task.to(dtype=dtype))
            with torch.no_grad():
                measured = _distances(simulation(inputs.to(dtype), soft), exact)
        except FLOAT32_ALONE:
            measured = None
    limits = torch.finfo(dtype)
    factor = 1 if measured else _UNMEASURED
    rounding: dict[str, float] = {}
    for name, tensor in update.tensors.items():
        after = _length(task.parameters[name]) if update.kind == "difference" else 0.0
        # Numbers too small for the exponent are rounded to multiples of the smallest one.
        least = limits.eps * limits.tiny * math.sqrt(tensor.numel())
        floor = factor * limits.eps * max(_length(tensor), after) + least
        rounding[name] = max(floor, measured[name] if measured else 0.0)
    return rounding


def _estimate_added(observation: Observation) -> dict[str, float]:
    """Estimate the length of what was added to each tensor: known noise, and rounding to a grid.

    A solution of few equations fits noise and all, so the difference does not show it. That entries
    were rounded they tell by themselves, whether the defense is known or not.
    """
    client, update = observation.simulate.client, observation.update
    std = 0.0 if client is None else client.chain.noise
    grids = (2 ** (bits - 1) - 1 for bits in range(2, 17))
    tensors = [*update]
    levels = next((n for n in grids if all(_lies_on_grid(t, n) for t in tensors)), None)
    added: dict[str, float] = {}
    for name, tensor in update.tensors.items():
        # Three deviations more than expected; half a step for each entry.
        noise = std * (math.sqrt(tensor.numel()) + 3)
        half = float(tensor.abs().max()) / (2 * levels) if levels else 0.0
        added[name] = noise + half * math.sqrt(tensor.numel())
    return added


def _lies_on_grid(tensor: Tensor, levels: int) -> bool:
    """Whether all entries are multiples of the largest over a number of levels.

    Example:
        >>> _lies_on_grid(torch.tensor([0.2, -0.6]), 3), _lies_on_grid(torch.tensor([0.2, 0.5]), 3)
        (True, False)
    """
    steps = tensor.double() * (levels / tensor.double().abs().max().clamp_min(1e-300))
    return bool(((steps - steps.round()).abs() < _ON_GRID).all())


def _fits(tensors: Iterable[Tensor], dtype: torch.dtype) -> bool:
    """Whether all these are numbers of a precision, and not all of them zero.

    Example:
        >>> _fits([torch.tensor([0.1])], torch.float16), _fits([torch.ones(2)], torch.float16)
        (False, True)
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    return any(bool(t.any()) for t in floating) and all(
        torch.equal(t.to(dtype).to(t.dtype), t) for t in floating
    )


def _distances(one: Update, other: Update) -> dict[str, float]:
    """How far apart the tensors are; infinitely far where a simulation diverged to NaN."""
    apart = {
        name: _length(tensor.double() - other.tensors[name].double())
        for name, tensor in one.tensors.items()
    }
    return {name: math.inf if math.isnan(d) else d for name, d in apart.items()}


def _length(tensor: Tensor) -> float:
    return float(tensor.double().norm())
