"""The equations dL/dA = R^T sigma(Z W^T + c): K for each neuron, one per entry of dL/dA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks.exact_batch._assign_labels import read_labels
from seepage.attacks.feature_recovery._features import FeatureRecovery, guess_inputs
from seepage.core import Observation, Reconstruction, Rng
from seepage.core._loss import Loss
from seepage.core._progress import report
from seepage.core.errors import NotApplicable
from seepage.probing._activations import HeadActivation
from seepage.probing._heads import TwoLayerHead, two_layer_head

_GRID = 200
_TURNS = 50
_ROUNDING = 1e-10
_GOLDEN = (5**0.5 - 1) / 2
_INNER = 15
# Labels that are tried for the length of a feature, and entries of logits in memory at once.
_TRIED, _HELD = 16, 2**22


@dataclass(frozen=True, eq=False)
class HeadEquations:
    """The equations for features in n coordinates.

    An entry of dL/dA that is exactly zero was pruned or dropped, or belongs to a neuron that is
    silent for all examples. It is left out, so pruning removes equations but makes none wrong.

    Args:
        weight: `(m, n)`: W itself, or W V for features in the span of the columns of V.
        bias: c, `(m,)`.
        activation: sigma.
        wanted: dL/dA, `(K, m)`.
        seen: Which of its entries count, `(K, m)`.
    """

    weight: Tensor
    bias: Tensor
    activation: HeadActivation
    wanted: Tensor
    seen: Tensor

    def within(self, span: Tensor) -> HeadEquations:
        """The same equations for coordinates in a span `(n, k)`."""
        return replace(self, weight=self.weight @ span)

    def hidden(self, features: Tensor) -> Tensor:
        """Z W^T + c, `(B, m)`."""
        return features @ self.weight.T + self.bias

    def shares(self, hidden: Tensor) -> Tensor:
        """Solve for the R `(B, K)` that explains most, a linear problem."""
        passed = self.activation(hidden)
        normal = torch.einsum("im,km,jm->kij", passed, self.seen, passed)
        right = torch.einsum("im,km->ki", passed, self.wanted)
        # Enough for a class with no seen entry, and for equal features.
        least = torch.finfo(passed.dtype).eps * normal.diagonal(dim1=1, dim2=2).mean(1) + 1e-30
        identity = torch.eye(len(passed), dtype=passed.dtype, device=passed.device)
        ridge = least[:, None, None] * identity
        solved: Tensor = torch.linalg.solve_ex(normal + ridge, right[..., None])[0]
        return torch.nan_to_num(solved[..., 0].T)

    def residual(self, hidden: Tensor, shares: Tensor) -> Tensor:
        """R^T sigma(hidden) - dL/dA, `(K, m)`; zero for entries that are not seen."""
        return self.seen * (shares.T @ self.activation(hidden) - self.wanted)

    def solve(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute Z W^T + c, the R that explains most, and their residual."""
        hidden = self.hidden(features)
        shares = self.shares(hidden)
        return hidden, shares, self.residual(hidden, shares)

    def misfit(self, features: Tensor) -> float:
        """Relative residual of features at their best R: 0 explains all, 1 nothing."""
        return float(self.solve(features)[2].norm() / self.wanted.norm())


def read_equations(head: TwoLayerHead) -> HeadEquations:
    """The equations of a head's last layer."""
    seen = (head.last != 0).to(head.last)
    return HeadEquations(head.weight, head.bias, head.activation, head.last, seen)


def restore_lengths(
    head: TwoLayerHead, equations: HeadEquations, features: Tensor, observation: Observation
) -> tuple[Tensor, bool]:
    """Scale features to their true length; also tell whether it could be found.

    If sigma(s z) = s sigma(z), the equations give only s_i R_i. The loss gives more: R_i is its
    gradient at the logits s_i A sigma(W z_i) + b, for one label. So

        s_i, y_i = argmax cos(dL/dlogits(s A sigma(W z_i) + b, y), s_i R_i)

    The scale of the update cancels, so clipping and step sizes do not matter.
    """
    hidden = equations.hidden(features)
    if not head.activation.homogeneous or bool(head.bias.any()):
        return features, True
    shares = equations.shares(hidden)
    logits = head.activation(hidden) @ head.above.T
    # Hardly any entry of a gradient at the logits is larger than that of the label.
    count = min(_TRIED, len(head.above))
    tried = shares.abs().topk(count, dim=1).indices.sort(dim=1).values
    mismatch = _Mismatch(
        observation.task.loss,
        logits.repeat_interleave(count, dim=0),
        head.offset,
        tried.flatten(),
        shares.repeat_interleave(count, dim=0),
    )
    scales = mismatch.minimise()
    best = mismatch(scales).reshape(-1, count).min(1)
    chosen = best.indices + count * torch.arange(len(logits), device=logits.device)
    # A saturated loss has the same gradient at every length.
    nearby = torch.minimum(mismatch(1.05 * scales), mismatch(scales / 1.05))[chosen]
    told = nearby > 3 * best.values.clamp_min(_ROUNDING)
    return features * scales[chosen, None], bool(told.all())


@dataclass(frozen=True, eq=False)
class _Mismatch:
    """1 - cos(dL/dlogits(s logits + b, y), R), for rows of logits, each with its own s."""

    loss: Loss
    logits: Tensor
    offset: Tensor
    labels: Tensor
    shares: Tensor

    def __call__(self, scales: Tensor) -> Tensor:
        """The mismatch at scales `(..., N)`, many in one pass."""
        together = max(1, _HELD // self.logits.numel())
        if scales.ndim > 1 and len(scales) > together:
            return torch.cat([self(part) for part in torch.split(scales, together)])
        at = (scales[..., None] * self.logits + self.offset).reshape(-1, self.logits.shape[1])
        repeats = len(at) // len(self.labels)
        with torch.enable_grad():
            leaf = at.detach().requires_grad_()
            losses = self.loss(leaf, self.labels.repeat(repeats))
            (slopes,) = torch.autograd.grad(losses.sum(), leaf)
        cosine = torch.cosine_similarity(slopes, self.shares.repeat(repeats, 1), dim=1)
        return 1 - cosine.reshape(scales.shape)

    def minimise(self) -> Tensor:
        """Find the scales `(N,)` with the least mismatch: a grid, then golden section."""
        size = self.logits.abs().amax(1).clamp_min(1e-300)
        grid = torch.linspace(-12, 7, _GRID, dtype=size.dtype, device=size.device)
        centre = grid[self(grid.exp()[:, None] / size).argmin(0)]
        low, high = centre - (grid[1] - grid[0]), centre + (grid[1] - grid[0])
        for _ in range(_TURNS):
            left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
            there = self(torch.stack([left, right]).exp() / size)
            up = there[0] > there[1]
            low, high = torch.where(up, left, low), torch.where(up, high, right)
        return ((low + high) / 2).exp() / size


def guess_lengths(
    head: TwoLayerHead, equations: HeadEquations, directions: Tensor, observation: Observation
) -> Tensor:
    """Give directions `(B, d)` the signs and lengths that fit the equations best.

    If the activation is not homogeneous, all directions get the same size.
    """
    if head.activation.homogeneous:
        both = torch.cat([directions, -directions])
        amounts = equations.shares(equations.hidden(both)).norm(dim=1)
        forwards = (amounts[: len(directions)] >= amounts[len(directions) :])[:, None]
        signed = torch.where(forwards, directions, -directions)
        return restore_lengths(head, equations, signed, observation)[0]
    size = head.hidden(directions).square().mean(1, keepdim=True).sqrt()
    options = [directions * 2.0**power / size for power in range(-4, 4)]
    best = min(options, key=equations.misfit)
    shares = equations.shares(equations.hidden(best))
    # The largest entry of a gradient at the logits is that of the label, which is negative.
    largest = shares.gather(1, shares.abs().argmax(1, keepdim=True))
    return torch.where(largest > 0, -best, best)


def refine_features(equations: HeadEquations, features: Tensor, *, steps: int) -> Tensor:
    """Run Levenberg-Marquardt from these features `(B, n)`; the fit never gets worse.

    The derivative is analytic, and conjugate gradients solve the damped normal equations. So no
    matrix of unknowns times equations is formed:

        dr = dR^T S + R^T (sigma'(H) * dZ W^T),   H = Z W^T + c

    R, the gradient at the logits, is unknown as well. It is part of every step and is solved for
    exactly between steps.

    References:
        Levenberg, 1944 (levenberg1944method)
    """
    hidden, shares, residual = equations.solve(features)
    value, damping = float(residual.square().sum()), 1e-3
    floor = 1e-24 * float(equations.wanted.square().sum())
    for number in range(steps):
        there = features + _move(equations, features, hidden, shares, residual, damping)
        solved = equations.solve(there)
        after = float(solved[2].square().sum())
        if not after < value:
            damping *= 8
            if damping > 1e8:
                break
            continue
        features, (hidden, shares, residual) = there, solved
        gained, value, damping = value - after, after, max(damping / 8, 1e-12)
        report(number + 1, steps, value)
        if gained < 1e-5 * value or value < floor:
            break
    return features


def _move(
    equations: HeadEquations,
    features: Tensor,
    hidden: Tensor,
    shares: Tensor,
    residual: Tensor,
    damping: float,
) -> Tensor:
    """The step of the features, `(B, n)`."""
    passed, slope = equations.activation(hidden), equations.activation.derivative(hidden)
    # A neuron that is silent for all examples plays no part in a step.
    live = (slope != 0).any(0) | (passed != 0).any(0)
    passed, slope, residual = passed[:, live], slope[:, live], residual[:, live]
    weight, seen = equations.weight[live], equations.seen[:, live]
    # Features and shares have different sizes; in these units one damping suits both.
    unit = features.square().mean().sqrt().clamp_min(1e-12), shares.square().mean().sqrt()

    def forward(step: _Step) -> Tensor:
        moved, shared = step[0] * unit[0], step[1] * unit[1]
        return seen * (shared.T @ passed + shares.T @ (slope * (moved @ weight.T)))

    def backward(error: Tensor) -> _Step:
        return (slope * (shares @ error)) @ weight * unit[0], passed @ error.T * unit[1]

    downhill = backward(-residual)
    size = forward(downhill).square().sum() / _inner(downhill, downhill)
    damped = damping * float(size)
    return _conjugate_gradients(forward, backward, downhill, damped)[0] * unit[0]


_Step = tuple[Tensor, Tensor]


def _conjugate_gradients(
    forward: Callable[[_Step], Tensor],
    backward: Callable[[Tensor], _Step],
    right: _Step,
    damped: float,
) -> _Step:
    """Solve (J^T J + damped) x = right, in a limited number of iterations."""
    x: _Step = (torch.zeros_like(right[0]), torch.zeros_like(right[1]))
    rest, direction = right, right
    size = first = _inner(right, right)
    for _ in range(_INNER):
        ahead = _add(backward(forward(direction)), damped, direction)
        length = size / _inner(direction, ahead)
        x, rest = _add(x, length, direction), _add(rest, -length, ahead)
        before, size = size, _inner(rest, rest)
        if not float(size) > 1e-10 * float(first):
            break
        direction = _add(rest, size / before, direction)
    return x


def _add(a: _Step, factor: Tensor | float, b: _Step) -> _Step:
    return a[0] + factor * b[0], a[1] + factor * b[1]


def _inner(a: _Step, b: _Step) -> Tensor:
    return (a[0] * b[0]).sum() + (a[1] * b[1]).sum()


def reconstruct_inputs(
    method: FeatureRecovery, observation: Observation, rng: Rng
) -> Reconstruction:
    """Recover features that are inputs, and choose the labels that explain their gradients.

    Raises:
        NotApplicable: The head reads features of a deeper network instead of inputs.
    """
    task = observation.task
    head = two_layer_head(observation)
    if not head.reads_input:
        raise NotApplicable(
            f"{head.layer!r} of {task.name} reads features and not the input; use recover(...) "
            "for the features, or systematic(features=...) for the images"
        )
    features = method.recover(observation, rng=rng)
    hidden = head.hidden(features.values.double())
    shares = read_equations(head).shares(hidden)
    gradients = (shares @ head.above) * head.activation.derivative(hidden)
    inputs = task.to_inputs(features.values)
    labels = read_labels(task, head.layer, inputs, gradients, observation.labels)
    return guess_inputs(observation, features, labels)
