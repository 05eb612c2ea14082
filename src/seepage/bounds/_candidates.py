"""The best attack on candidates from public data: a ceiling that knows what inputs look like."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from seepage.bounds._bound import (
    AMONG,
    EVERY_ATTACK,
    KNOWN,
    OTHERS_KNOWN,
    LowerBound,
    bound_below,
)
from seepage.bounds._information import Channel, channel, require_gaussian
from seepage.bounds._inverse_trace import half_width
from seepage.core import Batch, BoundValue, Rng, Task
from seepage.core._batch import are_numbers
from seepage.core._client import Client
from seepage.core.errors import NotApplicable, require_at_least
from seepage.data._dataset import Dataset
from seepage.data._load import load
from seepage.domains import Image


@dataclass(frozen=True, kw_only=True)
class OverCandidates(LowerBound):
    """Abstract: a bound on average over public data, among which the private example is hidden.

    Args:
        data: Name of the data set, as `load` and specs take it.
        split: "test" or "train".
        candidates: Largest number of candidates, with the private example among them.
        same_label: Whether only data with the label of the private example counts.
    """

    data: str = ""
    split: str = "test"
    candidates: int = 100
    same_label: bool = True

    def __post_init__(self) -> None:
        require_at_least(2, candidates=self.candidates)

    def draw(self, task: Task, batch: Batch, example: int, *, rng: Rng) -> Tensor:
        """Draw the candidates for one example `(N, ...)`, the private one first.

        Raises:
            NotApplicable: No data is named, or it has no other input of this kind.
        """
        if not self.data:
            raise NotApplicable(
                'it needs public data of the same kind to draw candidates from: give data = "..."'
            )
        private = batch.inputs[example]
        domain = task.domain
        side = domain.shape[-1] if isinstance(domain, Image) else None
        public = _load_once(self.data, self.split, side)
        if public.inputs.shape[1:] != private.shape:
            raise NotApplicable(
                f"expected candidates of shape {tuple(private.shape)}, but {self.data} has inputs "
                f"of shape {tuple(public.inputs.shape[1:])}; name data of the same kind"
            )
        others = public.inputs.to(private)
        if self.same_label and not are_numbers(batch.labels):
            others = others[public.labels.to(batch.labels.device) == batch.labels[example]]
        for known in batch.inputs:
            others = others[(others - known).abs().flatten(1).amax(1) > 0]
        if len(others) == 0:
            raise NotApplicable(
                f"{self.data} has no other input with the label of the private one; name larger "
                "data, or set same_label = false"
            )
        order = rng.uniform((len(others),), like=private).argsort()
        return torch.cat([private[None], others[order[: self.candidates - 1]]])


@cache
def _load_once(name: str, split: str, side: int | None) -> Dataset:
    found = load(name, split=split)
    if side is None or found.domain.shape[-1] == side:
        return found
    return load(name, split=split, pixels=side)


@dataclass(frozen=True, kw_only=True)
class CandidateError(OverCandidates):
    """No attack comes closer on average over candidates from public data; the update may jump.

    The adversary holds N inputs, one of which is the private one, and the rest of the batch. It
    computes the update of each and guesses the mean of what remains possible:

        E ||guess - x||^2 >= E tr Cov(x | update),   x uniform over the N candidates

    That is the error of the best attack there is, computed by sampling the noise. An adversary who
    knows only the population that candidates and private example are drawn from does no better.
    As the noise grows, the bound rises to the error of the best guess without an update, less a
    share 1 / N of its square, since the private example is among the N. Where the noise leaves the
    candidates apart, it says nothing. The assumptions tell how often the best
    attack names the right candidate. Nothing is differentiated.

    Args:
        data: Name of the data set that candidates come from, as `data` in a spec.
        split: "test" or "train".
        candidates: Largest number N of candidates.
        same_label: Whether only data with the label of the private example counts.
        draws: Number of noises to draw for each candidate.
        std: Noise with which the update is observed if the defense adds none.

    Example:
        >>> import seepage as sp
        >>> digit = sp.data.bundled("digits", size=1)
        >>> task = sp.zoo.lenet(domain=sp.domains.Image((1, 32, 32)))
        >>> client = sp.Client(sp.Gradient(), sp.AddGaussian(1e6))
        >>> found = CandidateError(data="digits")(client, task, digit, rng=sp.rng(0))
        >>> found.assumptions[-1]
        'the best attack names the right one of 10 candidates in 10 % of the cases'

    References:
        van Trees, 1968 (trees1968detection), the Bayes estimate under squared error
    """

    name: ClassVar[str] = "candidate_error"

    draws: int = 32
    std: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(0, std=self.std)
        require_at_least(2, draws=self.draws)

    def bound_error(self, client: Client, task: Task, batch: Batch, rng: Rng) -> BoundValue:
        """Compute the error of the best attack on each example's candidates."""
        require_gaussian(client, task)
        seen = channel(client, task, batch, std=self.std, rng=rng.fork("client"), rounded=True)
        found = [self._attack(seen, task, batch, i, rng.fork(i)) for i in range(len(batch))]
        counts, errors, named = zip(*found, strict=True)
        if not any(errors):
            raise NotApplicable(
                f"the noise leaves all {max(counts)} candidates apart, so the best attack names "
                "the right one; add noise, or use MutualInformation"
            )
        return bound_below(
            errors,
            EVERY_ATTACK,
            AMONG,
            f"the candidates are from {self.data}",
            KNOWN,
            OTHERS_KNOWN,
            *seen.describe(),
            f"the best attack names the right one of {max(counts)} candidates in "
            f"{100 * max(named):.3g} % of the cases",
        )

    def _attack(
        self, seen: Channel, task: Task, batch: Batch, example: int, rng: Rng
    ) -> tuple[int, float, float]:
        """Count the candidates; find the best attack's error and how often it names the right."""
        inputs = self.draw(task, batch, example, rng=rng.fork("candidates"))
        signals = []
        for one in inputs:
            rows = torch.cat([batch.inputs[:example], one[None], batch.inputs[example + 1 :]])
            signal = seen.share(task, Batch(rows, batch.labels), rng=rng.fork("client"))
            signals.append(signal.double() / seen.std)
        error, named = _attack_candidates(
            inputs.double(), torch.stack(signals), draws=self.draws, rng=rng.fork("noise")
        )
        return len(inputs), error, named


def _attack_candidates(
    inputs: Tensor, signals: Tensor, *, draws: int, rng: Rng
) -> tuple[float, float]:
    """Find the RMSE of the best attack on candidates, and how often it names the right one.

    The log likelihood of candidate k, after signal c in noise n, is n . s_k - ||s_c - s_k||^2 / 2
    up to a constant. The products with n are normal with the Gram matrix of the signals as their
    covariance, so no noise of the size of the update is drawn.

    Args:
        inputs: The candidates, `(N, ...)`.
        signals: The update of each, `(N, P)`, in units of the noise.
        draws: Number of noises for each candidate.
        rng: For the noise.

    Returns:
        The error, less half a 95 % interval of the sampling error, and a share of the cases.
    """
    signals = signals - signals.mean(0)
    gram = signals @ signals.T
    values, vectors = torch.linalg.eigh(gram)
    root = vectors * values.clamp_min(0).sqrt()
    squares = gram.diagonal()
    apart = (squares[:, None] + squares - 2 * gram).clamp_min(0)
    points = inputs.flatten(1) - inputs.flatten(1).mean(0)
    products = points @ points.T / points.shape[1]
    variances, named = [], []
    for number in range(draws):
        noise = rng.fork(number).normal(gram.shape, like=gram)
        posterior = (noise @ root.T - apart / 2).softmax(1)
        left = posterior @ products.diagonal() - ((posterior @ products) * posterior).sum(1)
        variances.append(left.clamp_min(0).mean())
        named.append(posterior.amax(1).mean())
    drawn = torch.stack(variances)
    mean = float(drawn.mean() - half_width(drawn[:, None])[0])
    return math.sqrt(max(mean, 0.0)), float(torch.stack(named).mean())
