"""Inputs of a layer inside the network, from the update alone."""

from seepage.attacks.feature_recovery.features import FeatureRecovery, Features

__all__ = ["FeatureRecovery", "Features"]
