"""The two-layer networks of Liu et al., as tasks and once more in NumPy, with every derivative."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import seepage as sp

Array = np.ndarray


class TwoLayer(nn.Module):
    """f(x) = sum_j a_j tanh(w_j x), and a second output that is zero: labels are 0 and 1."""

    def __init__(self, inputs: int, width: int, *, seed: int):
        super().__init__()
        drawn = torch.Generator().manual_seed(seed)
        self.hidden = nn.Linear(inputs, width, bias=False)
        self.head = nn.Linear(width, 1, bias=False)
        with torch.no_grad():
            self.hidden.weight.copy_(torch.randn(width, inputs, generator=drawn))
            self.head.weight.copy_(torch.randn(1, width, generator=drawn) / width)

    def forward(self, inputs: Tensor) -> Tensor:
        value = self.head(torch.tanh(self.hidden(inputs.flatten(1))))
        return torch.cat([value, torch.zeros_like(value)], 1)


def square_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """(f - y)^2 with y = +1 for label 0 and -1 for label 1."""
    return (outputs[:, 0] - (1 - 2 * labels.to(outputs))).square()


def two_layer(inputs: int, width: int, *, seed: int = 0) -> sp.Task:
    domain = sp.domains.Signal((1, inputs), bounds=(-1.0, 1.0))
    return sp.Task(TwoLayer(inputs, width, seed=seed), square_loss, domain, name="two_layer")


def on_the_sphere(batch: int, inputs: int, *, seed: int = 0) -> sp.Batch:
    """Inputs of norm 1 with labels in turn."""
    drawn = sp.rng(seed).fork("inputs").normal((batch, 1, inputs))
    return sp.Batch(drawn / drawn.flatten(1).norm(dim=1)[:, None, None], torch.arange(batch) % 2)


@dataclass(frozen=True, eq=False)
class Derivatives:
    """Gradient and Jacobian in closed form (Lemma D.6), in float64, summed over the batch."""

    a: Array
    w: Array

    @classmethod
    def of(cls, task: sp.Task) -> Derivatives:
        weights = {name: p.double().numpy() for name, p in task.parameters.items()}
        return cls(weights["head.weight"][0], weights["hidden.weight"])

    def gradient(self, inputs: Array, signs: Array) -> Array:
        """In the order of the parameters, hidden layer first: `(m d + m,)`."""
        total = np.zeros(self.w.size + self.a.size)
        for x, y in zip(inputs, signs, strict=True):
            s, slope, _ = _tanh(self.w @ x)
            residual = 2 * (self.a @ s - y)
            rows = residual * (self.a * slope)[:, None] * x[None]
            total += np.concatenate([rows.ravel(), residual * s])
        return total

    def jacobian(self, inputs: Array, signs: Array) -> Array:
        """`(m d + m, B d)`."""
        return np.concatenate([self._one(x, y) for x, y in zip(inputs, signs, strict=True)], axis=1)

    def _one(self, x: Array, y: float) -> Array:
        s, slope, bend = _tanh(self.w @ x)
        residual, h = 2 * (self.a @ s - y), (self.a * slope) @ self.w
        head = 2 * np.outer(s, h) + residual * slope[:, None] * self.w
        hidden = (
            2 * np.einsum("j,k,l->jkl", self.a * slope, x, h)
            + residual * np.einsum("j,jl,k->jkl", self.a * bend, self.w, x)
            + residual * np.einsum("j,kl->jkl", self.a * slope, np.eye(len(x)))
        )
        return np.concatenate([hidden.reshape(-1, len(x)), head])


def _tanh(z: Array) -> tuple[Array, Array, Array]:
    """Tanh with its first and second derivative."""
    s = np.tanh(z)
    return s, 1 - s**2, -2 * s * (1 - s**2)
