"""Nonlinear least squares on the equations of the last layer: the likeliest features."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seepage.attacks.feature_recovery.equations import Equations
from seepage.core.progress import report

_INNER = 15


def refine(equations: Equations, features: Tensor, *, steps: int) -> Tensor:
    """Levenberg-Marquardt from these features `(B, n)`; never ends at a worse fit.

    The derivative is analytic and the damped normal equations are solved by conjugate gradients,
    so that no matrix of unknowns times equations is made:

        dr = dR^T S + R^T (sigma'(H) * dZ W^T),   H = Z W^T + c

    R, the gradient at the logits, is unknown as well. It is part of every step and is solved for
    exactly between steps.

    Args:
        equations: What must hold.
        features: The start.
        steps: At most.

    References:
        Levenberg, 1944 (levenberg1944method)
    """
    hidden = equations.hidden(features)
    shares = equations.shares(hidden)
    residual = equations.residual(hidden, shares)
    value, damping = float(residual.square().sum()), 1e-3
    floor = 1e-24 * float(equations.wanted.square().sum())
    for number in range(steps):
        move = _move(equations, features, hidden, shares, residual, damping)
        there = features + move
        hidden_there = equations.hidden(there)
        shares_there = equations.shares(hidden_there)
        residual_there = equations.residual(hidden_there, shares_there)
        after = float(residual_there.square().sum())
        if not after < value:
            damping *= 8
            if damping > 1e8:
                break
            continue
        gained = value - after
        features, hidden, shares = there, hidden_there, shares_there
        residual, value, damping = residual_there, after, max(damping / 8, 1e-12)
        report(number + 1, steps, value)
        if gained < 1e-5 * value or value < floor:
            break
    return features


def _move(
    equations: Equations,
    features: Tensor,
    hidden: Tensor,
    shares: Tensor,
    residual: Tensor,
    damping: float,
) -> Tensor:
    """The step of the features, `(B, n)`."""
    passed, slope = equations.activation(hidden), equations.activation.derivative(hidden)
    # A neuron that is silent for everybody has no part in a step.
    live = (slope != 0).any(0) | (passed != 0).any(0)
    passed, slope, residual = passed[:, live], slope[:, live], residual[:, live]
    weight, seen = equations.weight[live], equations.seen[:, live]
    # Steps are counted in units of what they move, lest the damping mean different things.
    unit = features.square().mean().sqrt().clamp_min(1e-12), shares.square().mean().sqrt()

    def forward(step: tuple[Tensor, Tensor]) -> Tensor:
        moved, shared = step[0] * unit[0], step[1] * unit[1]
        return seen * (shared.T @ passed + shares.T @ (slope * (moved @ weight.T)))

    def backward(error: Tensor) -> tuple[Tensor, Tensor]:
        return (slope * (shares @ error)) @ weight * unit[0], passed @ error.T * unit[1]

    downhill = backward(-residual)
    size = forward(downhill).square().sum() / _inner(downhill, downhill)
    damped = damping * float(size)
    return _conjugate_gradients(forward, backward, downhill, damped)[0] * unit[0]


Step = tuple[Tensor, Tensor]


def _conjugate_gradients(
    forward: Callable[[Step], Tensor],
    backward: Callable[[Tensor], Step],
    right: Step,
    damped: float,
) -> Step:
    """Solve (J^T J + damped) x = right for a while."""
    x: Step = (torch.zeros_like(right[0]), torch.zeros_like(right[1]))
    rest, direction = right, right
    size = first = _inner(right, right)
    for _ in range(_INNER):
        ahead = backward(forward(direction))
        ahead = (ahead[0] + damped * direction[0], ahead[1] + damped * direction[1])
        length = size / _inner(direction, ahead)
        x = (x[0] + length * direction[0], x[1] + length * direction[1])
        rest = (rest[0] - length * ahead[0], rest[1] - length * ahead[1])
        before, size = size, _inner(rest, rest)
        if not float(size) > 1e-10 * float(first):
            break
        turn = size / before
        direction = (rest[0] + turn * direction[0], rest[1] + turn * direction[1])
    return x


def _inner(a: Step, b: Step) -> Tensor:
    return (a[0] * b[0]).sum() + (a[1] * b[1]).sum()
