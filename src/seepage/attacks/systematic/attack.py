"""Recover features, then match gradients and features, on pixels or through a prior network."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from seepage.attacks.feature_recovery import FeatureRecovery, Features
from seepage.attacks.gradient_matching import (
    BatchNormStatistics,
    Engine,
    FeatureMatching,
    GradientMatching,
    Search,
)
from seepage.attacks.image_prior import PriorNetwork
from seepage.attacks.systematic.order import in_order_of
from seepage.attacks.usable import require_usable
from seepage.core import Observation, Reconstruction, Rng
from seepage.core.errors import InvalidValue
from seepage.core.task import batchnorm_layers


@dataclass(frozen=True, kw_only=True)
class Systematic:
    """A gradient matching attack that is given what else can be computed.

    Args:
        search: Of gradient matching; a term of batch statistics is left out on networks that have
            none.
        engine: How it is computed.
        features: What recovers the inputs of a layer first; None matches no features.
        feature_weight: Of the term that matches them.
        span_from: The batch size from which features are matched by their span instead of one by
            one.
        prior: The network that makes the images; None searches pixels.
    """

    search: Search
    engine: Engine = field(default_factory=Engine)
    features: FeatureRecovery | None = None
    feature_weight: float = 0.1
    span_from: int = 16
    prior: PriorNetwork | None = None

    def __post_init__(self) -> None:
        """Check the weight and what is recovered by."""
        if self.features is not None and not isinstance(self.features, FeatureRecovery):
            raise InvalidValue(
                f"expected features to be a FeatureRecovery, such as exact_features(), or None, "
                f"got {self.features!r}"
            )
        if not 0 <= self.feature_weight < float("inf"):
            raise InvalidValue(f"expected a feature weight >= 0, got {self.feature_weight!r}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Recover, put in order, and search."""
        require_usable(observation.update, observation.task)
        search = self._fitting(observation)
        if self.prior is not None:
            search = replace(search, generator=self.prior)
        if self.features is not None and observation.labels is not None:
            found = self.features.recover(observation, rng=rng.fork("features"))
            search = self._informed(search, found, observation)
        return GradientMatching(search, self.engine)(observation, rng=rng)

    def _fitting(self, observation: Observation) -> Search:
        if batchnorm_layers(observation.task.model):
            return self.search
        kept = (term for term in self.search.terms if not isinstance(term, BatchNormStatistics))
        return replace(self.search, terms=tuple(kept))

    def _informed(self, search: Search, found: Features, observation: Observation) -> Search:
        labels = observation.labels
        assert labels is not None
        one_each = len(found.values) == len(labels)
        if one_each and labels.ndim == 1:
            found = in_order_of(labels, found, observation)
        alone = one_each and len(labels) < self.span_from
        kind: Literal["cosine", "distance", "span"] = "span"
        if alone:
            kind = "distance" if found.scaled else "cosine"
        term = FeatureMatching(
            weight=self.feature_weight,
            layer=found.layer,
            features=found.values if alone else found.span.T,
            labels=labels if alone and labels.ndim == 1 else None,
            comparison=kind,
        )
        search = replace(search, terms=(*search.terms, term))
        if self.prior is not None and one_each:
            search = replace(search, generator=self.prior.given(found.values))
        return search
