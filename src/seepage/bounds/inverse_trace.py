"""The trace of every person's block of an inverse: of the whole matrix, or from products alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.bounds.information import Information, signs
from seepage.core import Rng
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.numerics.krylov import lanczos

# Eigenvalues below this share of the largest are rounding: those of J, squared.
RESOLVED = 1e-12
# How often an interval covers what it is about.
COVERED = 0.95


@dataclass(frozen=True, eq=False)
class InverseTrace:
    """tr of each person's diagonal block of I^-1.

    Args:
        value: `(B,)`.
        error: Half the width of a 95 % interval, `(B,)`; zero where it was computed.
        open: Directions of each person that I does not determine, `(B,)`; the trace is of the rest.
        steps: Steps of the Lanczos process, or None.
        settled: Whether they sufficed; if not the trace comes out too small.
    """

    value: Tensor
    error: Tensor
    open: Tensor
    steps: int | None = None
    settled: bool = True


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """How a trace of an inverse is computed.

    All of I is formed where that is affordable, and its eigenvalues give the trace: by way of all
    of J where that fits, and else from a product with each unit vector, which takes a card minutes
    for a few thousand unknowns and a CPU hours. Elsewhere the trace is estimated by stochastic
    Lanczos quadrature from random signs z,

        tr_i(I^-1) = E[z_i^T (I^-1 z)_i],

    with I^-1 z from a Krylov space, which gives the sum over all people a little too small, never
    too large.

    Args:
        held: Numbers up to which all of I is formed: eight for each of its entries, which are as
            much work as memory, and on a CPU one for each entry of J.
        probes: How many z.
        steps: Dimension at which the Krylov space of each z stops growing.
        tolerance: Change of the estimate over a tenth of the steps at which it stops before.

    References:
        Ubaru, Chen and Saad, 2017 (ubaru2017fast)
    """

    held: int = 2**28
    probes: int = 8
    steps: int = 256
    tolerance: float = 1e-3

    def __post_init__(self) -> None:
        """Check the numbers."""
        if self.held < 0 or self.probes < 2 or self.steps < 1 or not self.tolerance > 0:
            raise InvalidValue(
                f"expected held >= 0, probes >= 2, steps >= 1 and tolerance > 0, got {self}"
            )

    def fits(self, about: Information) -> bool:
        """Whether all of I may be formed; an eigenvalue problem costs as much as n^3 more."""
        equations = 0 if about.points.is_cuda else about.equations
        return about.unknowns * max(equations, about.unknowns * 8) <= self.held

    def __call__(self, about: Information, people: int, *, rng: Rng) -> InverseTrace:
        """The trace of each person's block of the inverse."""
        if self.fits(about):
            return dense_trace(about.dense(), people)
        return self._estimate(about, people, rng)

    def _estimate(self, about: Information, people: int, rng: Rng) -> InverseTrace:
        if about.equations < about.unknowns and not bool(torch.as_tensor(about.prior).any()):
            raise NotApplicable(
                f"the update has {about.equations} entries for {about.unknowns} unknowns, which it "
                "cannot determine; use VanTrees, or Identifiability with room to hold the matrix"
            )
        probes = signs((self.probes, about.unknowns), about.points, rng.fork("probes"))
        found = lanczos(about.products, probes, steps=self.steps, tolerance=self.tolerance)
        if not found.least > RESOLVED * found.most:
            raise NotApplicable(
                "some direction of the inputs leaves the update as it is, to rounding; use "
                "VanTrees, or Identifiability with room to hold the matrix"
            )
        each = (probes * found.solutions).reshape(self.probes, people, -1).sum(2)
        spread = half_width(each)
        nothing = torch.zeros_like(spread)
        return InverseTrace(each.mean(0), spread, nothing, found.steps, found.settled)


def half_width(drawn: Tensor) -> Tensor:
    """Half of Student's 95 % interval for the mean of the rows of `(k, B)`, `(B,)`."""
    # Imported here, since scipy is slow to load.
    from scipy.stats import t

    rows = len(drawn)
    return drawn.std(0) * (float(t.ppf((1 + COVERED) / 2, rows - 1)) / math.sqrt(rows))


def dense_trace(matrix: Tensor, people: int) -> InverseTrace:
    """The trace of each block of the pseudo-inverse, from all eigenvalues.

    Example:
        >>> dense_trace(torch.diag(torch.tensor([2.0, 4.0, 1.0, 0.0])), people=2).value
        tensor([0.7500, 1.0000])
    """
    values, vectors = torch.linalg.eigh(matrix)
    known = values > RESOLVED * values[-1]
    weights = torch.where(known, 1 / torch.where(known, values, 1.0), 0.0)
    squares = vectors.square()
    trace = (squares @ weights).reshape(people, -1).sum(1)
    left = (squares @ (~known).to(squares)).reshape(people, -1).sum(1)
    return InverseTrace(trace, torch.zeros_like(trace), left)
