"""A lower bound on the error of every attack, on average over inputs like these: van Trees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds.bound import (
    EVERY_ATTACK,
    KNOWN,
    LowerBound,
    bound_below,
    describe_intervals,
    find_intervals,
)
from seepage.bounds.information import (
    Information,
    channel,
    draw_signs,
    information,
    require_continuous,
)
from seepage.bounds.inverse_trace import COVERED, InverseTrace, Inversion, half_width
from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import require_at_least, require_within

CONTINUOUS = "the update is continuous in the inputs, which was checked operation by operation"


@dataclass(frozen=True, kw_only=True)
class VanTrees(LowerBound):
    """No attack, biased or not, comes closer on average over inputs like these.

        E ||guess_i - x_i||^2 >= tr_i((E J^T J / sigma^2 + diag(pi^2 / h^2))^-1)

    The means are over inputs whose entries vary independently around the private ones: c + t with
    density cos^2(pi t / 2h) / h for |t| < h. The interval c +- h is `radius` to either side of the
    private entry, cut at the domain's bounds. Such a prior holds pi^2 / h^2 of information per
    entry, so the bound never exceeds h / pi, whatever the noise; `CandidateError` rises to a guess
    without an update. It also bounds the minimax risk over these inputs, since an average never
    exceeds the worst case. An adversary who knows more about the inputs, for example that images
    are smooth, may come closer.

    With M the matrix above, every matrix C gives such a bound (Gill and Levit), and C = M^-1 the
    best:

        E ||guess_i - x_i||^2 >= (tr_i C)^2 / tr_i(C M C^T)

    C comes from a few draws of the inputs, and C M C^T is averaged over others, with half a 95 %
    interval of the sampling error added. The inverse of a mean over few draws would be too large
    on average. Where J is large at a few rare inputs only, take more points.

    The update must be continuous over all these inputs. The bound refuses networks with ReLU or
    MaxPool and defenses that prune, whose updates jump: each jump tells the adversary something
    that J does not contain. `MutualInformation` holds for them.

    Args:
        radius: How far entries vary, as a share of the domain's range.
        points: Number of inputs over which C M C^T is averaged, two at least; half as many others
            make C.
        std: Noise with which the update is observed if the defense adds none.
        inversion: How the trace is computed.

    Example:
        >>> import seepage as sp
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(1e3))
        >>> image = sp.domains.Image((1, 4, 4))
        >>> task = sp.zoo.mlp(hidden=(8,), activation="sigmoid", domain=image)
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
        require_at_least(0, std=self.std)
        require_within("(0, 1]", radius=self.radius)
        require_at_least(1, points=self.points)

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Bound the error by the trace of the inverse, with the prior's information."""
        seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"))
        require_continuous(seen, task, batch)
        centre, half = find_intervals(batch.inputs.double(), task.domain.bounds, self.radius)
        prior = (math.pi / half.flatten()).square()

        def average(*numbers: int) -> Information:
            draws = [_draw_cosines(half, rng=rng.fork("point", k)) for k in numbers]
            points = torch.stack([centre + draw for draw in draws])
            return replace(information(seen, task, batch, points), prior=prior)

        count = max(2, self.points)
        held = [average(k) for k in range(count)]
        shape = average(*range(count, count + (count + 1) // 2))
        trace, doubt = self._bound(shape, held, len(batch), rng.fork("inverse"))
        return bound_below(
            (trace.value / batch.inputs[0].numel()).sqrt(),
            EVERY_ATTACK,
            describe_intervals(self.radius),
            KNOWN,
            CONTINUOUS,
            *seen.describe(),
            *trace.describe(),
            f"averaged over {count} inputs, of which the error of sampling takes up to "
            f"{100 * doubt:.2g} % ({100 * COVERED:g} %)",
        )

    def _bound(
        self, shape: Information, held: Sequence[Information], examples: int, rng: Rng
    ) -> tuple[InverseTrace, float]:
        """(tr_i C)^2 / tr_i(C M C^T) of each example, and the share taken off for sampling.

        Both traces are means of z^T C z and ||C^T z||_M^2 over probes z: the unit vectors of an
        example if M is held, else random signs.
        """
        inversion, size = self.inversion, shape.unknowns // examples
        whole = torch.linalg.inv(shape.dense()) if inversion.fits(shape) else None
        values, errors, doubts = list[Tensor](), list[Tensor](), list[float]()
        steps, settled = None, True
        for example in range(examples):
            own = slice(example * size, (example + 1) * size)
            if whole is not None:
                pulled, along = whole[own], whole[own, own].diagonal()
            else:
                probes = shape.points.new_zeros(inversion.probes, shape.unknowns)
                signs = (inversion.probes, size)
                probes[:, own] = draw_signs(signs, shape.points, rng.fork("probes", example))
                pulled, taken, done = inversion.solve(shape, probes)
                steps, settled = max(steps or 0, taken), settled and done
                along = (probes * pulled).sum(1)
            costs = torch.stack(
                [one.squares(pulled) + pulled.square() @ shape.prior for one in held]
            )
            # Of unit vectors the sum counts, of random signs the mean.
            factor = 1 if whole is not None else 1 / len(along)
            each = factor * costs.sum(1)
            most = each.mean() + half_width(each[:, None])[0]
            values.append((factor * along.sum()).square() / most)
            doubts.append(1 - math.sqrt(float(each.mean() / most)))
            errors.append(
                along.new_zeros(()) if whole is not None else half_width(along[:, None])[0]
            )
        value = torch.stack(values)
        trace = InverseTrace(value, torch.stack(errors), torch.zeros_like(value), steps, settled)
        return trace, max(doubts)


def _draw_cosines(half: Tensor, *, rng: Rng) -> Tensor:
    """Draw t with density cos^2(pi t / 2h) / h on |t| < h, for every h.

    The distribution function (u + 1) / 2 + sin(pi u) / 2 pi of u = t / h is inverted by bisection.
    """
    wanted = rng.uniform(half.shape, like=half)
    least, most = -torch.ones_like(half), torch.ones_like(half)
    for _ in range(50):
        middle = (least + most) / 2
        below = (middle + 1) / 2 + torch.sin(math.pi * middle) / (2 * math.pi) < wanted
        least, most = torch.where(below, middle, least), torch.where(below, most, middle)
    return half * (least + most) / 2
