"""The recipes: the paper's strong attack, and ours, which simulates only what is unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from seepage.attacks.feature_recovery import (
    FeatureRecovery,
    FirstOf,
    exact_features,
    likely_features,
    softmax_features,
)
from seepage.attacks.gradient_matching import (
    Adam,
    BatchNormStatistics,
    CosineDecay,
    Engine,
    LayerwiseCosine,
    Search,
    StepDecay,
    TotalVariation,
)
from seepage.attacks.image_prior import PriorNetwork
from seepage.attacks.systematic.attack import Systematic
from seepage.core import Attack

_ENGINE = Engine()
# The first that explains the update, or the one that leaves least unexplained.
_RECOVERIES = exact_features(), softmax_features(), likely_features()


def systematic(
    *,
    features: FeatureRecovery | None = None,
    prior: PriorNetwork | None = None,
    weighting: Literal["entries"] | float = "entries",
    tv: float = 1e-2,
    batchnorm: float = 1e-3,
    first_layer: float = 1.0,
    feature_weight: float = 0.1,
    span_from: int = 16,
    steps: int = 10_000,
    restarts: int = 1,
    step_size: float | None = None,
    engine: Engine = _ENGINE,
) -> Attack:
    """Reweighted cosines with total variation, batch statistics and recovered features.

        min_x  sum_i w_i (1 - cos_i(x)) + a_TV R_TV + a_BN R_BN + a_f R_feature

    Meant for `Threat(knows_labels=True, batchnorm="exact")`. Without features and prior it is the
    paper's ablation "without feature matching", on pixels.

    Args:
        features: What recovers the inputs of a fully connected layer first, such as
            `exact_features()`; None for nothing.
        prior: The untrained network that makes the images; None searches pixels.
        weighting: Of each tensor's cosine: its number of entries, as in the paper, or the observed
            norm to this power.
        tv: Weight of the total variation.
        batchnorm: Weight of the batch-normalisation statistics; networks without are attacked
            without.
        first_layer: Multiplier of the first layer's batch statistics. Where a client normalises
            by its own batch, they alone tell how bright and how contrasted the whole batch is.
        feature_weight: Weight of the feature matching.
        span_from: The batch size from which features are matched by their span instead of one by
            one.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        step_size: Of Adam; if not given 0.1 on the sign of the gradient of pixels, and 0.001 on
            the weights of a prior network.
        engine: How it is computed.

    Example:
        >>> from seepage.attacks.feature_recovery import exact_features
        >>> attack = systematic(features=exact_features(), prior=PriorNetwork(width=16), steps=500)
        >>> attack.prior, attack.feature_weight
        (PriorNetwork(width=16, multipliers=(1, 2, 2, 2), attention=16), 0.1)

    Deviations:
        The paper takes steps of 0.00001 on the weights of its network, whose size it does not
        say. Features are given to inputs by their labels, which the gradient of their layer
        tells, and greedily among inputs of one class, at every step; the paper does so greedily
        and once. Features of known length are matched by their distance. Weights of the cosines
        sum to one.

    References:
        Liu et al., 2024, Eq. 4 and appendix F (liu2024systematic)
    """
    chosen = step_size if step_size is not None else (0.1 if prior is None else 1e-3)
    search = Search(
        terms=(
            LayerwiseCosine(weighting=weighting),
            TotalVariation(weight=tv),
            BatchNormStatistics(weight=batchnorm, first_layer=first_layer),
        ),
        optimiser=Adam(step_size=chosen, sign="hard" if prior is None else "none"),
        schedule=StepDecay(),
        steps=steps,
        restarts=restarts,
    )
    return Systematic(
        search=search,
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
    tv: float = 3e-2,
    feature_weight: float = 1e-2,
    given: float = 1.0,
    steps: int = 10_000,
    restarts: int = 1,
    step_size: float | None = None,
    engine: Engine = _ENGINE,
) -> Attack:
    """`systematic`, where what is known stands in the place of what would be simulated.

        min_x  sum_i w_i (1 - cos_i(x; u, mu, sigma)) + a_TV R_TV + a_f R_feature

    A search that simulates the client runs the whole network on what it has so far. Two things it
    need not simulate, because the update or the server tells them. With the features u of every
    input the logits are known, and what each input sends back: the rest of the update is linear in
    that. And candidates are normalised by the private batch's statistics mu and sigma, where they
    are known, in every layer. At the truth nothing changes; on the way there each input is pulled
    by its own gradient, and not by that of whatever the candidates happen to look like.

    Meant for `Threat(knows_labels=True, batchnorm="exact")` and networks whose head gives its
    inputs away: a wide one, or any classifier with more classes than there are people.

    Args:
        features: What recovers the inputs of a fully connected layer first. If not given, it is
            `exact_features()` where the network ends in two such layers that tell,
            `softmax_features()` where the last one does, and `likely_features()` elsewhere.
        prior: The untrained network that makes the images; None searches pixels.
        weighting: Of each tensor's cosine: the observed norm to this power, or its number of
            entries.
        tv: Weight of the total variation.
        feature_weight: Weight of the feature matching.
        given: Largest relative residual of features that are put in the place of simulated ones;
            worse ones are matched only. By default all are given: in trials behind defenses rough
            ones brought back as much as none or more.
        steps: Steps of each restart.
        restarts: Random starts, of which the one with the lowest objective is kept.
        step_size: Of Adam, as for `systematic`.
        engine: How it is computed.

    Example:
        >>> teacher_forced(steps=500).given
        1.0

    Deviations:
        Ours; no paper has it. There is no term of batch statistics: the network is given them
        instead. Step sizes fall as a cosine. These and the weights were chosen in trials on images
        that no recorded run is about.

    References:
        Liu et al., 2024, Eq. 4 (liu2024systematic), for the objective it starts from
    """
    known = features if features is not None else FirstOf(_RECOVERIES)
    plain = systematic(
        features=known,
        prior=prior,
        weighting=weighting,
        tv=tv,
        feature_weight=feature_weight,
        steps=steps,
        restarts=restarts,
        step_size=step_size,
        engine=engine,
    )
    assert isinstance(plain, Systematic)
    terms = plain.search.terms
    search = replace(
        plain.search,
        terms=tuple(term for term in terms if not isinstance(term, BatchNormStatistics)),
        schedule=CosineDecay(),
        given_statistics=True,
    )
    return replace(plain, search=search, given=given)
