"""Lower bounds on the error of unbiased attacks from Fisher information: Cramér-Rao."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds.bound import KNOWN, UNBIASED, LowerBound, bound_below
from seepage.bounds.information import (
    DIFFERENTIABLE,
    Information,
    channel,
    draw_signs,
    information,
    require_differentiable,
)
from seepage.bounds.inverse_trace import Inversion, describe_error, half_width
from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import NotApplicable, require_at_least

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
