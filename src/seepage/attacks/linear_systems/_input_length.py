"""Find the length and the sign of an input whose direction a layer without a bias gives away."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks._agreement import EXPLAINED, FLOAT32_ALONE
from seepage.attacks._jacobian import exact_simulation
from seepage.core import Observation, Rng
from seepage.core._device import convert

# Lengths that are tried, as multiples of that of noise, and how many of the best are refined.
_LEAST, _MOST, _LENGTHS, _REFINED = 1e-3, 10.0, 60, 4
# Lengths that differ by less, as a share, are one; and how exactly one is computed.
_SAME, _EXACT = 0.01, 1e-10
# Several lengths explain the update if they leave at most this share of it.
_LOST = EXPLAINED / 4
# A misfit from which on no length comes near.
_FAR = 0.25


# A misfit, a sign and the logarithm of a length.
_Tried = tuple[float, int, float]
_Misfit = Callable[[int, float], float]


@dataclass(frozen=True)
class FoundLength:
    """A length, negative if the direction points the other way.

    Args:
        length: That explains the update best.
        alone: Whether no other length that was tried explains the update.
        lost: Whether lengths nearby do, as where a norm takes the length away.
    """

    length: float
    alone: bool
    lost: bool = False


def find_length(observation: Observation, direction: Tensor, labels: Tensor) -> FoundLength:
    """Find t for which the input t v explains the update best, of either sign.

        argmin_t 1/L sum_l ||g_l(t v) - g_l*||^2 / ||g_l*||^2 + (share of t v outside the domain)^2

    over the L tensors of the update that are not zero. Lengths of four decades are tried, and the
    best are refined by Brent's method. Where a norm takes the length away, many of them explain the
    update; then the longest of these is taken, as of an input with full contrast. Where none comes
    near, the update may have been scaled, so that it is compared up to a factor.

    Args:
        observation: Of one input.
        direction: v, a unit vector `(n,)` in the units that the network reads.
        labels: Of the input.
    """
    domain = observation.task.domain
    usual = float(domain.normalise(domain.sample(1, rng=Rng(0).fork("length")).double()).norm())
    grid = torch.linspace(math.log(_LEAST * usual), math.log(_MOST * usual), _LENGTHS).tolist()
    for scaled in (False, True):
        misfit = _measure_misfit(observation, direction.double(), labels, scaled=scaled)
        tried = [(misfit(sign, at), sign, at) for sign in (1, -1) for at in grid]
        if min(tried)[0] < _FAR:
            break
    step = grid[1] - grid[0]
    explaining = [(at, sign) for off, sign, at in tried if off <= _LOST**2]
    if len(explaining) > 1:
        at, sign = max(explaining)
        finer = torch.linspace(at, at + step, _LENGTHS).tolist()
        longest = max(one for one in finer if one == at or misfit(sign, one) <= _LOST**2)
        return FoundLength(sign * math.exp(longest), alone=False, lost=not scaled)
    found = sorted(_refine(misfit, one, step) for one in sorted(_keep_lowest(tried))[:_REFINED])
    _, length = found[0]
    others = [
        other
        for off, other in found
        if off <= EXPLAINED**2 and abs(other - length) > _SAME * abs(length)
    ]
    return FoundLength(length, alone=not others)


def _refine(misfit: _Misfit, tried: _Tried, step: float) -> tuple[float, float]:
    """The lowest misfit within a step of the grid, and its length."""
    from scipy.optimize import minimize_scalar

    _, sign, at = tried
    best = minimize_scalar(
        lambda where: misfit(sign, where),
        bounds=(at - step, at + step),
        method="bounded",
        options={"xatol": _EXACT},
    )
    return float(best.fun), sign * math.exp(float(best.x))


def _keep_lowest(tried: list[_Tried]) -> list[_Tried]:
    """Local minima on the grid, for each sign."""
    return [
        one
        for place, one in enumerate(tried)
        if all(
            one[0] <= near[0] for near in tried[max(0, place - 1) : place + 2] if near[1] == one[1]
        )
    ]


def _measure_misfit(
    observation: Observation, direction: Tensor, labels: Tensor, *, scaled: bool
) -> _Misfit:
    """Misfit of the input with this sign and log-length.

    With `scaled` any multiple of the simulated update may be the observed one.
    """
    domain, update = observation.task.domain, observation.update
    wanted = {name: t.double() for name, t in update.tensors.items() if bool(t.any())}
    reference, simulate = next(iter(update)), observation.simulate
    exact = exact_simulation(observation)
    soft = convert(labels, torch.float64)

    def explain(inputs: Tensor) -> float:
        with torch.no_grad():
            if exact is not None:
                try:
                    return compare(exact(inputs, soft).tensors)
                except FLOAT32_ALONE:
                    pass
            return compare(simulate(inputs.to(reference), labels).tensors)

    def compare(tensors: Mapping[str, Tensor]) -> float:
        lengths = {name: one.norm() for name, one in wanted.items()}
        here = torch.cat([(tensors[name].double() / lengths[name]).flatten() for name in wanted])
        there = torch.cat([(one / lengths[name]).flatten() for name, one in wanted.items()])
        if scaled:
            here = here * ((here @ there).clamp_min(0) / here.square().sum())
        return float((here - there).square().sum()) / len(wanted)

    def misfit(sign: int, at: float) -> float:
        vector = sign * math.exp(at) * direction
        inputs = domain.denormalise(vector.reshape(1, *domain.shape))
        inside = domain.normalise(domain.project(inputs)).flatten()
        outside = float((inside - vector).square().sum() / vector.square().sum())
        off = explain(inputs) + outside
        return off if math.isfinite(off) else math.inf

    return misfit
