"""The recipe of the paper's strong attack."""

from __future__ import annotations

from typing import Literal

from seepage.attacks.feature_recovery import FeatureRecovery
from seepage.attacks.gradient_matching import (
    Adam,
    BatchNormStatistics,
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
