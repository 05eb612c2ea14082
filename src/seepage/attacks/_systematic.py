"""Recover features, then match gradients and features, on pixels or through a prior network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor

from seepage.attacks._cut_network import (
    cut_network,
    holds_layer_gradient,
    observe_inputs,
    observe_mixtures,
    order_by_labels,
)
from seepage.attacks._image_prior import PriorNetwork
from seepage.attacks.feature_recovery._estimated_features import estimated_features
from seepage.attacks.feature_recovery._exact_features import exact_features
from seepage.attacks.feature_recovery._features import Fallback, FeatureRecovery, Features
from seepage.attacks.feature_recovery._softmax_features import softmax_features
from seepage.attacks.labels._read_logits import inner_product
from seepage.core import Attack, Observation, Rng, SideBySideAttack
from seepage.core._attack import Result
from seepage.core._task import batchnorm_layers
from seepage.core.errors import (
    InvalidValue,
    MissingKnowledge,
    NotApplicable,
    SeepageError,
    require_at_least,
)
from seepage.numerics._schedules import CosineDecay, StepDecay
from seepage.search._engine import Engine
from seepage.search._feature_matching import FeatureMatching
from seepage.search._fidelity import LayerwiseCosine
from seepage.search._matching import GradientMatching, together
from seepage.search._optimisers import Adam
from seepage.search._priors import BatchNormStatistics, weigh_variation
from seepage.search._search import NormalStart, Search, pick_setting


@dataclass(frozen=True, kw_only=True)
class Systematic(SideBySideAttack):
    """Gradient matching that also uses what can be computed beforehand.

    Args:
        search: The search. A term of batch statistics is left out on networks that have none.
        given: Largest residual of recovered features from which everything above their layer is
            computed, instead of simulated from candidates (`cut_network`); examples must be told
            apart. None gives nothing.

    The other arguments are those of `systematic`. Examples whose features left no trace are matched
    by their gradient alone.
    """

    search: Search
    engine: Engine = field(default_factory=Engine)
    features: FeatureRecovery | None = None
    feature_weight: float = 0.1
    span_from: int = 16
    prior: PriorNetwork | None = None
    given: float | None = None

    def __post_init__(self) -> None:
        if self.features is not None and not isinstance(self.features, FeatureRecovery):
            raise InvalidValue(
                f"expected features to be a FeatureRecovery, such as exact_features(), or None, "
                f"got {self.features!r}"
            )
        if not 0 <= self.feature_weight < float("inf"):
            raise InvalidValue(f"expected a feature weight >= 0, got {self.feature_weight!r}")
        require_at_least(0, given=self.given)

    @property
    def needs_labels(self) -> bool:
        """Unless the labels are searched for."""
        return not self.search.seek_labels

    def run_many(self, observations: Sequence[Observation], rngs: Sequence[Rng]) -> list[Result]:
        """Recover the features of every observation, then search side by side.

        Only searches that match the same kind of features run in one group.

        Returns:
            One reconstruction for each observation, or the error if its features cannot be
            recovered.
        """
        prepared: dict[int, tuple[Search, Observation]] = {}
        found: dict[int, Result] = {}
        groups: dict[object, list[int]] = defaultdict(list)
        for place, (observation, rng) in enumerate(zip(observations, rngs, strict=True)):
            try:
                prepared[place] = self._prepare(observation, rng)
            except SeepageError as error:
                found[place] = error
            else:
                groups[_group_key(prepared[place][0])].append(place)
        for places in groups.values():
            guesses = together(
                [GradientMatching(prepared[place][0], self.engine) for place in places],
                [prepared[place][1] for place in places],
                rngs=[rngs[place] for place in places],
            )
            for place, guess in zip(places, guesses, strict=True):
                # The search may have seen the known labels in another form.
                known = observations[place].labels
                found[place] = guess if known is None else replace(guess, labels=known)
        return [found[place] for place in range(len(observations))]

    def _prepare(self, observation: Observation, rng: Rng) -> tuple[Search, Observation]:
        """Return the search to run, and the observation to run it on."""
        search = self.search
        if not batchnorm_layers(observation.task.model):
            kept = (term for term in search.terms if not isinstance(term, BatchNormStatistics))
            search = replace(search, terms=tuple(kept))
        if self.prior is not None:
            search = replace(search, generator=self.prior)
        # If the gradient at the logits was read (`ReadLogits`), no loss is left to recover by.
        read = observation.task.loss is inner_product
        if self.features is None or observation.labels is None or read:
            return search, observation
        mixtures, mixing = observe_mixtures(observation)
        found = _recover_features(self.features, mixtures, rng.fork("features"))
        labels = mixtures.labels
        assert labels is not None
        one_each = len(found.values) == len(labels)
        labelled = one_each and holds_layer_gradient(found, observation)
        if labelled and not found.in_order:
            found = order_by_labels(labels, found, mixtures)
        exact = found.scaled and found.told_apart
        given = self.given is not None and exact and found.residual <= self.given
        lower = cut_network(mixtures, found) if labelled and given else None
        if lower is not None and mixing is not None:
            lower = observe_inputs(lower, mixing)
        if self.prior is not None and one_each and mixing is None:
            search = replace(search, generator=replace(self.prior, features=found.values))
        classes = labels if labelled and labels.ndim == 1 else None
        term = self._feature_term(found, classes, len(labels), ordered=lower is not None)
        return replace(search, terms=(*search.terms, term)), lower or observation

    def _feature_term(
        self, found: Features, labels: Tensor | None, size: int, *, ordered: bool
    ) -> FeatureMatching:
        alone = ordered or len(found.values) <= size < self.span_from
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


def _recover_features(method: FeatureRecovery, observation: Observation, rng: Rng) -> Features:
    """Recover the features of every example, or of those that left a trace.

    If a network is sure of an example, the example's gradient is lost in the rounding of the
    others. The others can still be recovered.
    """
    try:
        return method.recover(observation, rng=rng)
    except NotApplicable as reason:
        uncounted = replace(observation, batch_size=None, labels=None)
        try:
            return method.recover(uncounted, rng=rng)
        except (MissingKnowledge, NotApplicable):
            raise reason from None


def _group_key(search: Search) -> object:
    """A key, equal for searches that differ in numbers only and so can run side by side."""
    kinds = [
        (term.layer, term.comparison, term.features.shape, term.labels is None, term.ordered)
        for term in search.terms
        if isinstance(term, FeatureMatching)
    ]
    prior = search.generator
    return *kinds, isinstance(prior, PriorNetwork) and prior.features is not None


_ENGINE = Engine()
# The first that explains the update is used, or else the one that leaves least unexplained.
_RECOVERIES = exact_features(), softmax_features(), estimated_features()


def _make_adam(prior: PriorNetwork | None, step_size: float | None, signed: bool) -> Adam:
    """Adam for pixels, or with smaller steps for the weights of a prior network."""
    size = step_size if step_size is not None else (0.1 if prior is None else 1e-3)
    return Adam(step_size=size, sign="hard" if signed and prior is None else "none")


_SETTINGS = {"paper": 10_000}


def systematic(
    *,
    setting: Literal["paper"] | None = None,
    features: FeatureRecovery | None = None,
    prior: PriorNetwork | None = None,
    weighting: Literal["entries"] | float = "entries",
    normalised: bool = True,
    tv: float | Sequence[float] = 1e-2,
    batchnorm: float = 1e-3,
    first_layer: float = 1.0,
    feature_weight: float = 0.1,
    span_from: int = 16,
    steps: int | None = None,
    restarts: int = 1,
    step_size: float | None = None,
    signed: bool = True,
    spread: float = 1.0,
    engine: Engine = _ENGINE,
) -> Attack:
    """Reweighted cosines with total variation, batch statistics and recovered features.

        min_x  sum_i w_i (1 - cos_i(x)) + a_TV R_TV + a_BN R_BN + a_f R_feature

    Meant for `Threat(knows_labels=True, batchnorm="exact")`. Without features and prior it is the
    paper's ablation "without feature matching", on pixels.

    Args:
        setting: "paper" takes its 10000 steps; the default is 1000.
        features: Recovers the inputs of a fully connected layer first, such as
            `exact_features()`; None for nothing.
        prior: The untrained network that makes the images; None searches pixels.
        weighting: Weight of each tensor's cosine: its number of entries, as in the paper, or the
            observed norm to this power.
        normalised: Whether these weights are divided by their sum; the paper's are not.
        tv: Weight of the total variation; a pair falls from the first to the second (not in the
            paper).
        batchnorm: Weight of the batch-normalisation statistics; not used on networks without.
        first_layer: Multiplier of the first layer's batch statistics. If a client normalises by
            its own batch, only they show the brightness and contrast of the whole batch.
        feature_weight: Weight of the feature matching.
        span_from: The batch size from which features are matched by their span instead of one by
            one.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        step_size: Of Adam. The default is 0.1 on pixels, and 0.001 on the weights of a prior
            network.
        signed: Whether Adam sees only the sign of the gradient of pixels.
        spread: Standard deviation of the random start around the mean image.
        engine: How it is computed.

    Example:
        >>> from seepage.attacks.feature_recovery import exact_features
        >>> attack = systematic(features=exact_features(), prior=PriorNetwork(width=16), steps=500)
        >>> attack.prior, attack.feature_weight
        (PriorNetwork(width=16, multipliers=(1, 2, 2, 2), attention=16), 0.1)

    Deviations:
        The paper takes steps of 0.00001 on the weights of its network, whose size it does not
        state. Features are assigned to inputs by their labels, which the gradient of their layer
        tells, and greedily among inputs of one class, at every step; the paper does so greedily
        and once, by comparing them with the actual features, which an adversary does not have.
        Features of known length are matched by their distance. Weights of the cosines sum to one
        unless `normalised` is False.

    References:
        Liu et al., 2024, Eq. 4 and appendix F (liu2024systematic)
    """
    if steps is None:
        steps = pick_setting(setting, _SETTINGS, default=1_000)
    return Systematic(
        search=Search(
            terms=(
                LayerwiseCosine(weighting=weighting, normalised=normalised),
                weigh_variation(tv, steps=steps),
                BatchNormStatistics(weight=batchnorm, first_layer=first_layer),
            ),
            optimiser=_make_adam(prior, step_size, signed),
            schedule=StepDecay(),
            steps=steps,
            restarts=restarts,
            start=NormalStart(spread=spread),
        ),
        engine=engine,
        features=features,
        feature_weight=feature_weight,
        span_from=span_from,
        prior=prior,
    )


def teacher_forced(
    *,
    features: FeatureRecovery | None = None,
    prior: PriorNetwork | None = None,
    weighting: Literal["entries"] | float = 1.0,
    tv: float | Sequence[float] = 3e-2,
    feature_weight: float = 1e-2,
    given: float = 1.0,
    steps: int = 1_000,
    restarts: int = 1,
    step_size: float | None = None,
    signed: bool = True,
    spread: float = 1.0,
    engine: Engine = _ENGINE,
) -> Attack:
    """`systematic`, but known quantities replace simulated ones.

        min_x  sum_i w_i (1 - cos_i(x; u, mu, sigma)) + a_TV R_TV + a_f R_feature

    A search that simulates the client runs the whole network on its current candidates. Two things
    need not be simulated, because the update or the server tells them. First, the features u of
    every input determine the logits and what each input sends back; the rest of the update is
    linear in that. Second, every layer normalises candidates by the private batch's statistics mu
    and sigma, if they are known. At the truth nothing changes. On the way there each input follows
    its own gradient, and not that of whatever the candidates happen to look like.

    Meant for `Threat(knows_labels=True, batchnorm="exact")` and networks whose head gives its
    inputs away: a wide one, or any classifier with more classes than there are examples.

    Args:
        features: Recovers the inputs of a fully connected layer first. The default is
            `exact_features()` if the network ends in two such layers that tell,
            `softmax_features()` if the last one does, and `estimated_features()` otherwise.
        prior: The untrained network that makes the images; None searches pixels.
        weighting: Weight of each tensor's cosine: the observed norm to this power, or its number
            of entries.
        tv: Weight of the total variation; a pair falls from the first to the second.
        feature_weight: Weight of the feature matching.
        given: Largest relative residual of features that replace simulated ones; worse ones are
            only matched. By default all are given: in trials behind defenses, rough features
            recovered as much as none or more.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        step_size: Of Adam, as for `systematic`.
        signed: Likewise.
        spread: Likewise.
        engine: How it is computed.

    Example:
        >>> teacher_forced(steps=500).given
        1.0

    Deviations:
        Ours; no paper has it. There is no term of batch statistics: the network is given them
        instead. Step sizes fall as a cosine. These and the weights were chosen in trials on images
        that no recorded run uses.

    References:
        Liu et al., 2024, Eq. 4 (liu2024systematic), for the objective it starts from
    """
    return Systematic(
        search=Search(
            terms=(LayerwiseCosine(weighting=weighting), weigh_variation(tv, steps=steps)),
            optimiser=_make_adam(prior, step_size, signed),
            schedule=CosineDecay(),
            steps=steps,
            restarts=restarts,
            start=NormalStart(spread=spread),
            given_statistics=True,
        ),
        engine=engine,
        features=features if features is not None else Fallback(_RECOVERIES),
        feature_weight=feature_weight,
        prior=prior,
        given=given,
    )
