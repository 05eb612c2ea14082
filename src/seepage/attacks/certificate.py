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
from seepage.numerics.krylov import krylov

# J^T J has sixteen digits, so singular values below 1e-8 of the largest are rounding. A hundred
# times more is told from zero with a margin.
RESOLVED = 1e-6
# Unknowns up to which all eigenvalues are computed.
DENSE = 4_096
# Lanczos steps beyond that, and how often their result is tested.
STEPS, TESTED_EVERY = 600, 10
# A Ritz value counts as an eigenvalue once its error is at most this share of it.
SETTLED = 0.1


def smallest_singular_value(jacobian: Jacobian) -> float | None:
    """Return sigma_min(J), or zero if it is below 1e-6 sigma_max(J).

    It is positive exactly if every direction changes the function. With fewer equations than
    unknowns it is zero. Up to 4096 unknowns the eigenvalues of J^T J are computed, beyond that the
    Lanczos process is used; None if that does not converge.
    """
    if jacobian.equations < jacobian.unknowns:
        return 0.0
    if jacobian.unknowns <= DENSE:
        return dense_smallest(jacobian)
    return lanczos_smallest(jacobian)


def dense_smallest(jacobian: Jacobian) -> float | None:
    """Compute it from all eigenvalues of J^T J."""
    gram = jacobian.gram()
    if not bool(gram.isfinite().all()):
        return None
    values = torch.linalg.eigvalsh(gram)
    return _resolve(float(values[0]), float(values[-1]))


def lanczos_smallest(jacobian: Jacobian, *, steps: int = STEPS) -> float | None:
    """Compute it from the extreme Ritz values of J^T J in a growing Krylov space.

    A Ritz value never lies below the smallest eigenvalue. So if it is zero to rounding, some
    direction changes nothing. Otherwise it is accepted once its error is a tenth of it; a random
    start misses the eigenvector with probability zero.

    Args:
        jacobian: Only products with it are taken.
        steps: Steps after which the answer is None.
    """
    steps = min(steps, jacobian.unknowns)
    start = Rng(0).fork("lanczos").normal((1, jacobian.unknowns), like=jacobian.at)
    for space in krylov(jacobian.squared, start, steps=steps):
        if not (space.ended or space.steps % TESTED_EVERY == 0 or space.steps == steps):
            continue
        (matrix,) = space.matrices()
        if not bool(matrix.isfinite().all()):
            continue
        values, vectors = torch.linalg.eigh(matrix)
        smallest = _resolve(float(values[0]), float(values[-1]))
        error = float(space.beside[0, -1] * vectors[-1, 0].abs())
        if error <= SETTLED * smallest**2 or not smallest:
            return smallest
    return None


def _resolve(least: float, most: float) -> float:
    """Return the root of the least eigenvalue, or zero if it is rounding beside the largest."""
    return math.sqrt(least) if least > RESOLVED**2 * most and most > 0 else 0.0


# Rounding in float32 leaves a residual of 1e-7 to 1e-5; a defense that hides anything leaves more.
EXPLAINED = 1e-3
# Largest error of an input that is called unique, as a share of the range of its entries.
LARGEST_ERROR = 0.01

# Raised by networks whose parts, or whose device, only support float32.
_FLOAT32_ALONE = (RuntimeError, TypeError)


@dataclass(frozen=True)
class _Agreement:
    """How well a guess explains the update, tensor by tensor.

    Args:
        residual: The largest relative difference ||g_l(x, y) - g_l*|| / ||g_l*|| of a tensor l that
            tells anything, or that of the whole update if that is larger.
        lengths: ||g_l*|| of the tensors that tell anything. The others are zero, or rounding
            changes them by more than 1e-3 of their length.
        error: Root of the summed squares of all relative differences and relative rounding.
    """

    residual: float
    lengths: Mapping[str, float]
    error: float

    def proves(self, *names: str) -> bool:
        """Whether the guess explains the update, and all these tensors tell something."""
        return self.residual <= EXPLAINED and all(name in self.lengths for name in names)


def certify(observation: Observation, reconstruction: Reconstruction) -> Certificate:
    """Collect evidence that a guess is the private input: it alone, nearby, explains the update.

        residual = max_l ||g_l(x, y) - g_l*|| / ||g_l*||
        unique:    sigma_min(J) > 1e-6 sigma_max(J),   J_l = (dg_l/dx) / ||g_l*||

    Every tensor l of the update counts by itself: in a deep network the layer that holds the input
    may be a millionth of the update, and would not show in the residual of the whole. Tensors that
    are zero, or that rounding changes by more than 1e-3 of their length, are left out of both.

    The residual is computed in the client's precision, since that is what was observed. The
    Jacobian is always computed in double precision: the question is about singular values far
    below the largest, and float32 has no digits for them. It takes about two gradients for each
    unknown. Uniqueness is local: a guess far away may explain the update as well. It stays unknown
    in four cases: the residual exceeds 1e-3, so the guess is no explanation; the residual and
    rounding, divided by sigma_min(J), allow an error above 1% of the range of an input; a defense
    rounds, so the slope is made up; the inputs are tokens, which have no neighbours.

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
    inputs, labels = reconstruction.inputs, reconstruction.labels
    # Known labels are a multiset; only with one input they tell which input has which label.
    if labels is None and len(inputs) == 1:
        labels = observation.labels
    if labels is None:
        raise MissingKnowledge(
            "labels", needed_by="a certificate", hint="give the reconstruction labels to be checked"
        )
    found = _compare(observation, inputs, labels)
    unique = _is_unique(observation, inputs, labels, found) if found.proves() else None
    return Certificate(found.residual, unique)


def _is_unique(
    observation: Observation, inputs: Tensor, labels: Tensor, found: _Agreement
) -> bool | None:
    jacobian = _scaled_jacobian(observation, inputs, labels, found)
    smallest = None if jacobian is None else smallest_singular_value(jacobian)
    if smallest is None or smallest == 0:
        return None if smallest is None else False
    return True if found.error <= smallest * _largest_error(observation) else None


def _scaled_jacobian(
    observation: Observation, inputs: Tensor, labels: Tensor, found: _Agreement
) -> Jacobian | None:
    """The Jacobian with every tensor of length one; None if there is none, or it is made up."""
    if not inputs.is_floating_point():
        return None
    weights = {name: 1 / length for name, length in found.lengths.items()}
    jacobian = update_jacobian(observation, inputs, labels, weights=weights)
    return jacobian if jacobian is not None and jacobian.is_true() else None


def _largest_error(observation: Observation) -> float:
    """Return how long the error of all inputs together may be: one example may have all of it."""
    domain = observation.task.domain
    low, high = domain.bounds
    return LARGEST_ERROR * (high - low) * math.sqrt(math.prod(domain.shape))


def certify_solved(
    observation: Observation, inputs: Tensor, labels: Tensor, *, read: Collection[str], alone: bool
) -> Certificate:
    """Certify an attack that solved equations which have one solution.

    Args:
        observation: What was seen.
        inputs: The solution.
        labels: Of the inputs.
        read: Names of the tensors that make up the equations.
        alone: Whether they have no other solution.
    """
    found = _compare(observation, inputs, labels)
    unique = alone and found.proves(*read) and _determines(observation, inputs, labels, found)
    return Certificate(found.residual, True if unique else None)


def _determines(
    observation: Observation, inputs: Tensor, labels: Tensor, found: _Agreement
) -> bool:
    """Whether the update follows the input as its slopes say, and tells how strong the input is.

    With a defense that rounds it does not follow. Clipping may hide how strong an input is, since
    a stronger one then gives nearly the same update. Both tests take a few gradients, while
    sigma_min(J) takes two for each unknown.
    """
    if not inputs.is_floating_point():
        return True
    domain = observation.task.domain
    louder = domain.denormalise(2 * domain.normalise(inputs.double())) - inputs
    try:
        jacobian = _scaled_jacobian(observation, inputs, labels, found)
        if jacobian is None:
            return False
        moved = float(replace(jacobian, vectorised=False).forward(louder.reshape(1, -1)).norm())
    except _FLOAT32_ALONE:
        return False
    return found.error * float(louder.norm()) <= moved * _largest_error(observation)


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
    rounding = _estimate_rounding(observation, inputs, labels, simulated, whole=whole)
    telling = {
        name: length
        for name, length in lengths.items()
        if length > 0 and rounding[name] <= EXPLAINED * length
    }
    apart = [differences[name] / length for name, length in telling.items()]
    rounded = [rounding[name] / length for name, length in telling.items()]
    relative = off / whole if whole else (math.inf if off else 0.0)
    return _Agreement(max([relative, *apart]), telling, math.hypot(*apart, *rounded))


def _estimate_rounding(
    observation: Observation, inputs: Tensor, labels: Tensor, simulated: Update, *, whole: float
) -> dict[str, float]:
    """Estimate how much of each tensor is rounding: at least what double precision changes.

    If a simulation does not run in double precision, it is what its own precision may change.
    """
    update, parameters = observation.update, observation.task.parameters
    inputs, labels = (t.double() if t.is_floating_point() else t for t in (inputs, labels))
    try:
        simulation = exact_simulation(observation)
        with torch.no_grad():
            exact = None if simulation is None else simulation(inputs, labels)
    except _FLOAT32_ALONE:
        exact = None
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


def _distances(one: Update, other: Update) -> dict[str, float]:
    return {
        name: _length(tensor.double() - other.tensors[name].double())
        for name, tensor in one.tensors.items()
    }


def _length(tensor: Tensor) -> float:
    return float(tensor.double().norm())
