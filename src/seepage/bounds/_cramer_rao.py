"""Lower bounds on the error from Fisher information: Cramér-Rao, and van Trees for every attack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds._bound import (
    EVERY_ATTACK,
    KNOWN,
    UNBIASED,
    LowerBound,
    bound_below,
    describe_intervals,
    find_intervals,
)
from seepage.bounds._information import (
    DIFFERENTIABLE,
    Information,
    channel,
    draw_signs,
    information,
    require_continuous,
    require_differentiable,
)
from seepage.bounds._inverse_trace import (
    COVERED,
    InverseTrace,
    Inversion,
    describe_error,
    half_width,
)
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core._client import Client
from seepage.core.errors import NotApplicable, require_at_least, require_within

# A share of open directions below this, in one example, is a rounding error.
UNSEEN = 1e-6


@dataclass(frozen=True, kw_only=True)
class CramerRao(LowerBound):
    """No unbiased attack comes closer: sigma^2 tr((J^T J)^-1), example by example.

        E ||guess_i - x_i||^2 >= sigma^2 tr_i((J^T J)^-1),   J = d update / d inputs

    All examples are unknown together, tr_i is the trace of example i's block, and J is taken
    through every link of the defense before the noise. The RMSE is the root of the trace over the
    number of entries. Attacks with a prior are biased and may do better, certainly once the bound
    exceeds the range of an input; `VanTrees` holds for them too.

    The update must be differentiable at the private inputs themselves. Jumps elsewhere, as ReLU and
    pruning make them, do not matter: an unbiased attack is right on average around these inputs,
    and the inequality follows from that alone.

    If J is singular, no unbiased attack exists. The bound is then infinite for every example with
    a share in a direction that does not change the update; `Identifiability` shows them.

    Args:
        std: Noise with which the update is observed if the defense adds none.
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
        The paper's theorem is about the worst input and the gradient summed over the batch; here
        the error is that of this batch, and the update is what the client shares.

    References:
        Liu et al., 2024, Eq. 28 and appendix E (liu2024systematic)
    """

    name: ClassVar[str] = "cramer_rao"

    std: float = 0.0
    inversion: Inversion = field(default_factory=Inversion)

    def __post_init__(self) -> None:
        require_at_least(0, std=self.std)

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Bound the error by the trace of the inverse."""
        seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"))
        require_differentiable(seen, task, batch)
        about = information(seen, task, batch)
        trace = self.inversion(about, len(batch), rng=rng.fork("inverse"))
        error = (trace.value / batch.inputs[0].numel()).sqrt()
        error = torch.where(trace.open > UNSEEN, math.inf, error)
        said = (UNBIASED, KNOWN, DIFFERENTIABLE, *seen.describe(), *trace.describe())
        left, remark = round(float(trace.open.sum())), ""
        if left:
            remark = (
                f"no unbiased attack exists: {left} of {about.unknowns} directions do not change "
                "the update, which Identifiability shows; VanTrees bounds every attack"
            )
        return bound_below(error, *said, remark=remark)


@dataclass(frozen=True, kw_only=True)
class CramerRaoRelaxed(LowerBound):
    """No unbiased attack comes closer; a cheaper, looser bound: sigma^2 d^2 / ||J||_F^2.

        E ||guess_i - x_i||^2 >= sigma^2 d^2 / tr(J_i^T J_i)

    This follows from tr(M^-1) >= d^2 / tr(M), and because an example is no easier to find if the
    others are unknown too. It needs only products with J.

    Args:
        std: Noise with which the update is observed if the defense adds none.
        held: Numbers that fit into memory; for more, the trace is estimated.
        probes: Number of random sign vectors for the estimate.

    Deviations:
        The paper prints the inequality of Lemma D.2 the wrong way round; Cauchy gives this one.

    References:
        Liu et al., 2024, Eq. 29 (liu2024systematic); Guo et al., 2022 (guo2022bounding), the bound
        from Fisher information leakage
    """

    name: ClassVar[str] = "cramer_rao_relaxed"

    std: float = 0.0
    held: int = 2**28
    probes: int = 32

    def __post_init__(self) -> None:
        """Check the numbers; an estimate from one probe would have no error."""
        require_at_least(0, std=self.std, held=self.held)
        require_at_least(2, probes=self.probes)

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Bound the error by the trace of each example's block."""
        seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"))
        require_differentiable(seen, task, batch)
        about = information(seen, task, batch)
        traces, said = self._traces(about, len(batch), rng.fork("probes"))
        if not bool((traces > 0).all()):
            raise NotApplicable("the update does not depend on the inputs of every example")
        error = (batch.inputs[0].numel() / traces).sqrt()
        known = (UNBIASED, KNOWN, DIFFERENTIABLE, *seen.describe())
        return bound_below(error, *known, *said)

    def _traces(
        self, about: Information, examples: int, rng: Rng
    ) -> tuple[Tensor, tuple[str, ...]]:
        if about.unknowns * about.equations <= self.held:
            return about.block_traces(examples), ()
        each = []
        for example in range(examples):
            block = about.points.new_zeros(self.probes, examples, about.unknowns // examples)
            block[:, example] = draw_signs(block[:, example].shape, about.points, rng.fork(example))
            each.append(about.squares(block.flatten(1)))
        found = torch.stack(each)
        spread = half_width(found.T) / found.mean(1)
        return found.mean(1), (f"||J||^2 from {self.probes} probes, {describe_error(spread)}",)


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
