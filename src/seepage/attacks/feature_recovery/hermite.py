"""Hermite orders of an activation, and Hermite tensors contracted as far as they are needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.core.errors import NotApplicable

_NODES = 200
# Of an activation's size; quadrature leaves 1e-3 of a kink, and exactly nothing of a wrong parity.
_NEGLIGIBLE = 1e-2


def gaussian_derivative(activation: Callable[[Tensor], Tensor], order: int) -> float:
    """E[sigma^(k)(x)] = E[sigma(x) He_k(x)] for x ~ N(0, 1), by Gauss-Hermite quadrature.

    The second form is Stein's lemma and asks for no derivative.

    Example:
        >>> round(gaussian_derivative(torch.relu, 1), 6)
        0.5
        >>> abs(gaussian_derivative(torch.tanh, 2)) < 1e-12  # even order of an odd function
        True
    """
    nodes, weights = _quadrature()
    polynomial = np.polynomial.hermite_e.hermeval(nodes, [0.0] * order + [1.0])
    values = activation(torch.from_numpy(nodes)).numpy()
    return float(np.sum(weights * values * polynomial) / math.sqrt(2 * math.pi))


@lru_cache(maxsize=1)
def _quadrature() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return nodes, weights


@dataclass(frozen=True)
class Orders:
    """Hermite orders to use: `matrix` for the span (2 or 3), `tensor` for the parts (3 or 4)."""

    matrix: int
    tensor: int


def hermite_orders(activation: Callable[[Tensor], Tensor], name: str) -> Orders:
    """The lowest orders k2 >= 2 and k3 >= 3 whose Gaussian derivative is not zero.

    ReLU and its like are a line and an even function, so they have 2 and 4; tanh and sigmoid are
    odd up to a constant and have 3 and 3.

    Example:
        >>> hermite_orders(torch.relu, "relu"), hermite_orders(torch.tanh, "tanh")
        (Orders(matrix=2, tensor=4), Orders(matrix=3, tensor=3))

    References:
        Liu et al., 2024, Assumption B.1 (liu2024systematic)
    """
    size = math.sqrt(abs(gaussian_derivative(lambda x: activation(x).square(), 0)))
    usable = {
        k: abs(gaussian_derivative(activation, k)) / math.sqrt(math.factorial(k))
        > _NEGLIGIBLE * size
        for k in (2, 3, 4)
    }
    if not (usable[2] or usable[3]) or not (usable[3] or usable[4]):
        named = ", ".join(str(k) for k in usable if usable[k]) or "none"
        raise NotApplicable(
            f"the tensor method needs Gaussian derivatives of order 2 or 3 and of order 3 or 4, "
            f"and {name} has {named} of the orders 2 to 4; use exact_features()"
        )
    return Orders(matrix=2 if usable[2] else 3, tensor=3 if usable[3] else 4)


def matrix_moment(weight: Tensor, values: Tensor, order: int, along: Tensor) -> Tensor:
    """(1/m) sum_j g_j H2(w_j), or of H3(w_j)(I, I, a), `(n, n)`.

    Args:
        weight: `(m, n)`, standard normal rows.
        values: g, `(m,)`.
        order: 2 or 3.
        along: a, `(n,)`, used for order 3.
    """
    identity = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    if order == 2:
        return (weight * values[:, None]).T @ weight / len(weight) - values.mean() * identity
    turned = values * (weight @ along)
    first = values @ weight / len(weight)
    square = (weight * turned[:, None]).T @ weight / len(weight)
    mixed = torch.outer(first, along)
    return square - turned.mean() * identity - mixed - mixed.T


def tensor_moment(weight: Tensor, values: Tensor, order: int, along: Tensor) -> Tensor:
    """(1/m) sum_j g_j H3(w_j), or of H4(w_j)(I, I, I, a), `(n, n, n)`; for few dimensions n."""
    identity = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    g = values if order == 3 else values * (weight @ along)
    cube = torch.einsum("j,ja,jb,jc->abc", g, weight, weight, weight) / len(weight)
    moment = cube - _symmetric(g @ weight / len(weight), identity)
    if order == 3:
        return moment
    square = (weight * values[:, None]).T @ weight / len(weight)
    return moment - _symmetric(along, square - values.mean() * identity)


def _symmetric(vector: Tensor, matrix: Tensor) -> Tensor:
    """v_a M_bc + v_b M_ac + v_c M_ab for a symmetric M."""
    product = torch.einsum("a,bc->abc", vector, matrix)
    return product + product.transpose(0, 1) + product.permute(2, 1, 0)
