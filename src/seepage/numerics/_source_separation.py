"""Independent component analysis: find sources in mixtures of them, by how little they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.core._progress import report
from seepage.core._rng import Rng

# Below this share of a source's deviation |s| is smoothed, so that its derivative exists.
_SMOOTH = 1e-2
_HISTORY = 30


@dataclass(frozen=True, eq=False)
class Contrast:
    """The dependence between sources s = A z, plus a penalty on A.

        L(A) = sum_i E ||s_i||  -  log |det A|  +  penalty(A)

    Minimised over the lengths of the rows of A, the first two terms are

        sum_i log E ||s_i|| - log |det A|  =  - sum_i J(s_i) - log det corr(s) / 2 + constant:

    the negentropy J of each source, with the entropy of a Laplacian, and the decorrelation of all.
    Their sum is the mutual information of the sources. If s are differences of neighbours,
    E ||s_i|| is a total variation.

    Args:
        white: Whitened samples z `(B, G, C)`, of G groups that share their size.
        penalty: Maps A to a scalar, such as how far the sources leave their bounds.
    """

    white: Tensor
    penalty: Callable[[Tensor], Tensor] | None = None

    def __call__(self, unmixing: Tensor) -> Tensor:
        """The value at A `(B, B)`."""
        sources = (unmixing @ self.white.flatten(1)).reshape(self.white.shape)
        sizes = (sources.square().sum(2) + _SMOOTH**2).sqrt().mean(1).sum()
        value: Tensor = sizes - torch.linalg.slogdet(unmixing).logabsdet
        return value if self.penalty is None else value + self.penalty(unmixing)


def whitening_matrix(samples: Tensor) -> Tensor:
    """The matrix `(B, B)` that makes samples `(B, G, C)` uncorrelated and of unit size.

    Example:
        >>> z = Rng(0).normal((2, 500, 1)).double()
        >>> white = whitening_matrix(z) @ z.flatten(1)
        >>> torch.allclose(white @ white.T / 500, torch.eye(2).double())
        True
    """
    flat = samples.flatten(1)
    sizes, axes = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
    floor = torch.finfo(sizes.dtype).eps * sizes[-1]
    matrix: Tensor = (axes * sizes.clamp_min(floor).rsqrt()) @ axes.T
    return matrix


def run_fast_ica(white: Tensor, *, steps: int, rng: Rng) -> Tensor:
    """Find the orthogonal A with the largest negentropies, from a random start.

        A <- orth( E[g(s) z^T] - diag(E g'(s)) A ),   g(s) = s / (|s| + 0.1)

    References:
        Hyvarinen, 1999, symmetric form (hyvarinen1999fast)
    """
    flat = white.flatten(1)
    unmixing = _nearest_orthogonal(rng.normal((len(flat), len(flat)), like=flat))
    for _ in range(steps):
        sources = unmixing @ flat
        away = sources.abs() + 0.1
        slopes = (0.1 / away.square()).mean(1, keepdim=True)
        moved = _nearest_orthogonal((sources / away) @ flat.T / flat.shape[1] - slopes * unmixing)
        still = (moved * unmixing).sum(1).abs().min() > 1 - 1e-7
        unmixing = moved
        if still:
            break
    return unmixing


def _nearest_orthogonal(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix)
    nearest: Tensor = left @ right
    return nearest


def minimise_contrast(
    contrast: Contrast, unmixing: Tensor, *, steps: int
) -> tuple[Tensor, list[float]]:
    """Minimise by L-BFGS; return the best A and the value at each evaluation."""
    point = unmixing.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [point], max_iter=steps, history_size=_HISTORY, line_search_fn="strong_wolfe"
    )
    best, values = unmixing, list[float]()

    def closure() -> Tensor:
        nonlocal best
        optimiser.zero_grad()
        value = contrast(point)
        value.backward()  # type: ignore[no-untyped-call]
        values.append(float(value.detach()))
        if values[-1] <= min(values):
            best = point.detach().clone()
        if len(values) % 25 == 0:
            report(min(len(values), steps), steps, min(values))
        return value

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    return best, values
