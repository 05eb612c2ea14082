"""`feature_maps`: whole batches out of trained convolutional networks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seepage.attacks._agreement import residual
from seepage.attacks._applicability import applies_to
from seepage.attacks.exact_batch._assign_labels import match_one_to_one
from seepage.attacks.feature_maps._recover_maps import (
    FoundMaps,
    recover_maps,
    require_maps,
)
from seepage.attacks.labels._infer_labels import try_labels
from seepage.core import BaseAttack, Certificate, Observation, Reconstruction, Rng
from seepage.core._rng import require_key
from seepage.core.errors import require_at_least
from seepage.data._public_data import PublicData, make_up
from seepage.search import Decoder, invert_maps
from seepage.search._map_decoder import has_enough

_DECODER = Decoder()
_MADE_UP = 256
# The confidence in the image of a person who was told apart; it is never exact.
_SURENESS = 0.9


@dataclass(frozen=True, kw_only=True)
class FeatureMaps(BaseAttack):
    """Recovers everybody's feature maps exactly, and then each image; see `feature_maps`."""

    decoder: Decoder | None = _DECODER
    steps: int = 2_000

    def __post_init__(self) -> None:
        require_at_least(0, steps=self.steps)

    def with_public(self, public: PublicData) -> FeatureMaps:
        """The same attack with a decoder that learns from these, unless it has its own."""
        decoder = self.decoder
        if decoder is None or decoder.public is not None or not has_enough(public):
            return self
        return replace(self, decoder=replace(decoder, public=public))

    def check(self, observation: Observation) -> None:
        """Raise `NotApplicable` unless some layer may hold everybody's feature maps."""
        require_maps(observation)

    def recover(self, observation: Observation, *, rng: Rng) -> FoundMaps:
        """Find the feature maps alone."""
        require_key(rng)
        return recover_maps(observation, rng=rng)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Recover the maps, and invert them."""
        task = observation.task
        found = recover_maps(observation, rng=rng.fork("maps"))
        normalised = invert_maps(
            task,
            [found.known],
            decoder=self.decoder,
            steps=self.steps,
            rng=rng.fork("inversion"),
            training=task.mixes_examples,
        )
        images = task.to_inputs(normalised)
        labels = _order_labels(observation, images, found.batch_size)
        told = images.new_ones(found.batch_size, 1)
        if found.missing:
            told[len(images) :] = 0
            images = torch.cat([images, self._typical(observation, found.missing)])
        certificate = None
        if labels is not None:
            certificate = Certificate(residual(observation, images, labels))
        return Reconstruction(images, labels, certificate=certificate, confidence=_SURENESS * told)

    def _typical(self, observation: Observation, count: int) -> Tensor:
        """The best single guess, for those of whom nothing is known."""
        task, public = observation.task, None if self.decoder is None else self.decoder.public
        public = public or make_up(task.domain, _MADE_UP, rng=Rng(0).fork("typical"))
        typical = task.domain.typical(task.move_inputs(public.inputs))
        return typical.expand(count, *task.domain.shape)


def _order_labels(observation: Observation, images: Tensor, size: int) -> Tensor | None:
    """Known or inferred labels in the order of the images; those of the missing come last."""
    labels = observation.labels
    if labels is None:
        labels = try_labels(observation, size=size)
    if labels is None or labels.ndim != 1 or labels.is_floating_point() or len(labels) != size:
        return None
    with torch.no_grad():
        outputs = observation.task.outputs(observation.task.parameters, images)
    if outputs.ndim != 2:
        return None
    labels = labels.to(outputs.device)
    chosen = match_one_to_one(outputs.log_softmax(1)[:, labels])
    rest = torch.ones(len(labels), dtype=torch.bool, device=labels.device)
    rest[chosen] = False
    return torch.cat([labels[chosen], labels[rest]])


@applies_to(require=require_maps)
def feature_maps(*, decoder: Decoder | None = _DECODER, steps: int = 2_000) -> FeatureMaps:
    """Whole batches out of trained convolutional networks: everybody's feature maps, then images.

    The weight gradient of a convolution is a sum, over people and positions, of errors times
    patches. While a batch has fewer patches than the layer has outputs, the row space of the
    gradient holds every patch that the layer read. Patches overlap, so only mixtures of the true
    feature maps have all theirs in that space. Behind a ReLU a map has zeros that mixtures lack:
    these tell people apart. Linear equations give the scale of each map and what the layer below
    read, also where normalisation by the batch hides both. What is left is to invert the feature
    map of each image by itself: a decoder that public inputs taught makes a first guess, and a
    search through the layers below improves it. No labels, no second derivatives.

    The confidence of a guess is above zero for those who were told apart. In evaluation mode people
    whose loss is nearly zero are missing: their share of the update is below its rounding.

    Args:
        decoder: Makes the first guess; `sp.Decoder(public)` learns from public inputs, and an audit
            gives it the people whom nobody attacks. Without any it learns from made-up ones, which
            costs quality. None starts from noise.
        steps: Steps of the search behind it.

    Example:
        >>> feature_maps(steps=500).decoder.made_up
        True

    Deviations:
        Ours; the nearest published ideas are the spans of fully connected layers and of tokens, and
        one image in a chain of convolutions.

    References:
        Dimitrov et al., 2024 (dimitrov2024spear); Petrov et al., 2024 (petrov2024dager); Zhu and
        Blaschko, 2021 (zhu2021recursive)
    """
    return FeatureMaps(decoder=decoder, steps=steps)
