"""What Fisher information says of the error of unbiased attacks, person by person."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from seepage.bounds.sensitivity import person_jacobians, squared_norm
from seepage.clients import Client
from seepage.core import Batch, BoundValue, Protection, Rng, Task
from seepage.core.errors import InvalidValue
from seepage.core.progress import report
from seepage.defenses import AddGaussian, Clip, ClipEach, Mean, Prune, TopK

# What acts on the update by a rule without randomness, whose derivative autograd has.
RULES = (Clip, ClipEach, Mean, Prune, TopK)
# How many standard errors the estimated information is raised by, so that the bound stays below.
CAUTION = 2.0

ASSUMPTIONS = (
    "the attack is unbiased: over the noise it is right on average, whatever the input",
    "the adversary may know everybody else in the batch",
    "the update is differentiable at the inputs, and pruned entries stay the same nearby",
)


@dataclass(frozen=True, kw_only=True)
class FisherLeakage:
    """No unbiased attack on a noisy update errs by less, from a few products with the Jacobian.

    Gaussian noise of deviation s gives the information I = J^T J / s^2 on one person's d entries,
    and

        MSE >= tr(I^-1) / d >= d / tr(I) = s^2 d / ||J||_F^2

    Args:
        probes: Random directions from which ||J||_F^2 is estimated; two standard errors are added
            to it, so that the bound is low rather than high.

    Example:
        >>> import seepage as sp
        >>> photo, task = sp.data.bundled("photos", size=1), sp.zoo.mlp(hidden=(16,))
        >>> noisy = sp.Client(sp.Gradient(), sp.AddGaussian(0.1))
        >>> found = FisherLeakage(probes=8)(noisy, task, photo, rng=sp.rng(0))
        >>> bool(found.value > 0.01), found.vacuous
        (True, False)
        >>> FisherLeakage()(sp.Client(sp.Gradient()), task, photo, rng=sp.rng(0)).remark
        'no noise is added: every error is possible, down to none'

    References:
        Guo et al., 2022 (guo2022bounding), the bound from Fisher information leakage; Liu et al.,
        2024, Eq. 29 (liu2024systematic)
    """

    name: ClassVar[str] = "fisher_leakage"

    probes: int = 64

    def __post_init__(self) -> None:
        """Check the number."""
        if self.probes < 2:
            raise InvalidValue(f"expected probes >= 2, got {self.probes!r}")

    def __call__(self, client: Client, task: Task, batch: Batch, *, rng: Rng) -> BoundValue:
        """Estimate the information about each person."""
        remark = _unfit(client.chain.links)
        if remark:
            return self._value([0.0] * len(batch), remark)
        std = _std(client.chain.links)
        errors = []
        for person, jacobian in enumerate(person_jacobians(client, task, batch)):
            norm, spread = squared_norm(jacobian, probes=self.probes, rng=rng.fork(person))
            information = (norm + CAUTION * spread) / std**2
            errors.append((jacobian.unknowns / information) ** 0.5 if information else torch.inf)
            report(person + 1, len(batch), errors[-1])
        return self._value(errors)

    def _value(self, errors: list[float], remark: str = "") -> BoundValue:
        return BoundValue(
            torch.tensor(errors, dtype=torch.float64),
            side="lower",
            metric="rmse",
            assumptions=(*ASSUMPTIONS, f"the information is estimated from {self.probes} probes"),
            remark=remark,
        )


def _unfit(links: tuple[Protection, ...]) -> str:
    """Why nothing can be said of a chain; empty if something can."""
    for place, link in enumerate(links):
        if isinstance(link, AddGaussian) and place == len(links) - 1:
            return "" if link.std > 0 else "the noise has deviation zero: every error is possible"
        if not isinstance(link, RULES):
            return f"{link} is random, or changes more than the update; only noise at the end is"
    return "no noise is added: every error is possible, down to none"


def _std(links: tuple[Protection, ...]) -> float:
    last = links[-1]
    return last.std if isinstance(last, AddGaussian) else 0.0
