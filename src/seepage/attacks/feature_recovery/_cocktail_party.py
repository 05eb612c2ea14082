"""The cocktail party attack: blind source separation of the inputs of a fully connected layer.

Pixels of natural images are neither sparse nor independent between images: most images are bright
in the sky and dark at the ground. Differences of neighbouring pixels are both. Differencing is
linear, so the differences of a mixture are the same mixture of the differences of the sources.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from seepage.attacks.exact_batch._assign_labels import read_labels
from seepage.attacks.exact_batch._span_factors import numerical_rank
from seepage.attacks.feature_recovery._features import Features
from seepage.core import BaseAttack, Observation, Reconstruction, Rng, Task, Trace
from seepage.core._device import precision
from seepage.core._rng import require_key
from seepage.core._usable_update import require_usable
from seepage.core.errors import MissingKnowledge, NotApplicable, UnknownName, require_at_least
from seepage.numerics._source_separation import (
    Contrast,
    minimise_contrast,
    run_fast_ica,
    whitening_matrix,
)
from seepage.probing._first_layer import draw_noise, input_readers, list_calls

# The share of entries that may leave the bounds when a source is stretched to fill them.
_LEAVING = 0.005


@dataclass(frozen=True, eq=False)
class _Mixture:
    """dL/dW = D X: every row is a mixture of the B inputs of the layer.

    Args:
        layer: Name of the layer, as in `named_modules`.
        span: Orthonormal columns `(m, B)`, with dL/dW = span @ mixtures, in float64.
        mixtures: M `(B, n)`.
        total: The bias gradient in the coordinates of the span `(B,)`, which gives X its scale;
            None if the layer has no trained bias.
        shape: Shape of one source: that of an input of the network, or `(d,)`.
        low: Lower bound of each entry of a source `(n,)`, -inf if unknown.
        high: Upper bound of each entry, +inf if unknown.
        residual: Relative part of dL/dW that B sources leave unexplained.
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
    def of_inputs(self) -> bool:
        """Whether the sources are inputs of the network, whose neighbours are similar."""
        return len(self.shape) > 1


def _read_mixture(observation: Observation, layer: str | None) -> _Mixture:
    """Read the mixture at a layer; None takes the first that reads one vector of each example."""
    task, gradient = observation.task, observation.update.descent().tensors
    require_usable(observation.update, task)
    name, probes = _find_layer(task, layer)
    prefix = f"{name}." if name else ""
    weight, bias = gradient.get(f"{prefix}weight"), gradient.get(f"{prefix}bias")
    if weight is None:
        raise NotApplicable(
            f"the layer {name!r} of {task.name} is frozen, so the update does not hold its "
            "gradient; name another layer"
        )
    rounding = float(torch.finfo(weight.dtype).eps)
    span, mixtures = _factorise(weight.double(), observation.batch_size, rounding, name)
    rest = weight.double() - span @ mixtures
    reads_input = name in input_readers(task)
    if reads_input:
        blank = weight.new_ones((1, *task.domain.shape), dtype=torch.float64)
        low, high = (task.domain.normalise(bound * blank).flatten() for bound in task.domain.bounds)
    else:  # Behind a ReLU features are at least zero, as noise shows; other bounds are unknown.
        high = probes.new_full((probes.shape[1],), torch.inf, dtype=torch.float64)
        low = torch.zeros_like(high) if bool((probes >= 0).all()) else -high
    return _Mixture(
        name,
        span,
        mixtures,
        None if bias is None else span.T @ bias.double(),
        task.domain.shape if reads_input else (weight.shape[1],),
        low,
        high,
        float(rest.norm() / weight.double().norm()),
    )


def _find_layer(task: Task, wanted: str | None) -> tuple[str, Tensor]:
    """Find the layer, and what it reads on the adversary's own noise."""
    read = list_calls(task, nn.Linear, draw_noise(task))
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


def _factorise(
    weight: Tensor, size: int | None, rounding: float, layer: str
) -> tuple[Tensor, Tensor]:
    """The best factors of rank B of dL/dW; its numerical rank if B is unknown."""
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    if size is None:
        size, noisy = numerical_rank(values, 100 * rounding)
        if size == 0 or noisy:
            raise MissingKnowledge("batch size", needed_by=f"a noisy gradient of {layer!r}")
    if size > len(values):
        raise NotApplicable(
            f"the layer {layer!r} has a gradient of rank {len(values)} at most, too little to "
            f"separate {size} examples; it needs at least as many neurons as examples"
        )
    if values[size - 1] <= rounding * values[0]:
        raise NotApplicable(
            f"the gradient of {layer!r} has a rank below the {size} examples in the batch: some "
            "inputs are equal, or have no gradient; withhold the batch size to recover the others"
        )
    return left[:, :size], values[:size, None] * right[:size]


def _compute_edges(sources: Tensor, shape: tuple[int, ...]) -> Tensor:
    """First and second differences of neighbours, `(B, G, C)`: at G places in C channels.

    The channels of a place stay together, because an edge is visible in all of them.

    Args:
        sources: `(B, n)`, or mixtures of them.
        shape: Of one source, `(C, ...)`.

    Example:
        >>> _compute_edges(torch.tensor([[0.0, 1.0, 1.0, 5.0]]), (1, 4)).flatten()
        tensor([ 1.0000,  0.0000,  4.0000, -0.5000,  2.0000])
    """
    arrays = sources.reshape(-1, *shape)
    axes = range(2, arrays.ndim)
    slopes = [arrays.diff(dim=axis) for axis in axes if arrays.shape[axis] > 1]
    if all(arrays.shape[axis] > 2 for axis in axes):
        bends = []
        for axis in axes:
            bend = arrays.diff(n=2, dim=axis)
            for other in axes:  # Keep the places that have a neighbour on both sides.
                if other != axis:
                    bend = bend.narrow(other, 1, bend.shape[other] - 2)
            bends.append(bend)
        slopes.append(torch.stack(bends).sum(0) / 2)
    return torch.cat([slope.flatten(2).transpose(1, 2) for slope in slopes], dim=1)


def _source_scales(mixture: _Mixture, unmixing: Tensor) -> Tensor:
    """What to divide the rows A M by, `(B,)`; differentiable if the bias gives it.

    The gradient of the bias is D 1, so A maps it to the scales. Without a bias, sources with bounds
    on both sides are stretched to fill them, with the sign that lets them grow further. Other
    sources are only made positive on average.
    """
    if mixture.total is not None:
        return unmixing @ mixture.total
    sources = (unmixing @ mixture.mixtures).detach()
    if bool(mixture.high.isfinite().all()):
        both = torch.stack([_largest_stretch(sign * sources, mixture) for sign in (1.0, -1.0)])
        return torch.where(both[0] >= both[1], 1 / both[0], -1 / both[1])
    return torch.where(sources.sum(1) < 0, -1.0, 1.0).to(sources)


def _largest_stretch(sources: Tensor, mixture: _Mixture) -> Tensor:
    """The largest factor `(B,)` with which nearly all entries stay within the bounds."""
    limits = torch.where(sources > 0, mixture.high / sources, mixture.low / sources)
    return limits.nan_to_num(torch.inf, torch.inf).quantile(_LEAVING, dim=1)


def _distance_outside(mixture: _Mixture, unmixing: Tensor) -> Tensor:
    """How far the sources leave their bounds: the mean over entries, summed over sources."""
    sources = (unmixing @ mixture.mixtures) / _source_scales(mixture, unmixing).unsqueeze(1)
    below = (mixture.low - sources).clamp_min(0)
    above = (sources - mixture.high).clamp_min(0)
    return (below + above).mean(1).sum()


@dataclass(frozen=True, kw_only=True)
class CocktailParty(BaseAttack):
    """Separates the inputs of a fully connected layer; the arguments are those of `cocktail_party`.

    dL/dW = D X has the rank B of the batch, so its rows are mixtures of the B inputs X, and only
    a B x B matrix A is unknown: X = A M. Sources are less Gaussian than mixtures of them, which
    `Contrast` measures. Every restart runs FastICA to a fixed point. The best of them starts a
    descent that allows correlated sources and keeps them within their bounds: the range of pixels,
    or zero behind a ReLU. All choices use the value of the contrast only.

    As an attack it returns the inputs of a network that begins with a fully connected layer. As a
    `FeatureRecovery` it returns those of any fully connected layer. It needs neither labels nor a
    ReLU. If nothing was added to the update, the batch size is its rank.
    """

    layer: str | None = None
    restarts: int = 2
    steps: int = 300
    bounds: float = 3.0
    contrast: Literal["edges", "pixels"] = "edges"

    def __post_init__(self) -> None:
        require_at_least(1, restarts=self.restarts, steps=self.steps)
        require_at_least(0, bounds=self.bounds)
        if self.contrast not in ("edges", "pixels"):
            raise UnknownName("contrast", self.contrast, ("edges", "pixels"))

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Separate the inputs of the network."""
        task = observation.task
        mixture = _read_mixture(observation, self.layer)
        if not mixture.of_inputs:
            raise NotApplicable(
                f"the layer {mixture.layer!r} of {task.name} does not read its input, so features "
                "come back instead of inputs; use recover(), or systematic(features=...)"
            )
        unmixing, trace = self._separate(mixture, rng)
        inputs = task.to_inputs(unmixing @ mixture.mixtures).to(task.reference.dtype)
        # X = A M and D X = span M, hence D = span A^-1.
        gradients = (mixture.span @ torch.linalg.inv(unmixing)).T
        labels = read_labels(task, mixture.layer, inputs, gradients, observation.labels)
        return Reconstruction(inputs, labels, trace)

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Separate the inputs of the layer."""
        require_key(rng)
        with precision("float32"):
            mixture = _read_mixture(observation, self.layer)
        unmixing, _ = self._separate(mixture, rng)
        found = (unmixing @ mixture.mixtures).to(next(iter(observation.update)).dtype)
        span = torch.linalg.qr(mixture.mixtures.T).Q.to(found.dtype)
        return Features(mixture.layer, found, span, mixture.total is not None, mixture.residual)

    def _separate(self, mixture: _Mixture, rng: Rng) -> tuple[Tensor, Trace]:
        """Find the matrix A with X = A M."""
        samples = self._choose_samples(mixture)
        white = whitening_matrix(samples)
        samples = torch.einsum("ij,jgc->igc", white, samples)
        starts = []
        for restart in range(self.restarts):
            key = rng.fork("restart", restart)
            orthogonal = run_fast_ica(samples, steps=self.steps, rng=key)
            starts.append(minimise_contrast(Contrast(samples), orthogonal, steps=self.steps))
        finals = tuple(min(values) for _, values in starts)
        best, values = starts[finals.index(min(finals))]
        if mixture.total is not None or not mixture.of_inputs:

            def penalty(unmixing: Tensor) -> Tensor:
                return self.bounds * _distance_outside(mixture, unmixing @ white)

            bounded = Contrast(samples, penalty if self.bounds else None)
            best, values = minimise_contrast(bounded, best, steps=self.steps)
        unmixing = best @ white
        unmixing = unmixing / _source_scales(mixture, unmixing).unsqueeze(1)
        return unmixing, Trace(tuple(values), finals, device=str(unmixing.device))

    def _choose_samples(self, mixture: _Mixture) -> Tensor:
        """What the contrast measures, `(B, G, C)`: features behind a ReLU are already sparse."""
        mixtures = mixture.mixtures
        if mixture.of_inputs and self.contrast == "edges":
            return _compute_edges(mixtures, mixture.shape)
        if mixture.of_inputs:
            mixtures = mixtures - mixtures.mean(1, keepdim=True)
        return mixtures.unsqueeze(2)


def cocktail_party(
    *,
    layer: str | None = None,
    restarts: int = 2,
    steps: int = 300,
    bounds: float = 3.0,
    contrast: Literal["edges", "pixels"] = "edges",
) -> CocktailParty:
    """Blind source separation of the inputs of a fully connected layer, whatever follows it.

    Args:
        layer: Layer whose inputs to recover; None for the first fully connected layer. An attack
            needs one that reads the input of the network; `recover` takes any.
        restarts: Random starts; the one with the lowest contrast is kept.
        steps: Steps of FastICA and of L-BFGS.
        bounds: Weight of the distance by which sources leave their bounds.
        contrast: What is measured for inputs of the network: their "edges", which are sparse, or
            their "pixels" less the mean, as in the paper.

    Example:
        >>> cocktail_party(restarts=3)
        CocktailParty(layer=None, restarts=3, steps=300, bounds=3.0, contrast='edges')

    Deviations:
        The paper separates pixels and adds a penalty on cosines between the rows of A and a total
        variation. The code released with it multiplies the negentropy by zero. Pixels of images
        are neither sparse nor uncorrelated between images, and their negentropy misleads
        (papers/benchmarks/cocktail_party.py has both). Here the negentropy is that of differences
        of neighbours, where it is also a total variation. Its own determinant decorrelates, the
        bias gradient gives sign and size, and pixels must lie in their range.

    References:
        Kariyappa et al., 2023 (kariyappa2023cocktail); Hyvarinen, 1999 (hyvarinen1999fast)
    """
    return CocktailParty(
        layer=layer, restarts=restarts, steps=steps, bounds=bounds, contrast=contrast
    )
