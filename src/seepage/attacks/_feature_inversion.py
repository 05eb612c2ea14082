"""Recover what a layer inside the network read, then find each input by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from seepage.attacks._agreement import residual
from seepage.attacks._cut_network import holds_layer_gradient, order_by_labels
from seepage.attacks.feature_recovery._exact_features import exact_features
from seepage.attacks.feature_recovery._features import Fallback, FeatureRecovery
from seepage.attacks.feature_recovery._softmax_features import softmax_features
from seepage.attacks.labels._infer_labels import CountAware
from seepage.core import BaseAttack, Certificate, Observation, Reconstruction, Rng, Trace
from seepage.core._usable_update import require_continuous
from seepage.core.errors import InvalidValue, require_at_least
from seepage.data._public_data import PublicData
from seepage.probing._hooks import read_layers
from seepage.search import Decoder, KnownMap, invert_maps
from seepage.search._map_decoder import has_enough

_RECOVERY = Fallback((exact_features(), softmax_features()))
_DECODER = Decoder()


@dataclass(frozen=True, kw_only=True)
class FeatureInversion(BaseAttack):
    """Inverts recovered features; the arguments are those of `feature_inversion`."""

    features: FeatureRecovery = _RECOVERY
    decoder: Decoder | None = _DECODER
    steps: int = 1_000

    def __post_init__(self) -> None:
        require_at_least(0, steps=self.steps)
        if not isinstance(self.features, FeatureRecovery):
            raise InvalidValue(
                f"expected features to be a FeatureRecovery, such as exact_features(), got "
                f"{self.features!r}"
            )

    def with_public(self, public: PublicData) -> FeatureInversion:
        """Return the attack with a decoder that learns from these inputs, unless it has others."""
        decoder = self.decoder
        if decoder is None or decoder.public is not None or not has_enough(public):
            return self
        return replace(self, decoder=replace(decoder, public=public))

    def check(self, observation: Observation) -> None:
        """Inputs must be numbers."""
        require_continuous(observation.task)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Recover features, put them in the order of the labels, and invert them."""
        task = observation.task
        found = self.features.recover(observation, rng=rng.fork("features"))
        labels = observation.labels
        if labels is None:
            labels = CountAware()(replace(observation, batch_size=len(found.values)))
        one_each = len(labels) == len(found.values)
        if one_each and holds_layer_gradient(found, observation) and not found.in_order:
            found = order_by_labels(labels, found, observation)
        known = KnownMap(found.layer, task.move_inputs(found.values), found.scaled)
        normalised = invert_maps(
            task,
            [known],
            decoder=self.decoder,
            steps=self.steps,
            rng=rng.fork("inversion"),
            training=task.mixes_examples,
        )
        with torch.no_grad():
            misfit = known.misfit(read_layers(task, [found.layer], normalised)[found.layer])
        inputs, left = task.domain.denormalise(normalised), (float(misfit.mean()),)
        trace = Trace(left, left)
        if not one_each:
            return Reconstruction(inputs, None, trace)
        certificate = Certificate(residual(observation, inputs, labels))
        return Reconstruction(inputs, labels, trace, certificate)


def feature_inversion(
    *,
    features: FeatureRecovery = _RECOVERY,
    decoder: Decoder | None = _DECODER,
    steps: int = 1_000,
) -> FeatureInversion:
    """Recover what a layer inside the network read, then find each input by itself.

    Neither gradients nor the rest of the batch are simulated: a decoder and a search with first
    derivatives invert the layers below. An audit gives the decoder the people whom nobody attacks.

    Args:
        features: Recovers the inputs of a fully connected layer. By default `exact_features` on a
            wide head, `softmax_features` on any other.
        decoder: Makes the first guess; None starts from noise, which is enough if the layers below
            lose little.
        steps: Steps of the search; see `seepage.search.invert_maps`.

    Example:
        >>> feature_inversion(steps=500).decoder.made_up
        True

    References:
        Dosovitskiy and Brox, 2016 (dosovitskiy2016inverting), the decoder; the rest is ours
    """
    return FeatureInversion(features=features, decoder=decoder, steps=steps)
