"""Inputs of a layer inside the network, from the update alone."""

from seepage.attacks.feature_recovery.cocktail_party import CocktailParty, cocktail_party
from seepage.attacks.feature_recovery.features import FeatureRecovery, Features

__all__ = ["CocktailParty", "FeatureRecovery", "Features", "cocktail_party"]
