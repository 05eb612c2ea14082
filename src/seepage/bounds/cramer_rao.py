"""No unbiased attack comes closer: the Cramér-Rao bound, computed for any network and batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds.channel import SEEN_WITH, Channel, channel, nothing_said, require_std
from seepage.bounds.information import Information, information, signs
from seepage.bounds.inverse_trace import InverseTrace, Inversion, half_width
from seepage.clients.client import Client
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core.errors import InvalidValue, NotApplicable
from seepage.core.rng import require_key

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
