"""Priors: terms that are small for plausible inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seepage.clients._gradient import batch_statistics, measure_statistics
from seepage.core import Observation, Statistics, Task
from seepage.core._task import batchnorm_layers
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable
from seepage.search._objective import Candidate, Term


@dataclass(frozen=True, kw_only=True)
class TotalVariation:
    """Anisotropic total variation: the mean absolute difference of neighbours, along each axis.

        mean |x[.., i+1, :] - x[.., i, :]| + mean |x[.., :, j+1] - x[.., :, j]|

    Over valid differences only, so that a constant image scores 0, and in normalised coordinates.
    Works on images and, along their one axis, on signals.

    Args:
        weight: Factor in the objective.
        absolute: Measure |x - c| instead of x, c the middle of the range, at which InstaHide
            mirrors pixels at random.

    References:
        Rudin et al., 1992 (rudin1992nonlinear); Geiping et al., 2020, Eq. 4
        (geiping2020inverting); of |x|: Huang et al., 2021, Sec. 5.1 (huang2021evaluating)
    """

    weight: float
    absolute: bool = False

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Measure the roughness of the candidate."""
        inputs, domain = candidate.normalised, candidate.domain
        if self.absolute:
            middle = inputs.new_full((1, *domain.shape), sum(domain.bounds) / 2)
            inputs = (inputs - domain.normalise(middle)).abs()
        axes = range(1 - len(candidate.domain.shape), 0)
        # One pixel has no neighbour, and the mean of nothing is NaN.
        rough = [_Roughness.apply(inputs, a) for a in axes if inputs.shape[a] > 1]  # type: ignore[no-untyped-call]
        return torch.stack(rough).sum() if rough else inputs.new_zeros(())


# The context of an autograd function, to which anything may be attached.
_Context = Any


class _Roughness(torch.autograd.Function):
    """The mean absolute difference of neighbours along an axis.

    By hand, since autograd would fill and add two tensors of zeros for the two neighbours.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(inputs: Tensor, axis: int) -> Tensor:
        return inputs.diff(dim=axis).abs().mean()

    @staticmethod
    def setup_context(ctx: _Context, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.axis = inputs[1]

    @staticmethod
    def backward(ctx: _Context, slope: Tensor) -> tuple[Tensor, None]:
        (inputs,) = ctx.saved_tensors
        signs = inputs.diff(dim=ctx.axis).sign()
        edge = torch.zeros_like(inputs.narrow(ctx.axis, 0, 1))
        gained = torch.cat([edge, signs, edge], dim=ctx.axis).diff(dim=ctx.axis)
        return gained * (-slope / signs.numel()), None


@dataclass(frozen=True, kw_only=True)
class SquaredNorm:
    """The sum of squares of the candidate, in natural units: ||x||_F^2.

    It pulls images towards black, and keeps sigmoid networks from saturating early.

    Deviations:
        Squared, where the paper prints ||x||_F and calls it the L2 regulariser: the norm itself
        has no gradient at zero.

    References:
        Qian and Hansen, 2020, Eq. 2 (qian2020what)
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the squares."""
        return candidate.inputs.square().sum()


@dataclass(frozen=True, kw_only=True)
class Orthogonality:
    """How much the inputs of one batch resemble each other, in natural units.

        sum_{k != k'} (x_k . x_k')^2

    Every pair counts twice, as the sum is written. Zero for a batch of one.

    References:
        Qian and Hansen, 2020, Eq. 3 (qian2020what)
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the squared inner products of different inputs."""
        flat = candidate.inputs.flatten(1)
        products = flat @ flat.T
        return (products - torch.diag_embed(products.diagonal())).square().sum()


@dataclass(frozen=True, kw_only=True)
class GroupConsistency:
    """The mean squared distance from the mean over all restarts, in normalised coordinates.

    It pulls back a restart that strays from the others.

    Deviations:
        The consensus is the pixelwise mean; the paper registers the restarts first. We take the
        mean over entries, not the sum, so that `weight` does not depend on the image size.

    References:
        Yin et al., 2021, Sec. 3.3 (yin2021see)
    """

    weight: float

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Measure the distance from the consensus."""
        return (candidate.normalised - candidate.consensus).square().mean()


@dataclass(frozen=True, kw_only=True)
class BatchNormStatistics:
    """How far the candidate's batch statistics are from those the adversary knows.

        sum_l  || mean_l(x) - mean*_l || + || var_l(x) - var*_l ||

    The known statistics are those of the private batch if the threat grants them, else the running
    statistics of the broadcast network, which describe its training data.

    Args:
        weight: Factor in the objective.
        first_layer: Multiplier of the first layer's part, which is closest to the pixels.

    Deviations:
        Running variances are compared as broadcast. Torch accumulates unbiased estimates, which are
        n/(n-1) times the biased variance measured on the candidate.

    References:
        Yin et al., 2021, Sec. 3.3 (yin2021see); Huang et al., 2021, Sec. 3.2
        (huang2021evaluating)
    """

    weight: float
    first_layer: float = 1.0

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Sum the distances over the layers, in the order they are run."""
        ours = self._measure(candidate, observation)
        if not ours:
            raise NotApplicable(
                f"{observation.task.name} runs no batch normalisation, so BatchNormStatistics has "
                "nothing to compare; leave it out"
            )
        known = _known_statistics(observation)
        apart = [_distance(found, known[layer]) for layer, found in ours.items()]
        return torch.stack([self.first_layer * apart[0], *apart[1:]]).sum()

    def reads(self, task: Task) -> list[str]:
        """Return the names of all batch-normalisation layers."""
        return list(batchnorm_layers(task.network))

    def _measure(self, candidate: Candidate, observation: Observation) -> dict[str, Statistics]:
        wanted = set(self.reads(observation.task))
        if read := {name: t for name, t in candidate.layers.items() if name in wanted}:
            return measure_statistics(read)
        return batch_statistics(observation.task, observation.simulate.trained_on(candidate.inputs))


def _distance(ours: Statistics, theirs: Statistics) -> Tensor:
    # Its gradient is 0 where the two agree; that of a written-out square root is NaN.
    means: Tensor = torch.linalg.vector_norm(ours.mean - theirs.mean)
    variances: Tensor = torch.linalg.vector_norm(ours.variance - theirs.variance)
    return means + variances


def _known_statistics(observation: Observation) -> dict[str, Statistics]:
    if observation.statistics is not None:
        return dict(observation.statistics)
    known = {}
    for name, layer in batchnorm_layers(observation.task.model).items():
        if layer.running_mean is None or layer.running_var is None:
            raise MissingKnowledge(
                "batch statistics",
                needed_by="BatchNormStatistics",
                hint=f"{name} broadcasts no running ones either; use Threat(batchnorm='exact')",
            )
        known[name] = Statistics(layer.running_mean, layer.running_var)
    return known


@dataclass(frozen=True)
class Decaying:
    """Another term, whose weight falls by a factor every so many steps.

        factor ^ floor(step / every)  *  term

    Args:
        term: The term that fades.
        factor: In (0, 1].
        every: Steps between two falls.

    Deviations:
        The paper's listing decays if `(i // m) == 0`, read here as every m iterations.

    References:
        Qian and Hansen, 2020, Algorithm 2 (qian2020what)
    """

    term: Term
    factor: float = field(default=0.9, kw_only=True)
    every: int = field(default=2_000, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1 or self.every < 1:
            raise InvalidValue(
                f"expected 0 < factor <= 1 and every >= 1, got {self.factor!r} and {self.every!r}"
            )

    @property
    def weight(self) -> float:
        """The initial weight of the term."""
        return self.term.weight

    def __call__(self, candidate: Candidate, observation: Observation) -> Tensor:
        """Scale the term by how often it has fallen."""
        value = self.term(candidate, observation)
        falls = torch.div(candidate.step, self.every, rounding_mode="floor").to(value.dtype)
        return value * self.factor**falls

    def changes(self, step: Tensor) -> Tensor:
        """Whether it falls at this step."""
        return torch.remainder(step, self.every) == 0


# So many times a total variation falls that has a first and a last weight.
_FALLS = 20


def weigh_variation(weight: float | Sequence[float], *, steps: int, absolute: bool = False) -> Term:
    """Total variation with one weight, or one that falls evenly from a first to a last weight.

    A strong prior finds the coarse picture soon and blurs it; a weak one keeps the detail and takes
    long to find anything. A falling one does both.

    Args:
        weight: The weight, or the first and the last one.
        steps: Steps of the search.
        absolute: As of `TotalVariation`.

    Example:
        >>> weigh_variation((0.1, 1e-5), steps=400).every
        20

    References:
        Ours; decaying weights are in Qian and Hansen, 2020, Algorithm 2 (qian2020what)
    """
    if not isinstance(weight, Sequence):
        return TotalVariation(weight=weight, absolute=absolute)
    if len(weight) != 2 or not 0 < weight[1] <= weight[0]:
        raise InvalidValue(
            f"expected tv to be a number, or a first and a last weight with first >= last > 0, "
            f"got {weight!r}"
        )
    first, last = weight
    factor, every = (last / first) ** (1 / _FALLS), max(1, steps // _FALLS)
    return Decaying(TotalVariation(weight=first, absolute=absolute), factor=factor, every=every)
