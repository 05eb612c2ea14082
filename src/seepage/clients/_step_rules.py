"""The steps of torch's optimizers as pure functions, differentiable in the gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from seepage.core.errors import InvalidValue, UnknownName, require_at_least, require_within

# Of one parameter, under the names of torch.
State = Mapping[str, Tensor]
Parameters = dict[str, Tensor]


class StepRule(Protocol):
    """How an optimizer moves one parameter; operations come in torch's order, for equal bits."""

    @property
    def weight_decay(self) -> float:
        """The factor of the weights that is added to the gradient, or taken off them."""

    def start(self, parameter: Tensor) -> State:
        """Return the state before the first step."""

    def step(
        self, parameter: Tensor, gradient: Tensor, state: State, *, lr: float, count: int
    ) -> tuple[Tensor, State]:
        """Return the parameter and the state after the step of this number, counted from 1."""

    def soften(self, floor: Tensor) -> StepRule:
        """Return the same rule with this in place of `eps`, if it has one."""


@dataclass(frozen=True, kw_only=True)
class SGDRule:
    """Of `torch.optim.SGD`."""

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require_within("[0, 1)", momentum=self.momentum)
        require_within("[0, 1]", dampening=self.dampening)
        require_at_least(0, weight_decay=self.weight_decay)
        if self.nesterov and (not self.momentum or self.dampening):
            raise InvalidValue(
                f"expected nesterov with momentum and without dampening, got momentum="
                f"{self.momentum!r}, dampening={self.dampening!r}"
            )

    def start(self, parameter: Tensor) -> State:
        """Nothing: the first velocity is the gradient, without dampening."""
        return {}

    def step(
        self, parameter: Tensor, gradient: Tensor, state: State, *, lr: float, count: int
    ) -> tuple[Tensor, State]:
        """Add to the velocity and move along it."""
        gradient = _decay(gradient, parameter, self.weight_decay)
        if not self.momentum:
            return torch.add(parameter, gradient, alpha=-lr), state
        velocity = gradient
        if "momentum_buffer" in state:
            kept = self.momentum * state["momentum_buffer"]
            velocity = torch.add(kept, gradient, alpha=1 - self.dampening)
        ahead = gradient.add(velocity, alpha=self.momentum) if self.nesterov else velocity
        return torch.add(parameter, ahead, alpha=-lr), {"momentum_buffer": velocity}

    def soften(self, floor: Tensor) -> SGDRule:
        """Return itself: it divides by nothing."""
        return self


@dataclass(frozen=True, kw_only=True)
class AdamRule:
    """Of `torch.optim.Adam`; of `AdamW` if the decay is `decoupled` from the moments."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float | Tensor = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False

    def __post_init__(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InvalidValue(f"expected two betas in [0, 1), got {self.betas!r}")
        _require_not_negative(self.eps, self.weight_decay)

    def start(self, parameter: Tensor) -> State:
        """Both moments are zero."""
        return {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}

    def step(
        self, parameter: Tensor, gradient: Tensor, state: State, *, lr: float, count: int
    ) -> tuple[Tensor, State]:
        """Move by the mean gradient over the root of its mean square, both corrected for bias."""
        if self.decoupled and self.weight_decay:
            parameter = parameter * (1 - lr * self.weight_decay)
        else:
            gradient = _decay(gradient, parameter, self.weight_decay)
        slow, slower = self.betas
        first = torch.lerp(state["exp_avg"], gradient, 1 - slow)
        second = _add_square(state["exp_avg_sq"], gradient, slower)
        spread = _root(second) / (1 - slower**count) ** 0.5 + self.eps
        moved = torch.addcdiv(parameter, first, spread, value=-(lr / (1 - slow**count)))
        return moved, {"exp_avg": first, "exp_avg_sq": second}

    def soften(self, floor: Tensor) -> AdamRule:
        """Return the rule with this in place of `eps`."""
        return replace(self, eps=floor)


@dataclass(frozen=True, kw_only=True)
class AdagradRule:
    """Of `torch.optim.Adagrad`."""

    eps: float | Tensor = 1e-10
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require_not_negative(self.eps, self.weight_decay)

    def start(self, parameter: Tensor) -> State:
        """The sum of squares is zero."""
        return {"sum": torch.zeros_like(parameter)}

    def step(
        self, parameter: Tensor, gradient: Tensor, state: State, *, lr: float, count: int
    ) -> tuple[Tensor, State]:
        """Move by the gradient over the root of the sum of all squares."""
        gradient = _decay(gradient, parameter, self.weight_decay)
        total = torch.addcmul(state["sum"], gradient, gradient)
        moved = torch.addcdiv(parameter, gradient, _root(total) + self.eps, value=-lr)
        return moved, {"sum": total}

    def soften(self, floor: Tensor) -> AdagradRule:
        """Return the rule with this in place of `eps`."""
        return replace(self, eps=floor)


@dataclass(frozen=True, kw_only=True)
class RMSpropRule:
    """Of `torch.optim.RMSprop`, not centered."""

    alpha: float = 0.99
    eps: float | Tensor = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        require_within("[0, 1)", alpha=self.alpha, momentum=self.momentum)
        _require_not_negative(self.eps, self.weight_decay)

    def start(self, parameter: Tensor) -> State:
        """The mean square is zero, and so is the velocity."""
        names = ("square_avg", *(("momentum_buffer",) if self.momentum else ()))
        return {name: torch.zeros_like(parameter) for name in names}

    def step(
        self, parameter: Tensor, gradient: Tensor, state: State, *, lr: float, count: int
    ) -> tuple[Tensor, State]:
        """Move by the gradient over the root of its mean square."""
        gradient = _decay(gradient, parameter, self.weight_decay)
        mean = _add_square(state["square_avg"], gradient, self.alpha)
        spread = _root(mean) + self.eps
        if not self.momentum:
            moved = torch.addcdiv(parameter, gradient, spread, value=-lr)
            return moved, {"square_avg": mean}
        velocity = torch.addcdiv(self.momentum * state["momentum_buffer"], gradient, spread)
        moved = torch.add(parameter, velocity, alpha=-lr)
        return moved, {"square_avg": mean, "momentum_buffer": velocity}

    def soften(self, floor: Tensor) -> RMSpropRule:
        """Return the rule with this in place of `eps`."""
        return replace(self, eps=floor)


# By the names of their classes in torch, with the defaults that these have.
OPTIMIZERS: Mapping[str, Callable[..., StepRule]] = MappingProxyType(
    {
        "SGD": SGDRule,
        "Adam": AdamRule,
        "AdamW": partial(AdamRule, decoupled=True, weight_decay=0.01),
        "Adagrad": AdagradRule,
        "RMSprop": RMSpropRule,
    }
)


def make_rule(name: str, options: Mapping[str, object]) -> StepRule:
    """Make the rule of an optimizer; `InvalidValue` for an option that it does not have.

    Example:
        >>> make_rule("AdamW", {"betas": (0.9, 0.99)})
        AdamRule(betas=(0.9, 0.99), eps=1e-08, weight_decay=0.01, decoupled=True)
        >>> make_rule("Adam", {"momentum": 0.9})
        Traceback (most recent call last):
        ...
        seepage.core.errors.InvalidValue: Adam has no option momentum, only betas, eps, weight_decay
    """
    if name not in OPTIMIZERS:
        raise UnknownName("optimizer", name, OPTIMIZERS)
    make = OPTIMIZERS[name]
    rule = make.func if isinstance(make, partial) else make
    known = [f.name for f in fields(rule) if f.name != "decoupled"]  # type: ignore[arg-type]
    for option in options:
        if option not in known:
            raise InvalidValue(f"{name} has no option {option}, only {', '.join(known)}")
    return make(**options)


@dataclass(frozen=True, eq=False)
class WarmState:
    """The state of an optimizer that took steps before.

    Args:
        states: Of each parameter.
        taken: The number of steps that made them.
    """

    states: Mapping[str, State]
    taken: int

    @classmethod
    def fresh(cls, rule: StepRule, parameters: Mapping[str, Tensor]) -> WarmState:
        """The state before any step."""
        return cls({name: rule.start(parameter) for name, parameter in parameters.items()}, 0)

    def see(self, rule: StepRule, at: Parameters, gradients: Mapping[str, Tensor]) -> WarmState:
        """The state after a step along these gradients, with the parameters where they are."""
        count = self.taken + 1
        seen = {
            name: rule.step(at[name], gradient, self.states[name], lr=0.0, count=count)[1]
            for name, gradient in gradients.items()
        }
        return WarmState(seen, count)


def take_steps(
    rule: StepRule,
    before: Mapping[str, Tensor],
    compute_gradient: Callable[[Parameters, int], Mapping[str, Tensor]],
    rates: tuple[float, ...],
    *,
    softness: float = 0.0,
    warm: WarmState | None = None,
) -> Parameters:
    """Take a step for each learning rate, from these parameters; return those after.

    Args:
        rule: How the optimizer steps.
        before: The parameters.
        compute_gradient: From parameters and the number of a step, counted from 0.
        rates: The learning rate of each step.
        softness: If not 0, this share of the median size of a step's gradient stands in place of
            `eps`.
        warm: The state to begin with; None begins afresh.
    """
    after = dict(before)
    warm = warm or WarmState.fresh(rule, before)
    states = dict(warm.states)
    for step, lr in enumerate(rates):
        gradients = compute_gradient(after, step)
        moving = rule.soften(softness * _median_size(gradients)) if softness else rule
        moved = {
            name: moving.step(
                after[name], gradient, states[name], lr=lr, count=warm.taken + step + 1
            )
            for name, gradient in gradients.items()
        }
        after = {name: parameter for name, (parameter, _) in moved.items()}
        states = {name: state for name, (_, state) in moved.items()}
    return after


def _decay(gradient: Tensor, parameter: Tensor, weight_decay: float) -> Tensor:
    return gradient.add(parameter, alpha=weight_decay) if weight_decay else gradient


def _add_square(mean: Tensor, gradient: Tensor, keep: float) -> Tensor:
    return torch.addcmul(mean * keep, gradient, gradient, value=1 - keep)


def _root(square: Tensor) -> Tensor:
    """The root, with a derivative of zero where it is zero, as in units that are dead."""
    moves = square > 0
    return torch.where(moves, torch.where(moves, square, 1.0).sqrt(), 0.0)


def _median_size(gradients: Mapping[str, Tensor]) -> Tensor:
    """The median size of the entries that are not zero, as a constant."""
    sizes = torch.cat([g.detach().abs().flatten() for g in gradients.values()])
    median: Tensor = torch.where(sizes > 0, sizes, torch.nan).nanmedian()
    return median.nan_to_num()


def _require_not_negative(eps: float | Tensor, weight_decay: float) -> None:
    require_at_least(0, weight_decay=weight_decay)
    if not isinstance(eps, Tensor):
        require_at_least(0, eps=eps)
