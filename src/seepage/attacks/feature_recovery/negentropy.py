"""Unmixing by negentropy: the fixed point of FastICA, then the likelihood without whiteness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.attacks.exact_batch.span_factors import numerical_rank
from seepage.core import Observation, Rng, Task
from seepage.core.errors import MissingKnowledge, NotApplicable, UnknownName
from seepage.core.progress import report
from seepage.probing.first_layer import calls, input_readers, noise

# Below this part of a source's deviation |s| is rounded off, for its derivative to exist.
_SMOOTH = 1e-2
_HISTORY = 30


@dataclass(frozen=True, eq=False)
class Contrast:
    """The dependence that is left between sources s = A z, and what they may not be.

        L(A) = sum_i E ||s_i||  -  log |det A|  +  weight * sum_i outside(a_i)

    Minimised over the lengths of its rows, the first two are sum_i log E ||s_i|| - log |det A|,
    which is - sum_i J(s_i) - log det corr(s) / 2 up to a constant: the negentropy J of each
    source, with the entropy of a Laplacian, and the decorrelation of all. Their sum is the mutual
    information of the sources. Where s are differences of neighbours, E ||s_i|| is a total
    variation.

    Args:
        white: Whitened samples z `(B, G, C)`, of G groups that share their size.
        outside: How far the sources of the rows of A leave their bounds, a scalar.
        weight: Of that.
    """

    white: Tensor
    outside: Callable[[Tensor], Tensor] | None
    weight: float

    def __call__(self, unmixing: Tensor) -> Tensor:
        """The value at A `(B, B)`."""
        sources = (unmixing @ self.white.flatten(1)).reshape(self.white.shape)
        sizes = (sources.square().sum(2) + _SMOOTH**2).sqrt().mean(1).sum()
        value: Tensor = sizes - torch.linalg.slogdet(unmixing).logabsdet
        if self.outside is not None and self.weight:
            value = value + self.weight * self.outside(unmixing)
        return value


def whitening(samples: Tensor) -> Tensor:
    """The matrix `(B, B)` after which samples `(B, G, C)` are uncorrelated, of unit size.

    Example:
        >>> z = Rng(0).normal((2, 500, 1)).double()
        >>> white = whitening(z) @ z.flatten(1)
        >>> torch.allclose(white @ white.T / 500, torch.eye(2).double())
        True
    """
    flat = samples.flatten(1)
    sizes, axes = torch.linalg.eigh(flat @ flat.T / flat.shape[1])
    floor = torch.finfo(sizes.dtype).eps * sizes[-1]
    matrix: Tensor = (axes * sizes.clamp_min(floor).rsqrt()) @ axes.T
    return matrix


def fixed_point(white: Tensor, *, steps: int, rng: Rng) -> Tensor:
    """The orthogonal A whose rows' negentropies are largest, from a random start.

        A <- orth( E[g(s) z^T] - diag(E g'(s)) A ),   g(s) = s / (|s| + 0.1)

    References:
        Hyvarinen, 1999, symmetric form (hyvarinen1999fast)
    """
    flat = white.flatten(1)
    unmixing = _orthogonal(rng.normal((len(flat), len(flat)), like=flat))
    for _ in range(steps):
        sources = unmixing @ flat
        away = sources.abs() + 0.1
        slopes = (0.1 / away.square()).mean(1, keepdim=True)
        moved = _orthogonal((sources / away) @ flat.T / flat.shape[1] - slopes * unmixing)
        still = (moved * unmixing).sum(1).abs().min() > 1 - 1e-7
        unmixing = moved
        if still:
            break
    return unmixing


def descend(contrast: Contrast, unmixing: Tensor, *, steps: int) -> tuple[Tensor, list[float]]:
    """Minimise the contrast by L-BFGS; the best A, and the value at each evaluation."""
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


def _orthogonal(matrix: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(matrix)
    nearest: Tensor = left @ right
    return nearest


@dataclass(frozen=True, eq=False)
class Mixture:
    """dL/dW = D X: every row is a mixture of the B inputs of the layer.

    Args:
        layer: Name of the layer, as `named_modules` spells it.
        span: Orthonormal columns `(m, B)`, with dL/dW = span @ mixtures, in float64.
        mixtures: M `(B, n)`.
        total: The bias gradient in the coordinates of the span `(B,)`, which gives X its scale;
            None if the layer has no bias, or none that is trained.
        shape: Shape of one source: of an input of the network, or `(d,)`.
        low: Least value of each entry of a source `(n,)`, -inf where it is not known.
        high: Largest value of each entry, +inf where it is not known.
        residual: What B sources leave of dL/dW, relative to it.
    """

    layer: str
    span: Tensor
    mixtures: Tensor
    total: Tensor | None
    shape: tuple[int, ...]
    low: Tensor
    high: Tensor
    residual: float

    @property
    def natural(self) -> bool:
        """Whether the sources are inputs of the network, with neighbours that resemble."""
        return len(self.shape) > 1


def read_mixture(observation: Observation, layer: str | None) -> Mixture:
    """The mixture at a layer; None takes the first that reads one vector of each example."""
    task, gradient = observation.task, observation.update.descent().tensors
    name, probes = _layer(task, layer)
    prefix = f"{name}." if name else ""
    weight, bias = gradient.get(f"{prefix}weight"), gradient.get(f"{prefix}bias")
    if weight is None:
        raise NotApplicable(
            f"the layer {name!r} of {task.name} is frozen, so the update does not hold its "
            "gradient; name another layer"
        )
    span, mixtures = _split(weight.double(), observation.batch_size, _rounding(weight), name)
    rest = weight.double() - span @ mixtures
    reads_input = name in input_readers(task)
    low, high = _range(task, weight) if reads_input else _seen_range(probes)
    return Mixture(
        name,
        span,
        mixtures,
        None if bias is None else span.T @ bias.double(),
        task.domain.shape if reads_input else (weight.shape[1],),
        low,
        high,
        float(rest.norm() / weight.double().norm()),
    )


def _split(
    weight: Tensor, people: int | None, rounding: float, layer: str
) -> tuple[Tensor, Tensor]:
    """The best factors of rank B of dL/dW; B is its rank if nobody says."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    if people is None:
        people, noisy = numerical_rank(values, 100 * rounding)
        if people == 0 or noisy:
            raise MissingKnowledge(
                "batch size",
                needed_by=f"a gradient of {layer!r} with noise in it",
                hint="use Threat(knows_batch_size=True)",
            )
    if people > len(values):
        raise NotApplicable(
            f"the layer {layer!r} has a gradient of rank {len(values)} at most, too little to "
            f"separate {people} people; it needs at least as many neurons as people"
        )
    if values[people - 1] <= rounding * values[0]:
        raise NotApplicable(
            f"the gradient of {layer!r} has a rank below the {people} people in the batch: some "
            "inputs are equal, or have no gradient; withhold the batch size to recover the others"
        )
    return left[:, :people], values[:people, None] * right[:people]


def _rounding(weight: Tensor) -> float:
    return float(torch.finfo(weight.dtype).eps)


def _layer(task: Task, wanted: str | None) -> tuple[str, Tensor]:
    """The layer, and what it reads on the adversary's own noise."""
    read = calls(task, nn.Linear, noise(task))
    names = [name for name, _ in read]
    found = {n: inputs for n, inputs in read if inputs.ndim == 2 and names.count(n) == 1}
    if not found:
        raise NotApplicable(
            f"{task.name} has no fully connected layer that reads one vector of each example, so "
            "there is no mixture to separate; use gradient matching"
        )
    if wanted is None:
        return next(iter(found.items()))
    if wanted not in found:
        raise UnknownName("fully connected layer", wanted, found, where=f"of {task.name}")
    return wanted, found[wanted]


def _range(task: Task, like: Tensor) -> tuple[Tensor, Tensor]:
    """The bounds of the domain, as the network sees them."""
    blank = like.new_ones((1, *task.domain.shape), dtype=torch.float64)
    low, high = (task.domain.normalise(bound * blank).flatten() for bound in task.domain.bounds)
    return low, high


def _seen_range(probes: Tensor) -> tuple[Tensor, Tensor]:
    """At least zero where noise says so, as behind a ReLU; nothing else is sure."""
    unknown = probes.new_full((probes.shape[1],), torch.inf, dtype=torch.float64)
    return (torch.zeros_like(unknown) if bool((probes >= 0).all()) else -unknown), unknown
