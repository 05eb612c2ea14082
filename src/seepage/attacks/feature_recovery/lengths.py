"""How long a feature is, where the activation does not tell: the loss at the logits does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.feature_recovery.equations import Equations
from seepage.attacks.feature_recovery.head import TwoLayerHead
from seepage.core import Observation
from seepage.core.task import Loss

_GRID = 200
_TURNS = 50
_ROUNDING = 1e-10
_GOLDEN = (5**0.5 - 1) / 2


def with_lengths(
    head: TwoLayerHead, equations: Equations, features: Tensor, observation: Observation
) -> tuple[Tensor, bool]:
    """The features at their true length, and whether that could be found.

    Behind an activation with sigma(s z) = s sigma(z) the equations give only s_i R_i. The loss
    knows more: R_i is its gradient at the logits s_i A sigma(W z_i) + b, for one label. So

        s_i, y_i = argmax cos(dL/dlogits(s A sigma(W z_i) + b, y), s_i R_i)

    which does not depend on the scale of the update, so that clipping and step sizes do not matter.
    """
    hidden = equations.hidden(features)
    if not head.activation.homogeneous or bool(head.bias.any()):
        return features, True
    shares = equations.shares(hidden)
    logits = head.activation(hidden) @ head.above.T
    classes, people = len(head.above), len(features)
    # Everybody with every label, label by label.
    labels = torch.arange(classes, device=logits.device).repeat_interleave(people)
    mismatch = _Mismatch(
        observation.task.loss,
        logits.repeat(classes, 1),
        head.offset,
        labels,
        shares.repeat(classes, 1),
    )
    scales = mismatch.least()
    best = mismatch(scales).reshape(classes, people).min(0)
    chosen = best.indices * people + torch.arange(people, device=logits.device)
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
        """Of scales `(..., N)`, in one pass."""
        at = (scales[..., None] * self.logits + self.offset).reshape(-1, self.logits.shape[1])
        repeats = len(at) // len(self.labels)
        with torch.enable_grad():
            leaf = at.detach().requires_grad_()
            losses = self.loss(leaf, self.labels.repeat(repeats))
            (slopes,) = torch.autograd.grad(losses.sum(), leaf)
        cosine = torch.cosine_similarity(slopes, self.shares.repeat(repeats, 1), dim=1)
        return 1 - cosine.reshape(scales.shape)

    def least(self) -> Tensor:
        """The scales `(N,)` with the least mismatch: a grid, then golden section."""
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


def guessed_lengths(
    head: TwoLayerHead, equations: Equations, directions: Tensor, observation: Observation
) -> Tensor:
    """Directions of unknown sign `(B, d)` with signs and lengths that fit the equations.

    Behind an activation that tells lengths apart, all are given the one that fits best.
    """
    if head.activation.homogeneous:
        both = torch.cat([directions, -directions])
        amounts = equations.shares(equations.hidden(both)).norm(dim=1)
        forwards = (amounts[: len(directions)] >= amounts[len(directions) :])[:, None]
        signed = torch.where(forwards, directions, -directions)
        return with_lengths(head, equations, signed, observation)[0]
    size = head.hidden(directions).square().mean(1, keepdim=True).sqrt()
    options = [directions * 2.0**power / size for power in range(-4, 4)]
    best = min(options, key=equations.misfit)
    shares = equations.shares(equations.hidden(best))
    # The largest entry of a gradient at the logits is that of the label, which is negative.
    largest = shares.gather(1, shares.abs().argmax(1, keepdim=True))
    return torch.where(largest > 0, -best, best)
