"""Recover features, then match gradients and features, on pixels or through a prior network."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from seepage.attacks.feature_recovery import FeatureRecovery, Features
from seepage.attacks.gradient_matching import (
    BatchNormStatistics,
    Engine,
    FeatureMatching,
    GradientMatching,
    Search,
    together,
)
from seepage.attacks.image_prior import PriorNetwork
from seepage.attacks.labels.read_logits import inner_product
from seepage.attacks.systematic.below import below
from seepage.attacks.systematic.mixtures import of_inputs, of_mixtures
from seepage.attacks.systematic.order import in_order_of, tells_labels
from seepage.attacks.usable import require_usable
from seepage.core import Observation, Reconstruction, Rng
from seepage.core.errors import InvalidValue, MissingKnowledge, NotApplicable, SeepageError
from seepage.core.partly import PartlyFailed
from seepage.core.rng import require_key
from seepage.core.task import batchnorm_layers


@dataclass(frozen=True, kw_only=True)
class Systematic:
    """A gradient matching attack that is given what else can be computed.

    Args:
        search: Of gradient matching; a term of batch statistics is left out on networks that have
            none.
        engine: How it is computed.
        features: What recovers the inputs of a layer first; None matches no features. People whose
            features left no trace are matched by their gradient alone.
        feature_weight: Of the term that matches them.
        span_from: The batch size from which features are matched by their span instead of one by
            one.
        prior: The network that makes the images; None searches pixels.
        given: Largest residual of recovered features from which everything above their layer is
            computed, instead of simulated from candidates (`below`); people must have been told
            apart. None gives nothing.
    """

    search: Search
    engine: Engine = field(default_factory=Engine)
    features: FeatureRecovery | None = None
    feature_weight: float = 0.1
    span_from: int = 16
    prior: PriorNetwork | None = None
    given: float | None = None

    def __post_init__(self) -> None:
        """Check the weight and what is recovered by."""
        if self.features is not None and not isinstance(self.features, FeatureRecovery):
            raise InvalidValue(
                f"expected features to be a FeatureRecovery, such as exact_features(), or None, "
                f"got {self.features!r}"
            )
        if not 0 <= self.feature_weight < float("inf"):
            raise InvalidValue(f"expected a feature weight >= 0, got {self.feature_weight!r}")
        if self.given is not None and not self.given >= 0:
            raise InvalidValue(f"expected given >= 0 or None, got {self.given!r}")

    def __call__(self, observation: Observation, *, rng: Rng) -> Reconstruction:
        """Recover, put in order, and search."""
        try:
            return self.many((observation,), rngs=(rng,))[0]
        except PartlyFailed as alone:
            raise alone.failed[0] from None

    def many(
        self, observations: Sequence[Observation], *, rngs: Sequence[Rng]
    ) -> list[Reconstruction]:
        """Recover the features of every observation, then search side by side.

        Those of which other features became known than of the rest are searched for apart.

        Args:
            observations: Of equal batch size, made with the same task, client and threat.
            rngs: One key for each.

        Raises:
            PartlyFailed: Of some no features can be recovered; it holds what the others gave.
        """
        began = time.perf_counter()
        prepared: dict[int, tuple[Search, Observation]] = {}
        failed: dict[int, Exception] = {}
        for place, (observation, rng) in enumerate(zip(observations, rngs, strict=True)):
            try:
                prepared[place] = self._prepared(observation, rng)
            except SeepageError as error:
                failed[place] = error
        found: dict[int, Reconstruction] = {}
        for places in _alike({place: search for place, (search, _) in prepared.items()}):
            guesses = together(
                [GradientMatching(prepared[place][0], self.engine) for place in places],
                [prepared[place][1] for place in places],
                rngs=[rngs[place] for place in places],
            )
            found.update(zip(places, guesses, strict=True))
        # With the time that features took, which no search knows of.
        share = (time.perf_counter() - began) / max(len(observations), 1)
        found = {
            place: replace(
                _labelled(guess, observations[place]), trace=replace(guess.trace, seconds=share)
            )
            for place, guess in found.items()
        }
        if failed:
            raise PartlyFailed(self, found, failed)
        return [found[place] for place in range(len(observations))]

    def _prepared(self, observation: Observation, rng: Rng) -> tuple[Search, Observation]:
        """What is searched for, and in which observation."""
        require_key(rng)
        require_usable(observation.update, observation.task)
        search = self._fitting(observation)
        if self.prior is not None:
            search = replace(search, generator=self.prior)
        # Where the gradient at the logits was read (`ReadLogits`), no loss is left to recover by.
        read = observation.task.loss is inner_product
        if self.features is not None and observation.labels is not None and not read:
            return self._informed(search, self.features, observation, rng.fork("features"))
        return search, observation

    def _fitting(self, observation: Observation) -> Search:
        if batchnorm_layers(observation.task.model):
            return self.search
        kept = (term for term in self.search.terms if not isinstance(term, BatchNormStatistics))
        return replace(self.search, terms=tuple(kept))

    def _informed(
        self, search: Search, method: FeatureRecovery, observation: Observation, rng: Rng
    ) -> tuple[Search, Observation]:
        mixtures, mixing = of_mixtures(observation)
        found = _recovered(method, mixtures, rng)
        labels = mixtures.labels
        assert labels is not None
        one_each = len(found.values) == len(labels)
        labelled = one_each and tells_labels(found, observation)
        if labelled and not found.in_order:
            found = in_order_of(labels, found, mixtures)
        lower = below(mixtures, found) if labelled and self._gives(found) else None
        if lower is not None and mixing is not None:
            lower = of_inputs(lower, mixing)
        if self.prior is not None and one_each and mixing is None:
            search = replace(search, generator=self.prior.given(found.values))
        classes = labels if labelled and labels.ndim == 1 else None
        term = self._matching(found, classes, len(labels), ordered=lower is not None)
        return replace(search, terms=(*search.terms, term)), lower or observation

    def _gives(self, found: Features) -> bool:
        exact = found.scaled and found.told_apart
        return self.given is not None and exact and found.residual <= self.given

    def _matching(
        self, found: Features, labels: Tensor | None, people: int, *, ordered: bool
    ) -> FeatureMatching:
        alone = ordered or len(found.values) <= people < self.span_from
        kind: Literal["cosine", "distance", "span"] = "span"
        if alone:
            kind = "distance" if found.scaled else "cosine"
        return FeatureMatching(
            weight=self.feature_weight,
            layer=found.layer,
            features=found.values if alone else found.span.T,
            labels=labels if alone and not ordered else None,
            comparison=kind,
            ordered=ordered,
        )


def _labelled(guess: Reconstruction, observation: Observation) -> Reconstruction:
    """The guess with the labels that were known, which the search may have seen in another form."""
    return guess if observation.labels is None else replace(guess, labels=observation.labels)


def _recovered(method: FeatureRecovery, observation: Observation, rng: Rng) -> Features:
    """The features of everybody, or of those who left a trace.

    The gradient of people a network is sure of is lost in the rounding of the others'; what the
    others are need not be given up for it.
    """
    try:
        return method.recover(observation, rng=rng)
    except NotApplicable as reason:
        uncounted = replace(observation, batch_size=None, labels=None)
        try:
            return method.recover(uncounted, rng=rng)
        except (MissingKnowledge, NotApplicable):
            raise reason from None


def _alike(searches: Mapping[int, Search]) -> list[list[int]]:
    """The places of searches that differ in numbers only, group by group."""
    groups: dict[object, list[int]] = defaultdict(list)
    for place, search in searches.items():
        terms = [term for term in search.terms if isinstance(term, FeatureMatching)]
        # Which layer, compared how, with how many features and whose labels; and the prior's.
        kind = [
            (t.layer, t.comparison, t.features.shape, t.labels is None, t.ordered) for t in terms
        ]
        informed = isinstance(search.generator, PriorNetwork) and search.generator.informed
        groups[(*kind, informed)].append(place)
    return list(groups.values())
