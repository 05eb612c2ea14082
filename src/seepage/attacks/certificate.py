"""Certify a guess: compare its simulated update with the observed one. No truth is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.jacobian import (
    davidson_smallest,
    exact_simulation,
    lanczos_smallest,
    smallest_singular_value,
    update_jacobian,
)
from seepage.core import Certificate, Observation, Reconstruction, Update
from seepage.core.device import precision
from seepage.core.errors import MissingKnowledge
from seepage.defenses.clip import AddGaussian, AddLaplace, Clip, ClipEach, Mean
from seepage.numerics.least_squares import Linear
from seepage.probing.first_layer import input_layer

# Rounding in float32 leaves a residual of 1e-7 to 1e-5; a defense that hides anything leaves more.
EXPLAINED = 1e-3
# Largest error of an entry of an input that is called unique: half a step of 8 bits, as a share of
# the range of its entries.
LARGEST_ERROR = 0.5 / 255
# Unknowns up to which an attack that solved its equations may take all eigenvalues.
QUICK = 1_024
# Precisions below float32, and the factor of their epsilon if their rounding cannot be measured.
_NARROW, _UNMEASURED = (torch.bfloat16, torch.float16), 10
# How far from a multiple of a step, in steps, rounding to float32 leaves entries of a grid.
_ON_GRID = 0.01

# Raised by networks whose parts, or whose device, only support float32.
_FLOAT32_ALONE = (RuntimeError, TypeError)
# Defenses that scale the update of an example or add to it, and leave it otherwise as it is.
_SCALING = (AddGaussian, AddLaplace, Clip, ClipEach, Mean)

# The largest error of a normalised input, given by how much each tensor may be off.
ErrorBound = Callable[[Mapping[str, float]], float]


@dataclass(frozen=True)
class _Agreement:
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
        """Whether the guess explains the update, and all these tensors tell something."""
        return self.residual <= EXPLAINED and self.telling.issuperset(names)


def certify(observation: Observation, reconstruction: Reconstruction) -> Certificate:
    """Collect evidence that a guess is the private input: it alone, nearby, explains the update.

        residual = max_l ||g_l(x, y) - g_l*|| / ||g_l*||
        error    = sqrt(L) / sigma_min(J),   J_l = (dg_l/dx) / e_l,
                   e_l = ||g_l(x, y) - g_l*|| + the rounding or the known noise of g_l
        unique:    error <= half a step of 8 bits

    Every tensor l of the L in the update counts by itself: in a deep network the layer that holds
    the input may be a millionth of the update, and would not show in the residual of the whole.
    Tensors that are zero, or that rounding changes by more than 1e-3 of their length, are left out
    of the residual. The error bounds every entry of the inputs, in their units. One example behind
    a fully connected layer with a bias needs no Jacobian: that layer's gradient is the input, times
    the gradient of the bias.

    The residual is computed in the client's precision, since that is what was observed. Rounding is
    measured against double precision. An update, or parameters, that float16 or bfloat16 can hold
    are taken to be computed so, and an update whose entries lie on a grid to be rounded to it. The
    Jacobian is always computed in double precision: the question is about singular values far below
    the largest, and float32 has no digits for them. It takes about two gradients for each unknown.

    The error is local: a guess far away may explain the update as well. It also takes for granted
    that the client did what the adversary simulates. Uniqueness stays unknown, and the error None,
    in four cases: the residual exceeds 1e-3, so the guess is no explanation; a defense takes signs,
    so the slope is made up; the client mixed its inputs and the simulation does not, so that
    encodings come back instead of inputs; the inputs are tokens, which have no neighbours.

    Args:
        observation: What was seen.
        reconstruction: Any attack's guess, with labels unless the observation has them.

    Example:
        >>> from seepage.clients import Client, Gradient
        >>> from seepage.core import Batch, rng
        >>> from seepage.domains import Signal
        >>> from seepage.threats import Threat
        >>> from seepage.zoo import mlp
        >>> batch = Batch(torch.linspace(0, 1, 20).reshape(1, 1, 20), torch.tensor([3]))
        >>> task = mlp(hidden=(8,), domain=Signal((1, 20)))
        >>> seen = Threat().observe(Client(Gradient()), task, batch, rng=rng(0))
        >>> found = certify(seen, Reconstruction(batch.inputs, batch.labels))
        >>> found.residual, found.unique, found.error < 1e-5
        (0.0, True, True)

    References:
        Chen and Campbell, 2022 (chen2022analysing) on rank deciding what can be recovered
    """
    inputs, labels = reconstruction.inputs, reconstruction.labels
    # Known labels are a multiset; only with one input they tell which input has which label.
    if labels is None and len(inputs) == 1:
        labels = observation.labels
    if labels is None:
        raise MissingKnowledge(
            "labels", needed_by="a certificate", hint="give the reconstruction labels to be checked"
        )
    found = _compare(observation, inputs, labels)
    error = None
    if found.proves() and _simulates_inputs(observation, inputs, labels):
        error = _bound_by_layer(observation, inputs, found)
        if error is None:
            error = _bound_by_slopes(observation, inputs, labels, found)
    return _issue(observation, found, error)


def certify_solved(
    observation: Observation,
    inputs: Tensor,
    labels: Tensor,
    *,
    read: Collection[str],
    alone: bool,
    bound: ErrorBound | None = None,
    inverse: Callable[[Tensor], Linear | None] | None = None,
) -> Certificate:
    """Certify an attack that solved equations which have one solution.

    Args:
        observation: What was seen.
        inputs: The solution.
        labels: Of the inputs.
        read: Names of the tensors that make up the equations.
        alone: Whether they have no other solution.
        bound: The largest error of the solution, normalised, given by how much each tensor may be
            off; None computes it as `certify` does. It is not used behind a defense that does more
            than scale the update.
        inverse: Given the inputs `(n,)`, multiplies by a matrix near the inverse of J^T J, if there
            is one; it speeds up the answer. Not used behind such a defense either.
    """
    found = _compare(observation, inputs, labels)
    if not (alone and found.proves(*read)):
        return Certificate(found.residual)
    if not inputs.is_floating_point():
        return Certificate(found.residual, unique=True)
    error = None
    if _simulates_inputs(observation, inputs, labels):
        if bound is not None and _only_scales(observation):
            error = _largest_scale(observation) * bound(found.errors)
        else:
            error = _bound_by_layer(observation, inputs, found)
        if error is None:
            try:
                error = _bound_by_slopes(
                    observation, inputs, labels, found, quick=True, inverse=inverse
                )
            except _FLOAT32_ALONE:
                error = None
    issued = _issue(observation, found, error)
    return issued if issued.unique else replace(issued, unique=None)


def _issue(observation: Observation, found: _Agreement, error: float | None) -> Certificate:
    """Call the guess unique if its error is below half a step of 8 bits."""
    low, high = observation.task.domain.bounds
    if error is None or math.isnan(error):
        return Certificate(found.residual)
    if math.isinf(error):
        return Certificate(found.residual, unique=False)
    small = error <= LARGEST_ERROR * (high - low)
    return Certificate(found.residual, unique=True if small else None, error=error)


def _simulates_inputs(observation: Observation, inputs: Tensor, labels: Tensor) -> bool:
    """Whether the simulation starts from private inputs, and these have neighbours."""
    simulation = observation.simulate
    if not inputs.is_floating_point():
        return False
    if simulation.mixing is not None:
        return True
    known = () if simulation.client is None else simulation.client.chain.input_defenses
    mixes = observation.mixing is not None or any(link.stage == "mixing" for link in known)
    # Labels that are shared out among classes tell of mixed inputs as well.
    shared = observation.task.target_shape is None and labels.is_floating_point()
    soft = shared and labels.ndim == 2 and bool((labels.amax(-1) < 1 - EXPLAINED).any())
    return not (mixes or soft)


def _only_scales(observation: Observation) -> bool:
    """Whether the client is known, and its defense only scales updates or adds to them."""
    client = observation.simulate.client
    return client is not None and all(isinstance(link, _SCALING) for link in client.chain.links)


def _largest_scale(observation: Observation) -> float:
    """The largest factor from a normalised entry to one in the units of the input."""
    domain = observation.task.domain
    one = torch.ones(1, *domain.shape, dtype=torch.float64)
    return float((domain.denormalise(one) - domain.denormalise(0 * one)).abs().max())


def _bound_by_layer(observation: Observation, inputs: Tensor, found: _Agreement) -> float | None:
    """Bound the error of one input by the fully connected layer with a bias that reads it.

    For every entry of the input, dL/dW* = (dL/db*) x*^T gives

        |x - x*| <= (||dL/dW* - (dL/db*) x^T|| + rounding) / ||dL/db*||

    None if there is no such layer in the update, or if a defense may have changed the equation.
    """
    if len(inputs) != 1 or not _only_scales(observation):
        return None
    layer = input_layer(observation.task)
    prefix = f"{layer}." if layer else ""
    names = f"{prefix}weight", f"{prefix}bias"
    tensors = observation.update.tensors
    if layer is None or not all(name in tensors for name in names):
        return None
    weight, delta = (tensors[name].double() for name in names)
    x = observation.task.domain.normalise(inputs.double()).flatten()
    rounding = found.errors[names[0]] + found.errors[names[1]] * float(x.abs().max())
    off = _length(weight - torch.outer(delta, x)) + rounding
    steep = _length(delta)
    return _largest_scale(observation) * off / steep if steep else math.inf


def _bound_by_slopes(
    observation: Observation,
    inputs: Tensor,
    labels: Tensor,
    found: _Agreement,
    *,
    quick: bool = False,
    inverse: Callable[[Tensor], Linear | None] | None = None,
) -> float | None:
    """Bound the error by the smallest singular value of the Jacobian of the update.

    Infinite if some direction changes nothing; None if there is no Jacobian, or it is made up, or
    its smallest singular value is not found.
    """
    weights = {name: 1 / error for name, error in found.errors.items() if error > 0}
    jacobian = update_jacobian(observation, inputs, labels, weights=weights)
    if jacobian is None or not jacobian.is_true():
        return None
    smallest = None
    if inverse is not None and _only_scales(observation) and (near := inverse(jacobian.at)):
        smallest = davidson_smallest(jacobian, near)
    if smallest is None:
        many = quick and jacobian.equations >= jacobian.unknowns > QUICK
        smallest = lanczos_smallest(jacobian) if many else smallest_singular_value(jacobian)
    if smallest is None:
        return None
    return math.sqrt(len(weights)) / smallest if smallest else math.inf


def residual(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """Return the largest relative difference of a simulated tensor; see `_Agreement`."""
    return _compare(observation, inputs, labels).residual


def _compare(observation: Observation, inputs: Tensor, labels: Tensor) -> _Agreement:
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
    return _Agreement(max([relative, *apart]), telling, errors)


def _simulate_exactly(observation: Observation, inputs: Tensor, labels: Tensor) -> Update | None:
    """Simulate in double precision; None if that does not run."""
    inputs, labels = (t.double() if t.is_floating_point() else t for t in (inputs, labels))
    try:
        simulation = exact_simulation(observation)
        with torch.no_grad():
            return None if simulation is None else simulation(inputs, labels)
    except _FLOAT32_ALONE:
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
    soft = labels.to(dtype) if labels.is_floating_point() else labels
    measured = None
    if exact is not None:
        try:
            simulation = observation.simulate.with_task(task.to(dtype=dtype))
            with torch.no_grad():
                measured = _distances(simulation(inputs.to(dtype), soft), exact)
        except _FLOAT32_ALONE:
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
    links = () if client is None else client.chain.update_defenses
    stds = [link.std for link in links if isinstance(link, AddGaussian)]
    stds += [math.sqrt(2) * link.scale for link in links if isinstance(link, AddLaplace)]
    grids = (2 ** (bits - 1) - 1 for bits in range(2, 17))
    levels = next((n for n in grids if all(_lies_on_grid(t, n) for t in update)), None)
    added: dict[str, float] = {}
    for name, tensor in update.tensors.items():
        # Three deviations more than expected; half a step for each entry.
        noise = math.hypot(*stds) * (math.sqrt(tensor.numel()) + 3)
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
