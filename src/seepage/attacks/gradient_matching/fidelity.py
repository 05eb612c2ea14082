"""How far the candidate's update is from the observed one.

A tensor that is exactly zero on either side, as behind a dead ReLU, costs a finite value and has a
finite gradient in every term.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.gradient_matching.candidate import Candidate
from seepage.attacks.gradient_matching.direction import one_minus_cosine, one_minus_cosines
from seepage.core import Observation, Update
from seepage.core.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class L2:
    """The squared Euclidean distance between simulated and observed update.

        || g(x) - g* ||^2,  summed over all tensors

    Unlike the cosine it sees the magnitude, so the client's loss must be reduced (mean or sum) on
    both sides alike.

    References:
        Zhu et al., 2019 (zhu2019deep); Geiping et al., 2020, Eq. 3 (geiping2020inverting)
    """

    weight: float = 1.0

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the squared differences."""
        return (candidate.update.flat() - observation.update.flat()).square().sum()


@dataclass(frozen=True, kw_only=True)
class GaussianLikelihood:
    """Minus the logarithm of the likelihood of Gaussian noise of known size, up to a constant.

        || g(x) - g* ||^2 / (2 sigma^2)

    In nats, so that a prior in nats beside it makes the posterior.

    Args:
        std: sigma, of the noise on every entry.
        weight: Factor in the objective.

    References:
        Balunovic et al., 2022, Sec. 4 (balunovic2022bayesian)
    """

    std: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the deviation."""
        if not self.std > 0:
            raise InvalidValue(f"expected std > 0, got {self.std!r}")

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the squared differences, in deviations."""
        away = (candidate.update.flat() - observation.update.flat()) / self.std
        return away.square().sum() / 2


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """One minus the cosine between simulated and observed update, over all tensors jointly.

        1 - <g(x), g*> / (||g(x)|| ||g*||)  =  1/2 || g(x)/||g(x)|| - g*/||g*|| ||^2

    Computed by the right-hand side, which keeps its digits where the left cancels to nothing.
    Invariant to rescaling of the update, hence blind to clipping.

    Args:
        weight: Factor in the objective.
        top: Compare only the `top` tensors whose observed norm is largest (of equal ones the
            first); None compares all.

    References:
        Geiping et al., 2020, Eq. 4 and, with `top`, Eq. 7 (geiping2020inverting)
    """

    weight: float = 1.0
    top: int | None = None

    def __post_init__(self) -> None:
        """Check the count."""
        if self.top is not None and self.top < 1:
            raise InvalidValue(f"expected top >= 1 or None, got {self.top!r}")

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Compare directions."""
        ours, theirs = candidate.update, observation.update
        if self.top is not None and self.top < len(theirs.tensors):
            chosen = _largest(theirs, self.top)
            ours, theirs = _scaled(ours, chosen), _scaled(theirs, chosen)
        return one_minus_cosine(list(ours), list(theirs))


@dataclass(frozen=True, kw_only=True)
class LayerwiseCosine:
    """A weighted mean over tensors of one minus the cosine of each.

        sum_i w_i (1 - cos(g_i(x), g*_i)) / sum_i w_i

    Args:
        weight: Factor in the objective.
        weighting: "entries": w_i is the number of entries of tensor i. A number p: w_i is
            ||g*_i||^p, so that 0 weighs all tensors alike. The joint cosine weighs about as p = 2
            does; beyond it the layers next to the output lead, whose gradients are the smoothest
            functions of the input, and the search gets stuck less.

    Deviations:
        Divided by the sum of the weights, so that `weight` means the same for all weightings and
        every network; the paper leaves the sum as it is, and has "entries" alone.

    References:
        Liu et al., 2024, appendix F, gradient reweighting (liu2024systematic)
    """

    weight: float = 1.0
    weighting: Literal["entries"] | float = "entries"

    def __post_init__(self) -> None:
        """Check the weighting."""
        if isinstance(self.weighting, str):
            known = self.weighting == "entries"
        else:
            known = 0 <= self.weighting < float("inf")
        if not known:
            raise InvalidValue(
                f"expected weighting 'entries' or a power >= 0, got {self.weighting!r}"
            )

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Compare the direction of each tensor."""
        theirs = observation.update
        ours = [candidate.update.tensors[name] for name in theirs.tensors]
        return (self._shares(theirs) * one_minus_cosines(ours, list(theirs))).sum()

    def _shares(self, observed: Update) -> Tensor:
        first = next(iter(observed))
        if isinstance(self.weighting, str):
            counts = [t.numel() for t in observed]
            # Filled in one by one: a copy from the host could not be part of a CUDA graph.
            return torch.stack([first.new_full((), count / sum(counts)) for count in counts])
        norms = torch.stack([torch.linalg.vector_norm(t) for t in observed])
        # By the largest first: powers of tiny norms underflow in single precision.
        tiny = torch.finfo(norms.dtype).tiny
        weights = (norms / norms.max().clamp_min(tiny)).pow(self.weighting)
        return weights / weights.sum().clamp_min(tiny)


def _largest(observed: Update, count: int) -> Tensor:
    """For every tensor 1 if its norm is among the `count` largest and 0 if not.

    A mask rather than a choice of names: under vmap each case has its own largest tensors.
    """
    norms = torch.stack([t.square().sum() for t in observed])
    order = norms.argsort(descending=True, stable=True)
    return torch.zeros_like(norms).scatter(0, order[:count], 1.0)


def _scaled(update: Update, factors: Tensor) -> Update:
    named = zip(update.tensors.items(), factors.unbind(), strict=True)
    return replace(update, tensors={name: t * factor for (name, t), factor in named})
