"""The cocktail party: the inputs of a fully connected layer by blind source separation."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from seepage.attacks.exact_batch.labels import read_labels
from seepage.attacks.feature_recovery.contrast import edges, entries
from seepage.attacks.feature_recovery.features import Features
from seepage.attacks.feature_recovery.mixture import Mixture, read_mixture
from seepage.attacks.feature_recovery.negentropy import (
    Contrast,
    descend,
    fixed_point,
    whitening,
)
from seepage.attacks.feature_recovery.scale import outside, scales
from seepage.attacks.usable import require_usable
from seepage.core import Observation, Reconstruction, Rng, Trace
from seepage.core.errors import InvalidValue, NotApplicable, UnknownName
from seepage.core.precision import precision
from seepage.core.rng import require_key


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
        # Layers are known by what they compute, which rounding on a card would blur.
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
