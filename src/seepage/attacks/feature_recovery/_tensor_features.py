"""Features of a two-layer head with Gaussian weights, by Stein's lemma and a decomposition."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from seepage.attacks.feature_recovery._feature_span import find_shared_column
from seepage.attacks.feature_recovery._features import Features
from seepage.attacks.feature_recovery._head_equations import (
    guess_lengths,
    read_equations,
    reconstruct_inputs,
)
from seepage.core import BaseAttack, Observation, Reconstruction, Rng
from seepage.core._device import precision
from seepage.core._rng import require_key
from seepage.core.errors import NotApplicable
from seepage.probing._heads import NOTHING, TwoLayerHead, two_layer_head

_NODES = 200
_quadrature = lru_cache(maxsize=1)(np.polynomial.hermite_e.hermegauss)
# Relative to an activation's size; quadrature errs by 1e-3 at a kink, and is exact about parity.
_NEGLIGIBLE = 1e-2
_DRAWS = 32
_SWEEPS = 50
_ENTRIES = 200_000
# The 99.9 % point of sqrt(N) times the Kolmogorov-Smirnov distance.
_SUSPICIOUS = 1.95
# Squared length of a row relative to the largest: what single precision leaves of a sum of classes.
_NOTHING = 1e-12


def _gaussian_derivative(activation: Callable[[Tensor], Tensor], order: int) -> float:
    """E[sigma^(k)(x)] = E[sigma(x) He_k(x)] for x ~ N(0, 1), by Gauss-Hermite quadrature.

    The second form is Stein's lemma and needs no derivative.

    Example:
        >>> round(_gaussian_derivative(torch.relu, 1), 6)
        0.5
        >>> abs(_gaussian_derivative(torch.tanh, 2)) < 1e-12  # even order of an odd function
        True
    """
    nodes, weights = _quadrature(_NODES)
    polynomial = np.polynomial.hermite_e.hermeval(nodes, [0.0] * order + [1.0])
    values = activation(torch.from_numpy(nodes)).numpy()
    return float(np.sum(weights * values * polynomial) / math.sqrt(2 * math.pi))


def _hermite_orders(activation: Callable[[Tensor], Tensor], name: str) -> tuple[int, int]:
    """The lowest orders k2 >= 2 and k3 >= 3 whose Gaussian derivative is not zero.

    The matrix moments, which give the span, use k2; the tensor moments, which give the parts, k3.
    ReLU and similar functions are a line plus an even function and have 2 and 4. Tanh and sigmoid
    are odd up to a constant and have 3 and 3.

    Example:
        >>> _hermite_orders(torch.relu, "relu"), _hermite_orders(torch.tanh, "tanh")
        ((2, 4), (3, 3))

    References:
        Liu et al., 2024, Assumption B.1 (liu2024systematic)
    """
    size = math.sqrt(abs(_gaussian_derivative(lambda x: activation(x).square(), 0)))
    usable = {
        k: abs(_gaussian_derivative(activation, k)) / math.sqrt(math.factorial(k))
        > _NEGLIGIBLE * size
        for k in (2, 3, 4)
    }
    if not (usable[2] or usable[3]) or not (usable[3] or usable[4]):
        named = ", ".join(str(k) for k in usable if usable[k]) or "none"
        raise NotApplicable(
            f"the tensor method needs Gaussian derivatives of order 2 or 3 and of order 3 or 4, "
            f"and {name} has {named} of the orders 2 to 4; use exact_features()"
        )
    return 2 if usable[2] else 3, 3 if usable[3] else 4


def _matrix_moment(weight: Tensor, values: Tensor, order: int, along: Tensor) -> Tensor:
    """(1/m) sum_j g_j H2(w_j), or the same of H3(w_j)(I, I, a), `(n, n)`.

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
    square = (weight * turned[:, None]).T @ weight / len(weight)
    mixed = torch.outer(values @ weight / len(weight), along)
    return square - turned.mean() * identity - mixed - mixed.T


def _tensor_moment(weight: Tensor, values: Tensor, order: int, along: Tensor) -> Tensor:
    """(1/m) sum_j g_j H3(w_j), or the same of H4(w_j)(I, I, I, a), `(n, n, n)`; for small n."""
    identity = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
    g = values if order == 3 else values * (weight @ along)
    cube = torch.einsum("j,ja,jb,jc->abc", g, weight, weight, weight) / len(weight)
    moment = cube - _symmetrise(g @ weight / len(weight), identity)
    if order == 3:
        return moment
    square = (weight * values[:, None]).T @ weight / len(weight)
    return moment - _symmetrise(along, square - values.mean() * identity)


def _symmetrise(vector: Tensor, matrix: Tensor) -> Tensor:
    """v_a M_bc + v_b M_ac + v_c M_ab for a symmetric M."""
    product = torch.einsum("a,bc->abc", vector, matrix)
    return product + product.transpose(0, 1) + product.permute(2, 1, 0)


def _diagonalise_jointly(matrices: Tensor, *, rng: Rng) -> Tensor:
    """Find unit vectors u_i, rows of `(B, B)`, with M_n close to sum_i c_ni u_i u_i^T for all n.

    For two random combinations M, M' of the matrices, the u_i are eigenvectors of M M'^-1. The draw
    that explains most starts alternating least squares, which uses all matrices at once.

    Args:
        matrices: `(N, B, B)`, symmetric: slices of a tensor, or one matrix per class.
        rng: For the combinations.

    Example:
        >>> parts = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
        >>> amounts = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
        >>> matrices = torch.einsum("ni,ia,ib->nab", amounts, parts, parts)
        >>> found = _diagonalise_jointly(matrices, rng=Rng(0))
        >>> (found @ parts.T).abs().amax(0).round(decimals=6).tolist()
        [1.0, 1.0]

    References:
        Kuleshov et al., 2015, Algorithm 1 (kuleshov2015tensor)
    """
    device = matrices.device
    if matrices.shape[1] == 1:
        return torch.ones(1, 1, dtype=matrices.dtype, device=device)
    # Hundreds of short operations on small matrices are faster on the CPU than on a GPU.
    matrices = matrices.cpu()
    draws = rng.normal((_DRAWS, 2, len(matrices)), like=matrices)
    pairs = torch.einsum("dpn,nab->dpab", draws, matrices)
    solved = torch.linalg.solve_ex(pairs[:, 1], pairs[:, 0])[0].mT
    options = _normalise(torch.linalg.eig(torch.nan_to_num(solved)).eigenvectors.real.mT)
    parts = options[_unexplained(matrices, options).argmin()]
    least = _unexplained(matrices, parts)
    for _ in range(_SWEEPS):
        better = _sweep(matrices, parts)
        after = _unexplained(matrices, better)
        if not after < least:
            break
        parts, least = better, after
    return parts.to(device)


def _fit_amounts(matrices: Tensor, parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Fit the c `(..., B, N)` to parts `(..., B, B)`.

    Also return the inner products of the u_i u_i^T, `(..., B, B)`, and u_i^T M_n u_i,
    `(..., B, N)`.
    """
    gram = (parts @ parts.mT).square()
    squares = (parts[..., :, None] * parts[..., None, :]).flatten(-2)
    against = squares @ matrices.flatten(1).T
    ridge = 1e-12 * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve_ex(gram + ridge, against)[0], gram, against


def _unexplained(matrices: Tensor, parts: Tensor) -> Tensor:
    """sum_n || M_n - sum_i c_ni u_i u_i^T ||^2, `(...)`, multiplied out; infinite if not finite."""
    amounts, gram, against = _fit_amounts(matrices, parts)
    left = matrices.square().sum() + (amounts * (gram @ amounts - 2 * against)).sum((-2, -1))
    return torch.nan_to_num(left, nan=torch.inf)


def _sweep(matrices: Tensor, parts: Tensor) -> Tensor:
    """Alternating least squares: solve for one side, given the other and the amounts."""
    amounts = _fit_amounts(matrices, parts)[0]
    normal = (amounts @ amounts.T) * (parts @ parts.T)
    ridge = 1e-12 * normal.diagonal().mean() * torch.eye(len(normal)).to(normal)
    weighted = (amounts @ matrices.flatten(1)).reshape(-1, *matrices.shape[1:])
    right = (weighted @ parts[..., None])[..., 0]
    return _normalise(torch.linalg.solve_ex(normal + ridge, right)[0])


def _normalise(rows: Tensor) -> Tensor:
    unit: Tensor = rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return unit


class NotGaussianWarning(UserWarning):
    """The weights that the tensor method reads moments from do not look Gaussian."""


def _gaussian_neurons(head: TwoLayerHead) -> tuple[Tensor, float]:
    """Find the randomly drawn neurons `(v,)`, and the standard deviation of their weights.

    The paper's neurons share one column of A, which training would have moved apart. If most
    neurons share no column, take the largest group whose weights have one size: a row of d
    standard normal numbers has a root mean square within a few 1 / sqrt(2 d) of one. Warn if the
    weights do not look Gaussian: sqrt(N) times the Kolmogorov-Smirnov distance is below 1.95 for
    999 of 1000 Gaussian layers.

    References:
        Liu et al., 2024, appendix F (liu2024systematic) on the columns of A
    """
    chosen = torch.nonzero(_largest_neuron_group(head))[:, 0]
    weight = head.weight[chosen]
    deviation = float(weight.square().mean().sqrt())
    statistic = _distance_from_normal(weight.flatten() / deviation)
    if statistic > _SUSPICIOUS:
        warnings.warn(
            f"the weights of {head.layer!r} are not Gaussian (sqrt(N) times the Kolmogorov-Smirnov "
            f"distance is {statistic:.1f}, above {_SUSPICIOUS}), so the moments of tensor_features "
            "are biased; exact_features() does not need Gaussian weights",
            NotGaussianWarning,
            stacklevel=2,
        )
    return chosen, deviation


def _largest_neuron_group(head: TwoLayerHead) -> Tensor:
    """Which neurons belong to the largest group, `(m,)`."""
    common = find_shared_column(head)
    if common is not None:
        return common
    size = head.weight.square().mean(1).sqrt()
    usual = float(size.median())
    if usual == 0:
        raise NotApplicable(f"half of the neurons of {head.layer!r} have zero weights")
    near: Tensor = (size / usual - 1).abs() < 6 / (2 * head.weight.shape[1]) ** 0.5
    return near


def _distance_from_normal(values: Tensor) -> float:
    """sqrt(N) sup_x |F_N(x) - Phi(x)|, on the device of the values and without scipy."""
    stride = max(1, len(values) // _ENTRIES)
    some = values[::stride].sort().values
    below = torch.special.ndtr(some)
    steps = torch.arange(len(some) + 1, dtype=some.dtype, device=some.device) / len(some)
    distance = torch.maximum((steps[1:] - below).max(), (below - steps[:-1]).max())
    return float(distance * math.sqrt(len(some)))


@dataclass(frozen=True, kw_only=True)
class TensorFeatures(BaseAttack):
    """The paper's method, which uses only the gradient of the last layer; see `tensor_features`.

    For w ~ N(0, I) Stein's lemma turns moments of g_k(w) = dL/dA_k(w) = sum_i R_ik sigma(w . z_i)
    into sums over examples:

        P_k = (1/m) sum_j g_kj H2(w_j)   is about  sum_i nu_i R_ik z_i z_i^T
        T_k = (1/m) sum_j g_kj H3(w_j)   is about  sum_i lambda_i R_ik z_i (x) z_i (x) z_i

    The largest singular vectors of all P_k side by side span the features. With a basis V of that
    span, the slices of T_k(V, V, V) and the V^T P_k V are diagonalised together. Both moments are
    linear in g, so the classes may be rotated, and only as many as g has rank are needed. The
    orders follow the activation's Gaussian derivatives (`_hermite_orders`). The method gives
    directions; signs and lengths are guessed from the loss.
    """

    reduced: bool = False

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features."""
        require_key(rng)
        size = observation.require_batch_size(self)
        with precision("float32"):
            head = two_layer_head(observation)
            orders = _hermite_orders(head.activation, head.activation.name)
            chosen, deviation = _gaussian_neurons(head)
            _require_width(head, len(chosen), size)
            # Moments err by sqrt(d / m), so single precision is enough.
            weight = (head.weight[chosen] / deviation).float()
            values = head.last[:, chosen]
            if not bool(values.any()):
                raise NotApplicable(NOTHING)
            values = _rotate_classes(values / values.norm()).float()
            # In theory any unit vector a will do, but one nearly orthogonal to the features drowns
            # in noise. This one is what the first-order moments of all classes share most.
            along = torch.linalg.svd(values @ weight, full_matrices=False).Vh[0]
            if self.reduced:
                values = _remove_linear_part(weight, values)
            span = _find_span(weight, values, orders[0], along, size)
            within = span.T @ along
            slices = _moment_slices(weight @ span, values, orders, within / within.norm())
            parts = _diagonalise_jointly(slices.double(), rng=rng.fork("parts"))
            span = span.double()
        wanted = read_equations(head)
        features = guess_lengths(head, wanted, parts @ span.T, observation)
        dtype = observation.task.reference.dtype
        residual = wanted.misfit(features)
        return Features(head.layer, features.to(dtype), span.to(dtype), False, residual)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Recover the inputs, if the head reads them."""
        return reconstruct_inputs(self, observation, rng)


def _require_width(head: TwoLayerHead, neurons: int, examples: int) -> None:
    inputs = head.weight.shape[1]
    if examples > inputs:
        raise NotApplicable(
            f"{examples} features of {inputs} numbers are not independent; the tensor method needs "
            "fewer examples than numbers"
        )
    if neurons < inputs:
        raise NotApplicable(
            f"{neurons} random neurons are too few for features of {inputs} numbers, whose error "
            f"is about sqrt(d / m) at best; the tensor method needs {inputs} neurons at the very "
            f"least, and about {16 * inputs} to be of use"
        )


def _rotate_classes(values: Tensor) -> Tensor:
    """Rotate rows `(K, m)` so that those beyond their rank are zero, and drop these.

    Sums over classes of the square of anything linear in a row do not change.
    """
    squares, turns = torch.linalg.eigh(values @ values.T)
    rotated: Tensor = turns[:, squares > _NOTHING * squares[-1]].T @ values
    return rotated


def _remove_linear_part(weight: Tensor, values: Tensor) -> Tensor:
    regressors = torch.cat([weight, weight.new_ones(len(weight), 1)], dim=1)
    slopes = torch.linalg.solve(regressors.T @ regressors, regressors.T @ values.T)
    rest: Tensor = values - (regressors @ slopes).T
    return rest


def _find_span(weight: Tensor, values: Tensor, order: int, along: Tensor, size: int) -> Tensor:
    """Orthonormal columns `(d, B)`: the largest eigenvectors of sum_k P_k^2."""
    total = weight.new_zeros(weight.shape[1], weight.shape[1])
    for row in values:
        moment = _matrix_moment(weight, row, order, along)
        total += moment @ moment
    largest: Tensor = torch.linalg.eigh(total).eigenvectors[:, -size:]
    return largest


def _moment_slices(
    weight: Tensor, values: Tensor, orders: tuple[int, int], along: Tensor
) -> Tensor:
    """All matrices `(N, B, B)` that the features diagonalise, in the coordinates of the span."""
    matrices = [_matrix_moment(weight, row, orders[0], along) for row in values]
    tensors = [_tensor_moment(weight, row, orders[1], along) for row in values]
    return torch.cat([torch.stack(matrices), torch.cat(tensors)])


def tensor_features(*, reduced: bool = False) -> TensorFeatures:
    """Recover what a wide Gaussian head reads, by Hermite moments of its last gradient.

    As an attack it returns inputs if the head reads them; `recover` gives the features of any
    network with such a head.

    Args:
        reduced: Subtract the constant and linear part of g before taking moments. Hermite
            polynomials are orthogonal, so this keeps what the moments mean and lowers their noise.
            The paper does not do it.

    Example:
        >>> tensor_features()
        TensorFeatures(reduced=False)

    Deviations:
        The paper's H2 and H3 fit no common activation; orders are chosen from its Gaussian
        derivatives. All classes are used, and second-order moments take part in the decomposition.
        The unit vector a, "any" in the paper, is the direction of the first-order moments.

    References:
        Liu et al., 2024, appendix B (liu2024systematic); Wang et al., 2023
        (wang2023reconstructing); Zhong et al., 2017, Algorithm 3 (zhong2017recovery); Kuleshov et
        al., 2015 (kuleshov2015tensor)
    """
    return TensorFeatures(reduced=reduced)
