"""Features of a two-layer head with Gaussian weights, by Stein's lemma and a decomposition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.feature_recovery.decomposition import common_parts
from seepage.attacks.feature_recovery.equations import equations
from seepage.attacks.feature_recovery.features import Features
from seepage.attacks.feature_recovery.gaussian import gaussian_neurons
from seepage.attacks.feature_recovery.head import NOTHING, TwoLayerHead, two_layer_head
from seepage.attacks.feature_recovery.hermite import (
    Orders,
    hermite_orders,
    matrix_moment,
    tensor_moment,
)
from seepage.attacks.feature_recovery.lengths import guessed_lengths
from seepage.attacks.feature_recovery.reconstruction import as_reconstruction
from seepage.core import Observation, Reconstruction, Rng
from seepage.core.errors import MissingKnowledge, NotApplicable
from seepage.core.precision import precision
from seepage.core.rng import require_key

# Of the square of a row, relative to the largest: what single precision leaves of a sum of classes.
_NOTHING = 1e-12


@dataclass(frozen=True, kw_only=True)
class TensorFeatures:
    """The paper's method, on the gradient of the last layer alone.

    For w ~ N(0, I) Stein's lemma turns moments of g_k(w) = dL/dA_k(w) = sum_i R_ik sigma(w . z_i)
    into sums over people:

        P_k = (1/m) sum_j g_kj H2(w_j)   is about  sum_i nu_i R_ik z_i z_i^T
        T_k = (1/m) sum_j g_kj H3(w_j)   is about  sum_i lambda_i R_ik z_i (x) z_i (x) z_i

    The span V is that of the largest singular vectors of all P_k side by side; the slices of
    T_k(V, V, V), and V^T P_k V, are diagonalised together. Both are linear in g, so that rotated
    classes serve as well as the K there are, and as many as g has rank do. Orders follow the
    activation's Gaussian derivatives (`hermite_orders`). The method gives directions; signs and
    lengths are guessed from the loss.

    Args:
        reduced: Take the part of g_k that a line explains away before the moments. That does not
            change what they are about, for Hermite polynomials are orthogonal, and makes them less
            noisy; the paper does not do it.

    References:
        Liu et al., 2024, appendix B (liu2024systematic); Wang et al., 2023
        (wang2023reconstructing); Zhong et al., 2017, Algorithm 3 (zhong2017recovery); Kuleshov et
        al., 2015 (kuleshov2015tensor)
    """

    reduced: bool = False

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features."""
        require_key(rng)
        people = observation.batch_size
        if people is None:
            raise MissingKnowledge("batch size", needed_by=self, hint="use knows_batch_size=True")
        with precision("float32"):
            head = two_layer_head(observation)
            orders = hermite_orders(head.activation, head.activation.name)
            neurons = gaussian_neurons(head)
            _require_width(head, len(neurons.chosen), people)
            # Moments are off by sqrt(d / m), so that single precision has digits to spare.
            weight = (head.weight[neurons.chosen] / neurons.deviation).float()
            values = head.last[:, neurons.chosen]
            if not bool(values.any()):
                raise NotApplicable(NOTHING)
            values = _rotated(values / values.norm()).float()
            along = _along(weight, values)
            if self.reduced:
                values = _without_line(weight, values)
            span = _span(weight, values, orders.matrix, along, people)
            within = span.T @ along
            slices = _slices(weight @ span, values, orders, within / within.norm())
            parts = common_parts(slices.double(), rng=rng.fork("parts"))
            span = span.double()
        return _found(head, parts @ span.T, span, observation)

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """The inputs, where the head reads them."""
        return as_reconstruction(self.recover, observation, rng=rng)


def _require_width(head: TwoLayerHead, neurons: int, people: int) -> None:
    inputs = head.weight.shape[1]
    if people > inputs:
        raise NotApplicable(
            f"{people} features of {inputs} numbers are not independent; the tensor method needs "
            "fewer people than numbers"
        )
    if neurons < inputs:
        raise NotApplicable(
            f"{neurons} random neurons are too few for features of {inputs} numbers, whose error "
            f"is about sqrt(d / m) at best; the tensor method needs {inputs} neurons at the very "
            f"least, and about {16 * inputs} to be of use"
        )


def _rotated(values: Tensor) -> Tensor:
    """Rows `(K, m)` turned so that those beyond their rank are zero, and left out.

    Sums over classes of the square of anything linear in a row stay as they are.
    """
    squares, turns = torch.linalg.eigh(values @ values.T)
    kept = squares > _NOTHING * squares[-1]
    rotated: Tensor = turns[:, kept].T @ values
    return rotated


def _without_line(weight: Tensor, values: Tensor) -> Tensor:
    regressors = torch.cat([weight, weight.new_ones(len(weight), 1)], dim=1)
    slopes = torch.linalg.solve(regressors.T @ regressors, regressors.T @ values.T)
    rest: Tensor = values - (regressors @ slopes).T
    return rest


def _along(weight: Tensor, values: Tensor) -> Tensor:
    """The unit vector a: what the first-order moments of all classes have most in common.

    Any would do in theory; one that is nearly orthogonal to the features drowns in noise.
    """
    vector: Tensor = torch.linalg.svd(values @ weight, full_matrices=False).Vh[0]
    return vector


def _span(weight: Tensor, values: Tensor, order: int, along: Tensor, people: int) -> Tensor:
    """Orthonormal columns `(d, B)`: the largest eigenvectors of sum_k P_k^2."""
    total = weight.new_zeros(weight.shape[1], weight.shape[1])
    for row in values:
        moment = matrix_moment(weight, row, order, along)
        total += moment @ moment
    largest: Tensor = torch.linalg.eigh(total).eigenvectors[:, -people:]
    return largest


def _slices(weight: Tensor, values: Tensor, orders: Orders, along: Tensor) -> Tensor:
    """All matrices `(N, B, B)` that the features diagonalise, in the coordinates of the span."""
    matrices = [matrix_moment(weight, row, orders.matrix, along) for row in values]
    tensors = [tensor_moment(weight, row, orders.tensor, along) for row in values]
    return torch.cat([torch.stack(matrices), torch.cat(tensors)])


def _found(
    head: TwoLayerHead, directions: Tensor, span: Tensor, observation: Observation
) -> Features:
    """The directions with the sign and length that fit best, of which nothing is certain."""
    wanted = equations(head)
    values = guessed_lengths(head, wanted, directions, observation)
    dtype = next(iter(observation.task.parameters.values())).dtype
    residual = wanted.misfit(values)
    return Features(head.layer, values.to(dtype), span.to(dtype), False, residual)
