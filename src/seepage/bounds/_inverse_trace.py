"""The trace of each example's block of an inverse: exact, or estimated from random signs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.bounds._information import Information, draw_signs
from seepage.core import Rng
from seepage.core.errors import NotApplicable, require_at_least, require_positive
from seepage.numerics._krylov import lanczos

# Eigenvalues of J^T J below this share of the largest are rounding errors.
RESOLVED = 1e-12
# Coverage of confidence intervals.
COVERED = 0.95


@dataclass(frozen=True, eq=False)
class InverseTrace:
    """The trace of each example's diagonal block of I^-1.

    Args:
        value: The traces, `(B,)`.
        error: Half the width of a 95 % confidence interval, `(B,)`; zero if computed exactly.
        open: Directions of each example that I does not determine, `(B,)`; the trace leaves them
            out.
        steps: Steps of the Lanczos process, or None if there was none.
        settled: Whether the steps were enough; otherwise the trace is too small.
    """

    value: Tensor
    error: Tensor
    open: Tensor
    steps: int | None = None
    settled: bool = True

    def describe(self) -> tuple[str, ...]:
        """Say how it was estimated; nothing if it was computed exactly."""
        if self.steps is None:
            return ()
        estimated = f"the trace is estimated, {describe_error(self.error / self.value)}"
        if self.settled:
            return (estimated,)
        return estimated, f"stopped after {self.steps} Lanczos steps, which makes it smaller"


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """How to compute the trace of an inverse.

    If I fits into memory, the trace comes from its eigenvalues. I is formed from J if J fits too,
    else from a product with each unit vector; for a few thousand unknowns this takes minutes on a
    GPU and hours on a CPU. Otherwise the trace is estimated by stochastic Lanczos quadrature from
    random signs z,

        tr_i(I^-1) = E[z_i^T (I^-1 z)_i],

    with I^-1 z from a Krylov space. The estimated sum over all examples is a little too small,
    never too large.

    Args:
        held: Largest problem for which I is formed, counting eight numbers for each entry of I and,
            on a CPU, one for each entry of J.
        probes: Number of vectors z.
        steps: Largest dimension of the Krylov space of each z.
        tolerance: The process stops earlier once the estimate changes by less than this over a
            tenth of the steps.

    References:
        Ubaru, Chen and Saad, 2017 (ubaru2017fast)
    """

    held: int = 2**28
    probes: int = 8
    steps: int = 256
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        require_at_least(0, held=self.held)
        require_at_least(2, probes=self.probes)
        require_at_least(1, steps=self.steps)
        require_positive(tolerance=self.tolerance)

    def fits(self, about: Information) -> bool:
        """Whether I may be formed as a whole; its eigenvalues then cost another n^3."""
        equations = 0 if about.points.is_cuda else about.equations
        return about.unknowns * max(equations, about.unknowns * 8) <= self.held

    def __call__(self, about: Information, examples: int, *, rng: Rng) -> InverseTrace:
        """Compute or estimate the trace of each example's block of the inverse."""
        if self.fits(about):
            return _dense_trace(about.dense(), examples)
        if about.equations < about.unknowns and not bool(torch.as_tensor(about.prior).any()):
            raise NotApplicable(
                f"the update has {about.equations} entries for {about.unknowns} unknowns, which it "
                "cannot determine; use VanTrees, or Identifiability with room to hold the matrix"
            )
        probes = draw_signs((self.probes, about.unknowns), about.points, rng.fork("probes"))
        solutions, steps, settled = self.solve(about, probes)
        each = (probes * solutions).reshape(self.probes, examples, -1).sum(2)
        error = half_width(each)
        none_open = torch.zeros_like(error)
        return InverseTrace(each.mean(0), error, none_open, steps, settled)

    def solve(self, about: Information, probes: Tensor) -> tuple[Tensor, int, bool]:
        """I^-1 z for every row z of `(k, n)` by products alone, the steps, and if they settled."""
        found = lanczos(about.products, probes, steps=self.steps, tolerance=self.tolerance)
        if not found.least > RESOLVED * found.most:
            raise NotApplicable(
                "some direction of the inputs leaves the update as it is, up to rounding; use "
                "VanTrees, or Identifiability with room to hold the matrix"
            )
        return found.solutions, found.steps, found.settled


def half_width(drawn: Tensor) -> Tensor:
    """Half the width of Student's 95 % interval for the mean over the rows of `(k, B)`, `(B,)`."""
    # Imported here, since scipy is slow to load.
    from scipy.stats import t

    rows = len(drawn)
    return drawn.std(0) * (float(t.ppf((1 + COVERED) / 2, rows - 1)) / math.sqrt(rows))


def _dense_trace(matrix: Tensor, examples: int) -> InverseTrace:
    """Compute the trace of each block of the pseudo-inverse from all eigenvalues.

    Example:
        >>> _dense_trace(torch.diag(torch.tensor([2.0, 4.0, 1.0, 0.0])), examples=2).value
        tensor([0.7500, 1.0000])
    """
    values, vectors = torch.linalg.eigh(matrix)
    known = values > RESOLVED * values[-1]
    weights = torch.where(known, 1 / torch.where(known, values, 1.0), 0.0)
    squares = vectors.square()
    trace = (squares @ weights).reshape(examples, -1).sum(1)
    left = (squares @ (~known).to(squares)).reshape(examples, -1).sum(1)
    return InverseTrace(trace, torch.zeros_like(trace), left)


def describe_error(share: Tensor) -> str:
    """Say how far an estimate may be off."""
    return f"within {100 * float(share.max()):.2g} % (19 times out of 20)"
