"""The cocktail party: the inputs of a fully connected layer by blind source separation.

Pixels of natural images are neither sparse nor independent between images: all are bright in the
sky and dark at the ground. Differences of neighbours are both, and since they are linear, those of
a mixture are the same mixture of those of the sources.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.exact_batch.assign_labels import read_labels
from seepage.attacks.feature_recovery.features import Features
from seepage.attacks.feature_recovery.negentropy import (
    Contrast,
    Mixture,
    descend,
    fixed_point,
    read_mixture,
    whitening,
)
from seepage.core import Observation, Reconstruction, Rng, Trace
from seepage.core.device import precision
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.core.rng import require_key
from seepage.probing.usable_update import require_usable


def edges(sources: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Differences of neighbours and second differences, `(B, G, C)`: of G places in C channels.

    The channels of a place stay together, because an edge is seen in all of them.

    Args:
        sources: `(B, n)`, or mixtures of them.
        shape: Of one source, `(C, ...)`.

    Example:
        >>> edges(torch.tensor([[0.0, 1.0, 1.0, 5.0]]), (1, 4)).flatten()
        tensor([ 1.0000,  0.0000,  4.0000, -0.5000,  2.0000])
    """
    arrays = sources.reshape(-1, *shape)
    axes = range(2, arrays.ndim)
    slopes = [arrays.diff(dim=axis) for axis in axes if arrays.shape[axis] > 1]
    inner = [arrays.diff(n=2, dim=axis) for axis in axes if arrays.shape[axis] > 2]
    if len(inner) == len(axes):
        bends = [_centre(bend, axis, axes) for axis, bend in zip(axes, inner, strict=True)]
        slopes.append(torch.stack(bends).sum(0) / 2)
    return torch.cat([slope.flatten(2).transpose(1, 2) for slope in slopes], dim=1)


def entries(sources: Tensor) -> Tensor:
    """The entries themselves, `(B, d, 1)`: features behind a ReLU are sparse as they are."""
    return sources.unsqueeze(2)


def _centre(bends: Tensor, axis: int, axes: range) -> Tensor:
    """Cut the other axes to the places that have a neighbour on both sides."""
    for other in axes:
        if other != axis:
            bends = bends.narrow(other, 1, bends.shape[other] - 2)
    return bends


# The part of the entries that may leave the bounds when a source is stretched to fill them.
_LEAVING = 0.005


def scales(mixture: Mixture, unmixing: Tensor) -> Tensor:
    """What to divide the rows A M by, `(B,)`, differentiable where the bias gives it.

    With a bias the gradient of the bias is D 1, so that A maps it to the lengths themselves. Where
    there is none, sources of one sign are made positive, and sources with bounds on both sides
    stretched to fill them, with the sign that lets them grow further; others have none.
    """
    if mixture.total is not None:
        return unmixing @ mixture.total
    sources = (unmixing @ mixture.mixtures).detach()
    if bool(mixture.high.isfinite().all()):
        both = torch.stack([_stretch(sign * sources, mixture) for sign in (1.0, -1.0)])
        return torch.where(both[0] >= both[1], 1 / both[0], -1 / both[1])
    return torch.where(sources.sum(1) < 0, -1.0, 1.0).to(sources)


def outside(mixture: Mixture, unmixing: Tensor) -> Tensor:
    """How far the sources leave their bounds: the mean over entries, summed over sources."""
    sources = (unmixing @ mixture.mixtures) / scales(mixture, unmixing).unsqueeze(1)
    below = (mixture.low - sources).clamp_min(0)
    above = (sources - mixture.high).clamp_min(0)
    return (below + above).mean(1).sum()


def _stretch(sources: Tensor, mixture: Mixture) -> Tensor:
    """The largest factor `(B,)` with which nearly all entries stay within the bounds."""
    limits = torch.where(sources > 0, mixture.high / sources, mixture.low / sources)
    return limits.nan_to_num(torch.inf, torch.inf).quantile(_LEAVING, dim=1)


@dataclass(frozen=True, kw_only=True)
class CocktailParty:
    """Separates the inputs of a fully connected layer, of which its gradient holds mixtures.

    dL/dW = D X has the rank B of the batch, so its rows are mixtures of the B inputs X, and only
    a matrix A of B x B is unknown: X = A M. Sources are less Gaussian than mixtures of them, which
    is what `Contrast` measures. Every restart is a fixed point of FastICA, the best of them ends
    as the start of a descent without the constraint that sources be uncorrelated, and within the
    bounds that sources have: the range of pixels, or zero behind a ReLU. No choice uses more than
    the value of the contrast.

    As an attack it gives the inputs of a network that begins with a fully connected layer; as a
    `FeatureRecovery` those of any fully connected layer. Neither needs the labels, a ReLU, or the
    batch size, which is the rank where nothing was added to the update.

    Args:
        layer: Whose inputs to recover; None for the first fully connected layer.
        restarts: Random starts, of which the one with the lowest contrast is kept.
        steps: Of L-BFGS, in the end.
        bounds: Weight of the distance by which sources leave their bounds.
        contrast: Of inputs of the network, what is measured: the "edges", which are sparse, or the
            "pixels" less their mean, as in the paper.

    References:
        Kariyappa et al., 2023 (kariyappa2023cocktail); Hyvarinen, 1999 (hyvarinen1999fast)
    """

    layer: str | None = None
    restarts: int = 2
    steps: int = 300
    bounds: float = 3.0
    contrast: Literal["edges", "pixels"] = "edges"

    def __post_init__(self) -> None:
        """Check the counts."""
        for name in ("restarts", "steps"):
            if getattr(self, name) < 1:
                raise InvalidValue(f"expected {name} >= 1, got {getattr(self, name)!r}")
        if not 0 <= self.bounds < float("inf"):
            raise InvalidValue(f"expected bounds >= 0, got {self.bounds!r}")
        if self.contrast not in ("edges", "pixels"):
            raise UnknownName("contrast", self.contrast, ("edges", "pixels"))

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Separate the inputs of the network."""
        require_key(rng)
        began = time.perf_counter()
        task = observation.task
        mixture = self._mixture(observation)
        if not mixture.natural:
            raise NotApplicable(
                f"the layer {mixture.layer!r} of {task.name} does not read its input, so that "
                "features come back and not inputs; use recover(), or systematic(features=...)"
            )
        unmixing, trace = self._separated(mixture, rng)
        reference = next(iter(task.parameters.values()))
        normalised = (unmixing @ mixture.mixtures).reshape(-1, *mixture.shape)
        inputs = task.domain.project(task.domain.denormalise(normalised)).to(reference.dtype)
        # X = A M and D X = span M, hence D = span A^-1.
        gradients = (mixture.span @ torch.linalg.inv(unmixing)).T
        labels = read_labels(task, mixture.layer, inputs, gradients, observation.labels)
        return Reconstruction(inputs, labels, replace(trace, seconds=time.perf_counter() - began))

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Separate the inputs of the layer."""
        require_key(rng)
        mixture = self._mixture(observation)
        unmixing, _ = self._separated(mixture, rng)
        found = (unmixing @ mixture.mixtures).to(next(iter(observation.update)).dtype)
        span = torch.linalg.qr(mixture.mixtures.T).Q.to(found.dtype)
        return Features(mixture.layer, found, span, mixture.total is not None, mixture.residual)

    def _mixture(self, observation: Observation) -> Mixture:
        require_usable(observation.update, observation.task)
        # Layers are recognised by what they compute; TF32 rounding on a GPU would hide that.
        with precision("float32"):
            return read_mixture(observation, self.layer)

    def _separated(self, mixture: Mixture, rng: Rng) -> tuple[Tensor, Trace]:
        """The matrix A with X = A M, and how it was found."""
        samples = self._samples(mixture)
        white = whitening(samples)
        samples = torch.einsum("ij,jgc->igc", white, samples)
        free = Contrast(samples, None, 0.0)
        starts = []
        for restart in range(self.restarts):
            key = rng.fork("restart", restart)
            orthogonal = fixed_point(samples, steps=self.steps, rng=key)
            starts.append(descend(free, orthogonal, steps=self.steps))
        finals = tuple(min(values) for _, values in starts)
        best, values = starts[finals.index(min(finals))]
        if mixture.total is not None or not mixture.natural:
            bounded = Contrast(samples, partial(_outside, mixture, white), self.bounds)
            best, values = descend(bounded, best, steps=self.steps)
        unmixing = best @ white
        unmixing = unmixing / scales(mixture, unmixing).unsqueeze(1)
        return unmixing, Trace(tuple(values), finals, device=str(unmixing.device))

    def _samples(self, mixture: Mixture) -> Tensor:
        if not mixture.natural:
            return entries(mixture.mixtures)
        if self.contrast == "edges":
            return edges(mixture.mixtures, mixture.shape)
        return entries(mixture.mixtures - mixture.mixtures.mean(1, keepdim=True))


def _outside(mixture: Mixture, white: Tensor, unmixing: Tensor) -> Tensor:
    return outside(mixture, unmixing @ white)


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
        layer: Whose inputs to recover; None for the first fully connected layer. An attack needs
            one that reads the input of the network; `recover` takes any.
        restarts: Random starts, of which the one with the lowest contrast is kept.
        steps: Of L-BFGS, in the end.
        bounds: Weight of the distance by which sources leave their bounds.
        contrast: Of inputs of the network, what is measured: the "edges", which are sparse, or the
            "pixels" less their mean, as in the paper.

    Example:
        >>> cocktail_party(restarts=3)
        CocktailParty(layer=None, restarts=3, steps=300, bounds=3.0, contrast='edges')

    Deviations:
        The paper separates pixels, adds a penalty on cosines between the rows of A and a total
        variation, and the code released with it multiplies the negentropy by zero. Pixels of
        images are neither sparse nor uncorrelated between images, and negentropy of them misleads
        (papers/benchmarks/cocktail_party.py has both). Here it is taken of differences of
        neighbours, where it is a total variation at the same time; decorrelation is the determinant
        that belongs to it; the bias gradient gives sign and size; pixels must lie in their range.

    References:
        Kariyappa et al., 2023 (kariyappa2023cocktail)
    """
    return CocktailParty(
        layer=layer, restarts=restarts, steps=steps, bounds=bounds, contrast=contrast
    )
