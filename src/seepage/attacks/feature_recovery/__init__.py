"""Recover the inputs of a layer inside the network, from the update alone."""

from seepage.attacks.feature_recovery._cocktail_party import CocktailParty, cocktail_party
from seepage.attacks.feature_recovery._estimated_features import (
    EstimatedFeatures,
    estimated_features,
)
from seepage.attacks.feature_recovery._exact_features import ExactFeatures, exact_features
from seepage.attacks.feature_recovery._features import (
    Fallback,
    FeatureRecovery,
    Features,
    NotToldApartWarning,
)
from seepage.attacks.feature_recovery._softmax_features import SoftmaxFeatures, softmax_features
from seepage.attacks.feature_recovery._tensor_features import (
    NotGaussianWarning,
    TensorFeatures,
    tensor_features,
)

__all__ = [
    "CocktailParty",
    "EstimatedFeatures",
    "ExactFeatures",
    "Fallback",
    "FeatureRecovery",
    "Features",
    "NotGaussianWarning",
    "NotToldApartWarning",
    "SoftmaxFeatures",
    "TensorFeatures",
    "cocktail_party",
    "estimated_features",
    "exact_features",
    "softmax_features",
    "tensor_features",
]
