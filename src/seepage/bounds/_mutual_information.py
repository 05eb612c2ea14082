"""A bound for updates that jump: how much a noisy update can tell at all, and what that leaves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds._bound import (
    EVERY_ATTACK,
    KNOWN,
    OTHERS_KNOWN,
    LowerBound,
    bound_below,
    describe_intervals,
    find_intervals,
)
from seepage.bounds._information import Channel, channel, require_gaussian
from seepage.bounds._inverse_trace import COVERED, half_width
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core._client import Client
from seepage.core.errors import require_at_least, require_within

# Directions with less than this share of the largest variance are rounding errors.
NEGLIGIBLE = 1e-10


@dataclass(frozen=True, kw_only=True)
class MutualInformation(LowerBound):
    """No attack comes closer on average over inputs like these; the update may jump.

    Noise of std sigma lets an update with covariance Sigma over the inputs tell at most

        I = 1/2 log det(1 + Sigma / sigma^2)

    of one example. Whoever learns I nats about d independent entries, each uniform over an interval
    of width w, keeps a mean squared error per entry of at least

        w^2 max(1/12 - r / 6, exp(-2 r) / (2 pi e)),   r = I / d

    which are the tangent of the rate-distortion function at r = 0 and Shannon's lower bound. As the
    noise grows, the bound rises to w / sqrt(12), the error of the best guess without an update.
    Nothing is differentiated: ReLU, MaxPool, pruning and rounding are all covered. The interval
    around each private entry is that of `VanTrees`. An adversary who knows more about the inputs
    may come closer; `CandidateError` gives it public data.

    log det is concave, so a tangent at any matrix bounds it from above. The matrix comes from two
    sets of random inputs, and the tangent is averaged over a third, which keeps the estimate on the
    safe side. With fewer draws than the update has directions, the bound is looser.

    Args:
        radius: How far entries vary, as a share of the domain's range.
        draws: Number of random inputs in each of the three sets.
        std: Noise with which the update is observed if the defense adds none.

    Example:
        >>> import seepage as sp
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(1e6))
        >>> task = sp.zoo.mlp(hidden=(8,), domain=sp.domains.Image((1, 4, 4)))
        >>> grey = sp.Batch(torch.full((1, 1, 4, 4), 0.5), torch.tensor([3]))
        >>> blind = MutualInformation(radius=0.5)(client, task, grey, rng=sp.rng(0)).value
        >>> blind.round(decimals=4)  # 1 / sqrt(12)
        tensor([0.2887], dtype=torch.float64)

    References:
        Shannon, 1959 (shannon1959coding); Cover and Thomas, 2006, chapters 8 to 10
        (cover2006elements)
    """

    name: ClassVar[str] = "mutual_information"

    radius: float = 0.25
    draws: int = 64
    std: float = 0.0

    def __post_init__(self) -> None:
        require_at_least(0, std=self.std)
        require_within("(0, 1]", radius=self.radius)
        require_at_least(2, draws=self.draws)

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Bound the error of each example by what the update tells about it."""
        require_gaussian(client, task)
        seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"), rounded=True)
        centre, half = find_intervals(batch.inputs, task.domain.bounds, self.radius)
        found, errors = list[tuple[float, float]](), list[float]()
        for i in range(len(batch)):
            draw_signal = self._sampler(seen, task, batch, i, centre[i], half[i], rng.fork(i))
            found.append(_bound_capacity(draw_signal, draws=self.draws))
            errors.append(math.sqrt(_remaining_error(found[-1][0], widths=2 * half[i])))
        most, doubt = (max(values) / math.log(2) for values in zip(*found, strict=True))
        return bound_below(
            errors,
            EVERY_ATTACK,
            describe_intervals(self.radius),
            KNOWN,
            OTHERS_KNOWN,
            *seen.describe(),
            f"the update tells at most {most:.3g} bits of an example, of which {doubt:.2g} stand "
            f"for the error of sampling ({100 * COVERED:g} %)",
        )

    def _sampler(
        self,
        seen: Channel,
        task: Task,
        batch: Batch,
        example: int,
        centre: Tensor,
        half: Tensor,
        rng: Rng,
    ) -> Callable[[str, int], Tensor]:
        """Return a function that draws one example and computes the update, in units of noise."""

        def draw_signal(purpose: str, number: int) -> Tensor:
            key, inputs = rng.fork(purpose, number), batch.inputs.clone()
            inputs[example] = centre + half * (2 * key.uniform(centre.shape, like=centre) - 1)
            signal = seen.share(task, Batch(inputs, batch.labels), rng=key.fork("client"))
            return signal.double() / seen.std

        return draw_signal


def _bound_capacity(
    draw_signal: Callable[[str, int], Tensor], *, draws: int
) -> tuple[float, float]:
    """Bound 1/2 log det(1 + Sigma) from above, Sigma the covariance of a random signal.

        log det M <= log det A + tr(A^-1 M) - P   for every A

    A has the variances of a second set of draws along the directions of a first, and one variance
    for all other directions. tr(A^-1 M) is a mean over a third.

    Args:
        draw_signal: Draws one signal `(P,)`, in units of the noise, by a purpose and a number.
        draws: Number of draws in each set.

    Returns:
        The bound in nats, and the part of it that covers the error of sampling.
    """
    first = torch.stack([draw_signal("directions", k) for k in range(draws)])
    centre = first.mean(0)
    basis = _find_directions(first - centre)
    others = len(centre) - basis.shape[1]

    def measure(purpose: str) -> tuple[Tensor, Tensor]:
        """Squares along the directions `(draws, r)`, and the sum of all others `(draws,)`."""
        along, rest = list[Tensor](), list[Tensor]()
        for k in range(draws):
            moved = draw_signal(purpose, k) - centre
            along.append((moved @ basis).square())
            rest.append((moved.square().sum() - along[-1].sum()).clamp_min(0))
        return torch.stack(along), torch.stack(rest)

    along, rest = measure("variances")
    variances, spread = along.mean(0), float(rest.mean()) / max(others, 1)
    level = variances.log1p().sum() - (variances / (1 + variances)).sum()
    level += others * (math.log1p(spread) - spread / (1 + spread))
    along, rest = measure("mean")
    tangent = (along / (1 + variances)).sum(1) + rest / (1 + spread)
    doubt = float(half_width(tangent[:, None])) / 2
    return float(level + tangent.mean()) / 2 + doubt, doubt


def _find_directions(rows: Tensor) -> Tensor:
    """Orthonormal directions in which the rows `(k, P)` differ, `(P, r)`."""
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    kept = values > NEGLIGIBLE * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
    directions: Tensor = torch.linalg.qr(rows.T @ vectors[:, kept]).Q
    return directions


def _remaining_error(nats: float, *, widths: Tensor) -> float:
    """Bound the mean squared error of independent uniform entries after `nats` of information.

    The larger of two bounds that hold however the information is spread over the entries.

    Args:
        nats: Information about all entries together.
        widths: Width of the interval of each entry.

    Example:
        >>> _remaining_error(0.0, widths=torch.ones(5)) == 1 / 12
        True
    """
    squares = widths.double().square().flatten()
    rate = nats / len(squares)
    tangent = float(squares.mean()) / 12 - float(squares.max()) * rate / 6
    shannon = math.exp(float(squares.log().mean()) - 2 * rate) / (2 * math.pi * math.e)
    return max(tangent, shannon)
