"""Inputs of a layer inside the network, from the update alone."""

from seepage.attacks.feature_recovery.cocktail_party import CocktailParty, cocktail_party
from seepage.attacks.feature_recovery.exact import ExactFeatures, NotToldApartWarning
from seepage.attacks.feature_recovery.features import FeatureRecovery, Features
from seepage.attacks.feature_recovery.first_of import FirstOf
from seepage.attacks.feature_recovery.gaussian import NotGaussianWarning
from seepage.attacks.feature_recovery.likely import LikelyFeatures
from seepage.attacks.feature_recovery.recipes import (
    exact_features,
    likely_features,
    softmax_features,
    tensor_features,
)
from seepage.attacks.feature_recovery.softmax import SoftmaxFeatures
from seepage.attacks.feature_recovery.tensor import TensorFeatures

__all__ = [
    "CocktailParty",
    "ExactFeatures",
    "FeatureRecovery",
    "Features",
    "FirstOf",
    "LikelyFeatures",
    "NotGaussianWarning",
    "NotToldApartWarning",
    "SoftmaxFeatures",
    "TensorFeatures",
    "cocktail_party",
    "exact_features",
    "likely_features",
    "softmax_features",
    "tensor_features",
]
