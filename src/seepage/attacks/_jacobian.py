"""The Jacobian of the simulated update in the inputs, and its smallest singular value."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import cast

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap
from torch.nn.functional import one_hot

from seepage.core import Observation, Rng, Simulate
from seepage.core._device import convert
from seepage.numerics._krylov import krylov
from seepage.numerics._least_squares import Linear

# Numbers of a Jacobian that may be held on a CPU; one part in 16 of them is for a single pass.
HELD, PASSING = 2**28, 16
# Length of a small step as a share of the point's, and its largest relative error along J.
STEP, DISAGREEMENT = 1e-6, 0.01
# J^T J has sixteen digits, so singular values below 1e-8 of the largest are rounding. A hundred
# times more is told from zero with a margin.
RESOLVED = 1e-6
# Unknowns up to which all eigenvalues are computed.
DENSE = 4_096
# Lanczos steps beyond that. Their result is tested first after ten, then each tenth part later.
STEPS, TESTED_FIRST, TESTED_AGAIN = 1_000, 10, 1.1
# A Ritz value counts as an eigenvalue once its error is at most this share of it.
SETTLED = 0.1
# Lanczos steps for the largest singular value, and most steps of Davidson's method.
_LARGEST, _DAVIDSON = 10, 200
# Most directions that are looked at by themselves, and their least part outside the others' span.
_SUSPECTS, _APART = 48, 1e-9

Pullback = Callable[[Tensor], tuple[Tensor]]


@dataclass(frozen=True, eq=False)
class Jacobian:
    """The derivative J `(P, n)` of a function at a point, held as a whole only if it fits.

    Args:
        function: `(n,) -> (P,)`, made of differentiable torch operations.
        at: The point `(n,)`.
        vectorised: Whether `torch.func.vmap` may run several directions at once.
        suspects: Orthonormal directions `(k, n)` along which the function may well stay as it is;
            None if there are none. The search for the smallest singular value begins with them.

    Example:
        >>> double = Jacobian(lambda x: 2 * x, torch.ones(3))
        >>> double.squared(torch.eye(3)[:1])
        tensor([[4., 0., 0.]])
    """

    function: Linear
    at: Tensor
    vectorised: bool = True
    suspects: Tensor | None = None

    @property
    def unknowns(self) -> int:
        """Number n of columns."""
        return self.at.numel()

    @cached_property
    def equations(self) -> int:
        """Number P of rows."""
        with torch.no_grad():
            return self.function(self.at).numel()

    def squared(self, directions: Tensor) -> Tensor:
        """J^T J d for every row d of `(k, n)`."""
        return self._map_rows(lambda some: self.adjoint(self.forward(some)), directions)

    def forward(self, directions: Tensor) -> Tensor:
        """J d for every row d of `(k, n)`."""
        if len(directions) == 1:
            return self._transposed(directions[0]).detach()[None]
        return self._map_rows(self._vectorise(self._forward), directions)

    def squares(self, directions: Tensor) -> Tensor:
        """||J d||^2 for every row d of `(k, n)`, `(k,)`."""
        return self._map_rows(lambda some: self.forward(some).square().sum(1), directions)

    def adjoint(self, changes: Tensor) -> Tensor:
        """J^T v for every row v of `(k, P)`."""
        return self._map_rows(self._vectorise(self._adjoint), changes)

    def gram(self, counted: Callable[[int], None] = lambda done: None) -> Tensor:
        """J^T J `(n, n)`, from all of J if it fits, else product by product.

        Args:
            counted: Called with the number of columns done, again and again.
        """
        held = self.unknowns * self.equations <= _count_fitting(self.at)
        columns = self.at.new_empty(self.unknowns, self.equations if held else self.unknowns)
        done = 0
        for some in self.axes():
            rows = columns[done : done + len(some)]
            rows.copy_(self.forward(some) if held else self.squared(some))
            done += len(some)
            counted(done)
        return columns @ columns.T if held else (columns + columns.T) / 2

    def begin(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return a start `(1, n)` that is partly random, the suspects, and their images J^T J d."""
        start = Rng(0).fork("lanczos").normal((1, self.unknowns), like=self.at)
        if self.suspects is None:
            return start, start[:0], start[:0]
        # A lone direction is a tiny part of a random one, so it is made a large one.
        start = start / start.norm() + self.suspects.sum(0, keepdim=True)
        return start, self.suspects, torch.cat([self.squared(row[None]) for row in self.suspects])

    def axes(self) -> Iterator[Tensor]:
        """Yield all unit vectors, as many at once as fit."""
        for some in self._split(torch.arange(self.unknowns, device=self.at.device)):
            yield one_hot(some, self.unknowns).to(self.at)

    def is_true(self) -> bool:
        """Whether a small step along a random direction changes the function as J says.

        A defense that rounds has no slope; the one that attacks search by is made up.
        """
        direction = Rng(0).fork("step").normal((self.unknowns,), like=self.at)
        step = STEP * self.at.norm().clamp(min=1) / direction.norm() * direction
        change = (self.function(self.at + step) - self.function(self.at - step)) / 2
        said = self._forward(step)
        return bool((change - said).norm() <= DISAGREEMENT * said.norm())

    @cached_property
    def _forward(self) -> Linear:
        load_forward_mode()

        def push(direction: Tensor) -> Tensor:
            return cast(Tensor, jvp(self.function, (self.at,), (direction,))[1])

        try:
            push(torch.zeros_like(self.at))
        except NotImplementedError:
            return self._transpose()
        return push

    @cached_property
    def _transposed(self) -> Linear:
        """The same for one direction at a time: the graph is kept, so it takes a third as long."""
        try:
            product = self._transpose()
            product(torch.zeros_like(self.at))
        except (NotImplementedError, RuntimeError):
            return self._forward
        return product

    def _transpose(self) -> Linear:
        """J^T is linear, so the derivative of v -> J^T v is J^T itself, and its transpose J."""
        nothing = torch.zeros_like(self.function(self.at))
        pull = cast(Pullback, vjp(self._adjoint, nothing)[1])
        return lambda direction: pull(direction)[0]

    @cached_property
    def _adjoint(self) -> Linear:
        pull = cast(Pullback, vjp(self.function, self.at)[1])
        return lambda change: pull(change)[0]

    def _vectorise(self, product: Linear) -> Linear:
        if self.vectorised:
            return vmap(product)
        return lambda rows: torch.stack([product(row) for row in rows])

    def _map_rows(self, product: Linear, rows: Tensor) -> Tensor:
        return torch.cat([product(some).detach() for some in self._split(rows)])

    def _split(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, self._rows_at_once)

    @cached_property
    def _rows_at_once(self) -> int:
        """How many rows fit, computed once: the free memory of a GPU changes on the way."""
        longest = max(self.equations, self.unknowns)
        return max(1, _count_fitting(self.at) // PASSING // longest)


def _count_fitting(like: Tensor) -> int:
    """Count the numbers like these that may be held: 2^28, or half of what is free on a GPU.

    Example:
        >>> _count_fitting(torch.zeros(1)) == 2**28
        True
    """
    if like.device.type != "cuda":
        return HELD
    free, _ = torch.cuda.mem_get_info(like.device)
    # Memory that torch reserved but does not use is free as well.
    kept = torch.cuda.memory_reserved(like.device) - torch.cuda.memory_allocated(like.device)
    return (free + kept) // (2 * like.element_size())


@cache
def load_forward_mode() -> None:
    """Use forward mode once: torch then compiles parts of it, and warns about its own code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        jvp(torch.sin, (torch.zeros(1),), (torch.ones(1),))


def update_jacobian(
    observation: Observation,
    inputs: Tensor,
    labels: Tensor,
    *,
    weights: Mapping[str, float] | None = None,
) -> Jacobian | None:
    """Return the derivative of the simulated update in the inputs, in double precision.

    None if the client is not known, since its precision cannot be raised then.

    Args:
        observation: What was seen.
        inputs: Where the derivative is taken.
        labels: Of the inputs.
        weights: Factor of each tensor; tensors that are not named are left out. None takes all
            of them as they are.
    """
    exact = exact_simulation(observation)
    if exact is None:
        return None
    soft = convert(labels, torch.float64)

    def update(flat: Tensor) -> Tensor:
        simulated = exact(flat.reshape(inputs.shape), soft)
        if weights is None:
            return simulated.flat()
        rows = [weight * simulated.tensors[name].flatten() for name, weight in weights.items()]
        return torch.cat(rows) if rows else flat[:0]

    vectorised = not exact.task.mixes_examples
    exactly = inputs.double()
    return Jacobian(update, exactly.flatten(), vectorised, suspects=_suspect(exactly))


def _suspect(inputs: Tensor) -> Tensor:
    """Directions `(k, n)` that networks with a norm lose: an input's scale and mean, by channel.

    Each input is taken by itself, since a norm reads one input at a time. If there are too many
    channels they count together, and beyond that only the first inputs are looked at.
    """
    size, channels = len(inputs), inputs.shape[1] if inputs.ndim > 2 else 1
    if 2 * size * channels > _SUSPECTS:
        channels = 1
    size = min(size, max(1, _SUSPECTS // (2 * channels)))
    parts = inputs[:size].reshape(size * channels, -1)
    rows = inputs.new_zeros(2, size * channels, len(inputs) * inputs[0].numel())
    for number, part in enumerate(parts):
        place = slice(number * len(part), (number + 1) * len(part))
        rows[0, number, place], rows[1, number, place] = part, 1.0
    rows = torch.nn.functional.normalize(rows.flatten(0, 1), dim=1)
    _, lengths, basis = torch.linalg.svd(rows, full_matrices=False)
    return cast(Tensor, basis[lengths > _APART * lengths[0]])


def exact_simulation(observation: Observation) -> Simulate | None:
    """Return the simulation in double precision, or None if its client is not known."""
    simulation = observation.simulate
    if simulation.client is None:
        return None
    return simulation.with_task(simulation.task.to(dtype=torch.float64))


def smallest_singular_value(jacobian: Jacobian) -> float | None:
    """Return sigma_min(J), or zero if it is below 1e-6 sigma_max(J).

    It is positive exactly if every direction changes the function. With fewer equations than
    unknowns it is zero. Up to 4096 unknowns the eigenvalues of J^T J are computed, beyond that the
    Lanczos process is used; None if that does not converge.
    """
    if jacobian.equations < jacobian.unknowns:
        return 0.0
    if jacobian.unknowns > DENSE:
        return lanczos_smallest(jacobian)
    gram = jacobian.gram()
    if not bool(gram.isfinite().all()):
        return None
    values = torch.linalg.eigvalsh(gram)
    return _root_above_rounding(float(values[0]), float(values[-1]))


def lanczos_smallest(jacobian: Jacobian, *, steps: int = STEPS) -> float | None:
    """Compute it from the extreme Ritz values of J^T J in a growing Krylov space.

    A Ritz value never lies below the smallest eigenvalue. So if it is zero to rounding, some
    direction changes nothing. Otherwise it is accepted once its error is a tenth of it, and the
    error is taken off. It is not the smallest if one of the suspects' is smaller still.

    Of a lone eigenvector a random start has so little that a larger eigenvalue may come first.

    Args:
        jacobian: Only products with it are taken.
        steps: Steps after which the answer is None.
    """
    steps = min(steps, jacobian.unknowns)
    start, suspects, images = jacobian.begin()
    known = math.inf
    if len(suspects) and bool(images.isfinite().all()):
        known = float(torch.linalg.eigvalsh(suspects @ images.T)[0])
    due = TESTED_FIRST
    for space in krylov(jacobian.squared, start, steps=steps):
        if not (space.ended or space.steps >= due or space.steps == steps):
            continue
        due = math.ceil(TESTED_AGAIN * space.steps)
        (matrix,) = space.matrices()
        if not bool(matrix.isfinite().all()):
            continue
        values, vectors = torch.linalg.eigh(matrix)
        found = float(values[0])
        smallest = _root_above_rounding(min(found, known), float(values[-1]))
        error = float(space.beside[0, -1] * vectors[-1, 0].abs())
        if not smallest:
            return 0.0
        if error <= SETTLED * smallest**2 and found <= (1 + SETTLED) * known:
            return math.sqrt(smallest**2 - error)
    return None


def davidson_smallest(jacobian: Jacobian, inverse: Linear) -> float | None:
    """Compute it as `lanczos_smallest` does, in a space that grows by Davidson's method.

    Args:
        jacobian: Only products with it are taken.
        inverse: Multiplies by a matrix near the inverse of J^T J, which says where to look. It does
            not change what is found.

    References:
        Davidson, 1975 (davidson1975iterative)
    """
    rest, basis, images = jacobian.begin()
    *_, space = krylov(jacobian.squared, rest, steps=_LARGEST)
    if not bool(space.matrices().isfinite().all()):
        return None
    largest = float(torch.linalg.eigvalsh(space.matrices()).max())
    for _ in range(min(_DAVIDSON, jacobian.unknowns - len(basis))):
        new = inverse(rest)
        for _ in range(2):
            new = new - new @ basis.T @ basis
        basis = torch.cat([basis, new / new.norm()])
        images = torch.cat([images, jacobian.squared(basis[-1:])])
        values, vectors = torch.linalg.eigh(basis @ images.T)
        rest = vectors[None, :, 0] @ (images - values[0] * basis)
        value, error = float(values[0]), float(rest.norm())
        if not _root_above_rounding(value, largest):
            return 0.0
        if error <= SETTLED * value:
            return math.sqrt(value - error)
    return None


def _root_above_rounding(least: float, most: float) -> float:
    """Return the root of the least eigenvalue, or zero if it is rounding beside the largest."""
    return math.sqrt(least) if least > RESOLVED**2 * most and most > 0 else 0.0
