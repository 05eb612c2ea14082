"""Lower bounds on the error of attacks from Fisher information: Cramér-Rao and van Trees."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds.information import (
    SEEN_WITH,
    Channel,
    Information,
    channel,
    information,
    nothing_said,
    require_radius,
    require_std,
    signs,
    within,
)
from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key
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
    of J where that fits, and else from a product with each unit vector, which takes a GPU minutes
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


UNBIASED = "the attack is unbiased: over the noise it is right on average, for every input"
# Share of an open direction in a person's inputs that is rounding.
UNSEEN = 1e-6
KNOWN = "the labels are known, and nothing else is seen: no statistics, no other round"


@dataclass(frozen=True, kw_only=True)
class CramerRao:
    """No unbiased attack comes closer: sigma^2 tr((J J^T)^-1), person by person.

        E ||guess_i - x_i||^2 >= sigma^2 tr_i((J^T J)^-1),   J = d update / d inputs

    with all people unknown together, tr_i the trace of person i's block, and J taken through every
    link of the defense before the noise. Of an error per entry it is the root of the trace over
    the number of entries. Attacks with a prior are biased and may do better, certainly once the
    bound exceeds the range of an input; `VanTrees` holds for them too.

    Where J is singular no unbiased attack exists and the bound is infinite, for everybody whom a
    direction runs through that leaves the update as it is; `Identifiability` shows them.

    Args:
        std: Noise of an update that the defense leaves without: how precisely it is observed.
        inversion: How the trace is computed.

    Example:
        >>> import seepage as sp
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(1e-3))
        >>> task = sp.zoo.mlp(hidden=(8,), domain=sp.domains.Image((1, 4, 4)))
        >>> digits = sp.Batch(torch.rand(1, 1, 4, 4), torch.tensor([3]))
        >>> CramerRao()(client, task, digits, rng=sp.rng(0)).side
        'lower'
        >>> CramerRao()(sp.Client(sp.Gradient()), task, digits, rng=sp.rng(0)).remark[:60]
        'nothing bounds the error: the update is shared without noise'

    Deviations:
        In the paper's theorem the error is of the worst input and the gradient a sum over the
        batch; here it is of this batch, and the update is what the client shares.

    References:
        Liu et al., 2024, Eq. 28 and appendix E (liu2024systematic)
    """

    name: ClassVar[str] = "cramer_rao"

    std: float = 0.0
    inversion: Inversion = field(default_factory=Inversion)

    def __post_init__(self) -> None:
        """Check the noise."""
        require_std(self.std)

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Bound the root mean squared error of each person."""
        require_key(rng)
        try:
            seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"))
            about = information(seen, task, batch)
            trace = self.inversion(about, len(batch), rng=rng.fork("inverse"))
        except NotApplicable as reason:
            return nothing_said(batch, str(reason))
        said = (UNBIASED, KNOWN, *granted(seen), *computed(trace))
        error = (trace.value / batch.inputs[0].numel()).sqrt()
        value = torch.where(trace.open > UNSEEN, math.inf, error).cpu()
        return BoundValue(value, "lower", "rmse", said, _singular(trace, about.unknowns))


@dataclass(frozen=True, kw_only=True)
class CramerRaoRelaxed:
    """No unbiased attack comes closer, more cheaply and more loosely: sigma^2 d^2 / ||J||_F^2.

        E ||guess_i - x_i||^2 >= sigma^2 d^2 / tr(J_i^T J_i)

    by tr(M^-1) >= d^2 / tr(M) and as nobody is easier to find for others being unknown as well.
    It takes products with J alone.

    Args:
        std: Noise of an update that the defense leaves without.
        held: Numbers that fit into memory; beyond, the trace is estimated.
        probes: From how many random signs it is then.

    Deviations:
        The paper prints the inequality of Lemma D.2 the wrong way round; Cauchy gives this one.

    References:
        Liu et al., 2024, Eq. 29 (liu2024systematic); Guo et al., 2022 (guo2022bounding), where it
        is the bound from Fisher information leakage
    """

    name: ClassVar[str] = "cramer_rao_relaxed"

    std: float = 0.0
    held: int = 2**28
    probes: int = 32

    def __post_init__(self) -> None:
        """Check the noise, and that an estimate has an error."""
        require_std(self.std)
        if self.held < 0 or self.probes < 2:
            raise InvalidValue(f"expected held >= 0 and probes >= 2, got {self}")

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Bound the root mean squared error of each person."""
        require_key(rng)
        try:
            seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"))
        except NotApplicable as reason:
            return nothing_said(batch, str(reason))
        about = information(seen, task, batch)
        traces, said = self._traces(about, len(batch), rng.fork("probes"))
        if not bool((traces > 0).all()):
            return nothing_said(batch, "the update does not depend on the inputs of everybody")
        value = (batch.inputs[0].numel() / traces).sqrt().cpu()
        return BoundValue(value, "lower", "rmse", (UNBIASED, KNOWN, *granted(seen), *said))

    def _traces(self, about: Information, people: int, rng: Rng) -> tuple[Tensor, tuple[str, ...]]:
        if about.unknowns * about.equations <= self.held:
            return about.block_traces(people), ()
        each = []
        for person in range(people):
            block = about.points.new_zeros(self.probes, people, about.unknowns // people)
            block[:, person] = signs(block[:, person].shape, about.points, rng.fork(person))
            each.append(about.squares(block.flatten(1)))
        found = torch.stack(each)
        spread = half_width(found.T) / found.mean(1)
        return found.mean(1), (f"||J||^2 from {self.probes} probes, {_percent(spread)}",)


def granted(seen: Channel) -> tuple[str, ...]:
    """What an adversary is given in the proof, and what it is taken to see, as phrases."""
    told = tuple(f"holds even for who is told {what}" for what in seen.granted)
    return (*told, f"{SEEN_WITH} {seen.std:g}") if seen.assumed else told


def computed(trace: InverseTrace) -> tuple[str, ...]:
    """How the number came about, where it is not simply computed."""
    if trace.steps is None:
        return ()
    estimated = f"the trace is estimated, {_percent(trace.error / trace.value)}"
    if trace.settled:
        return (estimated,)
    return estimated, f"stopped after {trace.steps} Lanczos steps, which makes it smaller"


def _singular(trace: InverseTrace, unknowns: int) -> str:
    left = round(float(trace.open.sum()))
    if not left:
        return ""
    return (
        f"no unbiased attack exists: {left} of {unknowns} directions leave the update as it is, "
        "which Identifiability shows; VanTrees bounds every attack"
    )


def _percent(share: Tensor) -> str:
    return f"within {100 * float(share.max()):.2g} % (19 times out of 20)"


@dataclass(frozen=True, kw_only=True)
class VanTrees:
    """No attack comes closer on average over inputs like these, biased or not.

        E ||guess_i - x_i||^2 >= tr_i((E J^T J / sigma^2 + diag(pi^2 / h^2))^-1)

    The means are over inputs whose entries lie independently around the private ones, at c + t
    with density cos^2(pi t / 2h) / h for |t| < h; the interval c +- h is what the domain leaves of
    `radius` to either side. Such a prior holds pi^2 / h^2 of information per entry, so the bound
    never exceeds h / pi. As an average never exceeds the worst case, it bounds the minimax risk
    over these inputs too. An adversary who knows more of the inputs than that, that images are
    smooth say, may come closer.

    Args:
        radius: How far entries range, as a share of what the domain allows.
        points: From how many inputs the mean of J^T J is taken.
        std: Noise of an update that the defense leaves without.
        inversion: How the trace is computed.

    Example:
        >>> import seepage as sp
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(1e3))
        >>> task = sp.zoo.mlp(hidden=(8,), domain=sp.domains.Image((1, 4, 4)))
        >>> grey = sp.Batch(torch.full((1, 1, 4, 4), 0.5), torch.tensor([3]))
        >>> blind = VanTrees(radius=0.5)(client, task, grey, rng=sp.rng(0)).value
        >>> blind.round(decimals=4)  # 1 / (2 pi)
        tensor([0.1592], dtype=torch.float64)

    References:
        van Trees, 1968 (trees1968detection); Gill and Levit, 1995 (gill1995applications)
    """

    name: ClassVar[str] = "van_trees"

    radius: float = 0.25
    points: int = 4
    std: float = 0.0
    inversion: Inversion = field(default_factory=Inversion)

    def __post_init__(self) -> None:
        """Check the numbers."""
        require_std(self.std)
        require_radius(self.radius)
        if self.points < 1:
            raise InvalidValue(f"expected points >= 1, got {self.points!r}")

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Bound the root mean squared error of each person."""
        require_key(rng)
        try:
            seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"))
        except NotApplicable as reason:
            return nothing_said(batch, str(reason))
        centre, half = around(batch.inputs.double(), task.domain.bounds, self.radius)
        draws = [cosine_draws(half, rng=rng.fork("point", k)) for k in range(self.points)]
        points = torch.stack([centre + draw for draw in draws])
        about = information(seen, task, batch, points)
        about = replace(about, prior=(math.pi / half.flatten()).square())
        trace = self.inversion(about, len(batch), rng=rng.fork("inverse"))
        value = (trace.value / batch.inputs[0].numel()).sqrt().cpu()
        return BoundValue(
            value, "lower", "rmse", (within(self.radius), KNOWN, *granted(seen), *computed(trace))
        )


def around(inputs: Tensor, bounds: tuple[float, float], radius: float) -> tuple[Tensor, Tensor]:
    """Centre and half-width of the interval around every entry, cut at the bounds.

    Example:
        >>> around(torch.tensor([0.0, 0.5]), (0.0, 1.0), 0.25)
        (tensor([0.1250, 0.5000]), tensor([0.1250, 0.2500]))
    """
    low, high = bounds
    reach = radius * (high - low)
    least, most = (inputs - reach).clamp_min(low), (inputs + reach).clamp_max(high)
    return (least + most) / 2, (most - least) / 2


def cosine_draws(half: Tensor, *, rng: Rng) -> Tensor:
    """Draws t with density cos^2(pi t / 2h) / h on |t| < h, for every h.

    The distribution function (u + 1) / 2 + sin(pi u) / 2 pi of u = t / h is inverted by bisection.
    """
    wanted = rng.uniform(half.shape, like=half)
    least, most = -torch.ones_like(half), torch.ones_like(half)
    for _ in range(50):
        middle = (least + most) / 2
        below = (middle + 1) / 2 + torch.sin(math.pi * middle) / (2 * math.pi) < wanted
        least, most = torch.where(below, middle, least), torch.where(below, most, middle)
    return half * (least + most) / 2
