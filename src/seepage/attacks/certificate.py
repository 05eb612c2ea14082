"""Certify a guess: compare its simulated update with the observed one. No truth is needed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.jacobian import Jacobian, exact_simulation, update_jacobian
from seepage.core import Certificate, Observation, Reconstruction, Rng, Update
from seepage.core.device import precision
from seepage.core.errors import MissingKnowledge
from seepage.numerics.krylov import Krylov, krylov

# The squared problem J^T J is computed to sixteen digits, so singular values below 1e-8 of the
# largest are rounding; a hundred times more is told from zero with a margin.
RESOLVED = 1e-6
# Unknowns up to which every direction is tried.
DENSE = 4_096
# Directions tried beyond it, and after how many of them it is asked whether they settle it.
STEPS, ASKED_EVERY = 600, 10
# Share of a Ritz value that its error may be before it counts as an eigenvalue.
SETTLED = 0.1


def smallest_singular_value(jacobian: Jacobian) -> float | None:
    """sigma_min(J), and zero where it is below 1e-6 sigma_max(J).

    It is positive exactly where every direction changes the function. Too few equations settle it
    at once. Up to 4096 unknowns the eigenvalues of J^T J are computed, beyond by the Lanczos
    process; None where that does not settle it.
    """
    if jacobian.equations < jacobian.unknowns:
        return 0.0
    if jacobian.unknowns <= DENSE:
        return dense_smallest(jacobian)
    return lanczos_smallest(jacobian)


def dense_smallest(jacobian: Jacobian) -> float | None:
    """The answer from all eigenvalues of J^T J."""
    gram = jacobian.gram()
    if not bool(gram.isfinite().all()):
        return None
    values = torch.linalg.eigvalsh(gram)
    return _resolve(float(values[0]), float(values[-1]))


def lanczos_smallest(jacobian: Jacobian, *, steps: int = STEPS) -> float | None:
    """The answer from the extreme Ritz values of J^T J in a growing Krylov space.

    A Ritz value never lies below the smallest eigenvalue, so one that is zero to rounding proves
    a direction which changes nothing. One that is not is believed once its error is a tenth of
    it; a random start misses the eigenvector with probability zero.

    Args:
        jacobian: Of which only products are taken.
        steps: Directions after which it stays unknown, None.
    """
    steps = min(steps, jacobian.unknowns)
    start = Rng(0).fork("lanczos").normal((1, jacobian.unknowns), like=jacobian.at)
    for space in krylov(jacobian.squared, start, steps=steps):
        if space.ended or space.steps % ASKED_EVERY == 0 or space.steps == steps:
            settled = _settled(space)
            if settled is not None:
                return settled
    return None


def _settled(space: Krylov) -> float | None:
    """What the Ritz values of the tridiagonal matrix say by now."""
    (matrix,) = space.matrices()
    if not bool(matrix.isfinite().all()):
        return None
    values, vectors = torch.linalg.eigh(matrix)
    smallest = _resolve(float(values[0]), float(values[-1]))
    error = float(space.beside[0, -1] * vectors[-1, 0].abs())
    return smallest if error <= SETTLED * smallest**2 or not smallest else None


def _resolve(least: float, most: float) -> float:
    """The root of the least eigenvalue, or zero if it is rounding beside the largest."""
    return math.sqrt(least) if least > RESOLVED**2 * most and most > 0 else 0.0


# Rounding in float32 leaves a residual of 1e-7 to 1e-5; a defense that hides anything, more.
EXPLAINED = 1e-3
# Error of an input, as a share of the range of its entries, above which it is not called unique.
LARGEST_ERROR = 0.01

# What a network says that has parts, or is on a device, for float32 alone.
_FLOAT32_ALONE = (RuntimeError, TypeError)


@dataclass(frozen=True)
class _Agreement:
    """How well a guess explains the update, tensor by tensor.

    Args:
        residual: The largest relative difference ||g_l(x, y) - g_l*|| / ||g_l*|| of a tensor l that
            tells anything, or that of the whole update where this is larger.
        lengths: ||g_l*|| of the tensors that tell anything. The others are zero, or rounding
            changes them by more than 1e-3 of their length.
        error: Root of the summed squares of all relative differences and of relative rounding.
    """

    residual: float
    lengths: Mapping[str, float]
    error: float

    @property
    def weights(self) -> dict[str, float]:
        """What makes tensors that tell anything of length one."""
        return {name: 1 / length for name, length in self.lengths.items()}

    def proves(self, *names: str) -> bool:
        """Whether the guess explains the update, and all these tensors tell something."""
        return self.residual <= EXPLAINED and all(name in self.lengths for name in names)


def certify(observation: Observation, reconstruction: Reconstruction) -> Certificate:
    """Evidence that a guess is the private input: it explains the update, and alone does so nearby.

        residual = max_l ||g_l(x, y) - g_l*|| / ||g_l*||
        unique:    sigma_min(J) > 1e-6 sigma_max(J),   J_l = (dg_l/dx) / ||g_l*||

    Every tensor l of the update counts by itself: in a deep network the layer that holds the input
    may be a millionth of the update, and then says nothing in the residual of the whole. Tensors
    that are zero, or that rounding changes by more than 1e-3 of their length, are left out of both.

    The residual is computed in the precision the client computed in, since that is what was
    observed. The Jacobian is computed in double precision, whatever that was: singular values far
    below the largest are the question, and float32 has no digits for them. It takes about two
    gradients for each unknown. Uniqueness is local: a guess far away may explain the update as
    well. It stays unknown where the residual exceeds 1e-3, since the guess is then no explanation;
    where the residual and rounding, divided by sigma_min(J), allow an error above 1% of the range
    of an input; and behind a defense that rounds, whose slope is made up. For tokens, which have
    no neighbours, it stays unknown as well.

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
        >>> certify(seen, Reconstruction(batch.inputs, batch.labels))
        Certificate(residual=0.0, unique=True)

    References:
        Chen and Campbell, 2022 (chen2022analysing) on rank deciding what can be recovered
    """
    inputs = reconstruction.inputs
    labels = _labels(observation, reconstruction)
    found = agreement(observation, inputs, labels)
    unique = _unique(observation, inputs, labels, found) if found.proves() else None
    return Certificate(found.residual, unique)


def _unique(
    observation: Observation, inputs: Tensor, labels: Tensor, found: _Agreement
) -> bool | None:
    if not inputs.is_floating_point():
        return None
    jacobian = update_jacobian(observation, inputs, labels, weights=found.weights)
    if jacobian is None:
        return None
    smallest = smallest_singular_value(jacobian) if jacobian.is_true() else None
    if smallest is None or smallest == 0:
        return None if smallest is None else False
    return True if found.error <= smallest * _largest_error(observation) else None


def _largest_error(observation: Observation) -> float:
    """How long the error of all inputs together may be: one example may have all of it."""
    domain = observation.task.domain
    low, high = domain.bounds
    return LARGEST_ERROR * (high - low) * math.sqrt(math.prod(domain.shape))


def certify_solved(
    observation: Observation, inputs: Tensor, labels: Tensor, *, read: Collection[str], alone: bool
) -> Certificate:
    """The certificate of an attack that solved equations which have one solution.

    Args:
        observation: What was seen.
        inputs: The solution.
        labels: Of the inputs.
        read: Names of the tensors that make up the equations.
        alone: Whether they have no other solution.
    """
    found = agreement(observation, inputs, labels)
    unique = alone and found.proves(*read) and _follows(observation, inputs, labels, found)
    return Certificate(found.residual, True if unique else None)


def _follows(observation: Observation, inputs: Tensor, labels: Tensor, found: _Agreement) -> bool:
    """Whether the update follows the input as its slopes say, and tells how strong the input is.

    Behind a defense that rounds it does not follow. Clipping may hide how strong an input is, since
    a stronger one then gives nearly the same update. Both take a few gradients, while
    sigma_min(J) takes two for each unknown.
    """
    if not inputs.is_floating_point():
        return True
    domain = observation.task.domain
    louder = domain.denormalise(2 * domain.normalise(inputs.double())) - inputs
    try:
        jacobian = update_jacobian(observation, inputs, labels, weights=found.weights)
        if jacobian is None or not jacobian.is_true():
            return False
        moved = float(replace(jacobian, vectorised=False).forward(louder.reshape(1, -1)).norm())
    except _FLOAT32_ALONE:
        return False
    return found.error * float(louder.norm()) <= moved * _largest_error(observation)


def residual(observation: Observation, inputs: Tensor, labels: Tensor) -> float:
    """The largest relative difference between a tensor of the simulated and the observed update.

    See `_Agreement`.
    """
    return agreement(observation, inputs, labels).residual


def agreement(observation: Observation, inputs: Tensor, labels: Tensor) -> _Agreement:
    """Compare the update simulated at a guess with the observed one, tensor by tensor."""
    observed = observation.update
    with torch.no_grad(), precision("float32"):
        simulated = observation.simulate(inputs, labels)
    differences = _distances(simulated, observed)
    lengths = _lengths(observed)
    rounding = _rounding(observation, inputs, labels, simulated)
    telling = {
        name: length
        for name, length in lengths.items()
        if length > 0 and rounding[name] <= EXPLAINED * length
    }
    apart = [differences[name] / length for name, length in telling.items()]
    rounded = [rounding[name] / length for name, length in telling.items()]
    whole = _ratio(math.hypot(*differences.values()), math.hypot(*lengths.values()))
    return _Agreement(max([whole, *apart]), telling, math.hypot(*apart, *rounded))


def _rounding(
    observation: Observation, inputs: Tensor, labels: Tensor, simulated: Update
) -> dict[str, float]:
    """About how much of each tensor is rounding: at least what double precision changes.

    For a simulation that does not run in double precision it is what its own precision may change.
    """
    update, parameters = observation.update, observation.task.parameters
    exact = _exactly(observation, inputs, labels)
    measured = dict.fromkeys(update.tensors, 0.0) if exact is None else _distances(simulated, exact)
    precise = next(iter(update)).dtype if exact is None else torch.float64
    whole = math.hypot(*_lengths(update).values())
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


def _exactly(observation: Observation, inputs: Tensor, labels: Tensor) -> Update | None:
    """The simulated update in double precision, where the network can be run in it."""
    inputs, labels = (t.double() if t.is_floating_point() else t for t in (inputs, labels))
    try:
        simulation = exact_simulation(observation)
        with torch.no_grad():
            return None if simulation is None else simulation(inputs, labels)
    except _FLOAT32_ALONE:
        return None


def _distances(one: Update, other: Update) -> dict[str, float]:
    return {
        name: _length(tensor.double() - other.tensors[name].double())
        for name, tensor in one.tensors.items()
    }


def _lengths(update: Update) -> dict[str, float]:
    return {name: _length(tensor) for name, tensor in update.tensors.items()}


def _length(tensor: Tensor) -> float:
    return float(tensor.double().norm())


def _ratio(part: float, whole: float) -> float:
    if whole == 0:
        return 0.0 if part == 0 else math.inf
    return part / whole


def _labels(observation: Observation, reconstruction: Reconstruction) -> Tensor:
    if reconstruction.labels is not None:
        return reconstruction.labels
    # Known labels are a multiset, which says whose they are only where there is one.
    if observation.labels is not None and len(reconstruction.inputs) == 1:
        return observation.labels
    raise MissingKnowledge(
        "labels", needed_by="a certificate", hint="give the reconstruction labels to be checked"
    )
