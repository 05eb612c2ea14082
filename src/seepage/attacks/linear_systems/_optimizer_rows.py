"""Compute the input of a fully connected layer from steps of Adam and its like."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks._applicability import applies_to
from seepage.attacks._certificate import certify_solved
from seepage.clients import Local
from seepage.clients._step_rules import AdamRule, SGDRule
from seepage.core import Attack, BaseAttack, Observation, Reconstruction, Rng
from seepage.core.errors import NotApplicable
from seepage.probing._first_layer import input_layer

# Sweeps of alternating least squares.
_SWEEPS = 60
# Scales that are tried by simulation, over so many decades on both sides of one.
_SCALES, _DECADES = 21, 2
# Entries that moved by less than so many roundings tell nothing.
_LEAST = 5.0
# The rounding of one step itself, as a share of the step.
_STEP_ROUNDING = 2e-7


@dataclass(frozen=True, eq=False)
class _MovedRows:
    """What the rows of a layer tell, `(m, 1 + n)` with the bias first.

    Args:
        values: 1/u, where u is how far an entry moved as a share of all learning rates.
        weights: One over their variance by rounding; zero where an entry tells nothing.
        signs: The direction in which it moved.
    """

    values: Tensor
    weights: Tensor
    signs: Tensor


@dataclass(frozen=True)
class AnalyticAdam(BaseAttack):
    """Closed-form inversion of a first fully connected layer behind Adam and its like, for one.

    All gradients that one input x gives row i are multiples of (x, 1). So a step of Adam moves
    entry ij by the learning rate times a function of |x_j| alone, up to factors of the row. It
    is nearly one, but for what `eps` leaves of it, and after any number of steps

        1 / u_ij = a_i + c_i / |x_j|,   u_ij = |moved_ij| / sum of learning rates,   |x_0| = 1

    nearly, where j = 0 is the bias. Weighted alternating least squares find 1 / |x_j| up to one
    scale, which is the one whose simulation comes nearest to the update. Weights are given by how
    the update is rounded. Signs are those of the entries. The decay of AdamW is taken off first.
    """

    one_input = True
    needs_labels = True

    def check(self, observation: Observation) -> None:
        """Require a training that can be read, and a layer with a bias that reads the input."""
        _require_training(observation)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Compute the input; nothing is random."""
        task, (local, layer) = observation.task, _require_training(observation)
        labels = observation.require_labels(self)
        rows = _read_rows(observation, local, layer)
        apart = _fit_columns(rows)
        signs = (rows.signs[:, 1:] * rows.signs[:, :1]).sum(0).sign()
        read = rows.weights[:, 1:].any(0)
        longest = float(_bound_entries(observation))

        def place(scale: float) -> Tensor:
            inverse = (1 + scale * apart[1:]).clamp_min(1 / longest)
            vector = torch.where(read, signs / inverse, 0.0)
            return task.to_inputs(vector.to(task.reference)[None])

        inputs = place(_find_scale(observation, labels, place))
        names = [name for name in _name_parameters(layer) if name in observation.update.tensors]
        found = certify_solved(observation, inputs, labels, read=names, alone=False)
        return Reconstruction(inputs, labels, certificate=found)


def _require_training(observation: Observation) -> tuple[Local, str]:
    """The client's training and its first layer; `NotApplicable` if its steps cannot be read."""
    client = observation.simulate.client
    local = None if client is None else client.local
    if client is None or not isinstance(local, Local) or isinstance(local.rule, SGDRule):
        raise NotApplicable(
            "expected a client that is known to train with Adam, AdamW, Adagrad or RMSprop"
        )
    if client.chain.links:
        raise NotApplicable(
            "behind a defense nothing is left of what the steps of Adam keep besides signs; use "
            "gradient matching"
        )
    if local.warm:
        raise NotApplicable(
            "the moments of the optimizer are not known, so its steps cannot be read; use gradient "
            "matching"
        )
    inside = local.rule.weight_decay and not (
        isinstance(local.rule, AdamRule) and local.rule.decoupled
    )
    if inside or local.clip_value is not None:
        what = "weight decay inside the gradient" if inside else "clipping by value"
        raise NotApplicable(f"{what} leaves no common factor in a row; use gradient matching")
    if (observation.batch_size or 1) > 1:
        raise NotApplicable(f"each row mixes all {observation.batch_size} inputs")
    layer = input_layer(observation.task)
    if layer is None:
        raise NotApplicable(
            f"{observation.task.name} has no fully connected layer with a bias that reads its "
            "input; use gradient matching"
        )
    if any(name not in observation.update.tensors for name in _name_parameters(layer)):
        raise NotApplicable(f"a part of the layer {layer!r} is frozen, so the update lacks it")
    return local, layer


def _name_parameters(layer: str) -> tuple[str, str]:
    prefix = f"{layer}." if layer else ""
    return f"{prefix}bias", f"{prefix}weight"


def _read_rows(observation: Observation, local: Local, layer: str) -> _MovedRows:
    """Read how far each entry moved, and how exactly the weights can hold it."""
    rates = local.list_rates(local.count_steps(1))
    bias, weight = _name_parameters(layer)

    def join(tensors: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([tensors[bias][:, None], tensors[weight]], dim=1).double()

    before = join(observation.task.parameters)
    moved = join(observation.update.tensors)
    _, exponents = torch.frexp(before + moved)
    spacing = torch.finfo(observation.task.reference.dtype).eps * 2.0 ** (exponents - 1).double()
    if decay := local.rule.weight_decay:
        moved = moved + before * (1 - math.prod(1 - lr * decay for lr in rates))
    share = moved.abs() / sum(rates)
    rounding = spacing * math.sqrt(len(rates) / 12) / sum(rates)
    deviation = torch.hypot(rounding, _STEP_ROUNDING * share)
    tells = share > _LEAST * rounding
    # Of 1/u, whose derivative is -1/u^2.
    weights = torch.where(tells, (share.square() / deviation.clamp_min(1e-300)).square(), 0.0)
    live = tells[:, 0] & (tells.double().mean(1) > 0.1)
    if int(live.sum()) < 2:
        raise NotApplicable(f"fewer than two rows of the layer {layer!r} moved, so none tells more")
    values = torch.where(tells, 1 / share.clamp_min(1e-300), 0.0)
    return _MovedRows(values[live], weights[live], moved[live].sign())


def _fit_columns(rows: _MovedRows) -> Tensor:
    """Fit 1/u_ij = a_i + c_i z_j; return z - 1 up to a positive factor, zero for the bias.

    Rows that do not follow the form, since their gradient changed over the steps, count less.

    Example:
        >>> z = torch.tensor([1.0, 2.0, 4.0, 3.0])
        >>> y = torch.tensor([[1.0], [1.1]]) + torch.tensor([[1e-3], [1e-2]]) * z
        >>> _fit_columns(_MovedRows(y, torch.ones_like(y), torch.ones_like(y))).round(decimals=3)
        tensor([0., 1., 3., 2.])
    """
    values, weights = rows.values, rows.weights
    level = torch.where(weights > 0, values, math.inf).amin(1)
    slope, counted = torch.ones_like(level), weights
    for _ in range(_SWEEPS):
        along = counted * slope[:, None]
        columns = (along * (values - level[:, None])).sum(0) / _safe(
            (along * slope[:, None]).sum(0)
        )
        columns = columns - columns[0]
        columns = columns / _safe(columns.abs().median())
        mass = _safe(counted.sum(1))
        centre, height = (counted * columns).sum(1) / mass, (counted * values).sum(1) / mass
        away = columns - centre[:, None]
        slope = (counted * away * (values - height[:, None])).sum(1)
        slope = slope / _safe((counted * away.square()).sum(1))
        level = height - slope * centre
        misfit = (weights * (values - level[:, None] - slope[:, None] * columns).square()).mean(1)
        counted = weights / misfit.clamp_min(1.0)[:, None]
    # Small entries of an input move less, so that most slopes are positive.
    return columns * ((counted.sum(1) * slope.sign()).sum().sign())


def _safe(divisor: Tensor) -> Tensor:
    return torch.where(divisor == 0, 1.0, divisor)


def _bound_entries(observation: Observation) -> Tensor:
    """The largest size of a normalised entry of a valid input."""
    domain = observation.task.domain
    ends = [torch.full((1, *domain.shape), float(end)) for end in domain.bounds]
    return torch.cat([domain.normalise(end) for end in ends]).abs().max()


def _find_scale(
    observation: Observation, labels: Tensor, place: Callable[[float], Tensor]
) -> float:
    """The scale whose input, when simulated, comes nearest to the update."""
    from scipy.optimize import minimize_scalar

    wanted = {name: t.double() for name, t in observation.update.tensors.items() if bool(t.any())}

    def misfit(at: float) -> float:
        with torch.no_grad():
            found = observation.simulate(place(10.0**at), labels).tensors
        off = [
            float((found[n].double() - t).square().sum() / t.square().sum())
            for n, t in wanted.items()
        ]
        return sum(off) / len(off)

    grid = torch.linspace(-_DECADES, _DECADES, _SCALES).tolist()
    best = min(grid, key=misfit)
    step = grid[1] - grid[0]
    near = minimize_scalar(
        misfit, bounds=(best - step, best + step), method="bounded", options={"xatol": 1e-4}
    )
    return float(10.0 ** (near.x if near.fun <= misfit(best) else best))


def _require_readable(observation: Observation) -> None:
    _require_training(observation)


@applies_to(require=_require_readable, needs_labels=True)
def analytic_adam() -> Attack:
    """Closed-form input of a network that begins with a fully connected layer, behind Adam.

    For one person and any number of steps of Adam, AdamW, Adagrad or RMSprop that are known, with a
    fresh optimizer. Rounding limits it: weights in float16 keep little more than signs.

    Example:
        >>> analytic_adam()
        AnalyticAdam()

    Deviations:
        Ours; no paper has it.

    References:
        Kingma and Ba, 2015, Algorithm 1 (kingma2015adam), whose eps it reads
    """
    return AnalyticAdam()
