"""Whichever recovery fits the head of a network."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.attacks.feature_recovery.features import FeatureRecovery, Features
from seepage.core import Observation, Rng
from seepage.core.errors import InvalidValue, NotApplicable


@dataclass(frozen=True)
class FirstOf:
    """Tries ways to recover features in turn, and takes the first that applies.

    Args:
        methods: In the order in which they are tried.

    Example:
        >>> from seepage.attacks.feature_recovery import exact_features, softmax_features
        >>> len(FirstOf((exact_features(), softmax_features())).methods)
        2
    """

    methods: tuple[FeatureRecovery, ...]

    def __post_init__(self) -> None:
        """Check that there is one."""
        if not self.methods:
            raise InvalidValue("expected one method or more, got none")

    def recover(self, observation: Observation, *, rng: Rng) -> Features:
        """Find the features.

        Raises:
            NotApplicable: No method applies; the reasons of all are given.
        """
        reasons = []
        for method in self.methods:
            try:
                return method.recover(observation, rng=rng)
            except NotApplicable as reason:
                reasons.append(f"{type(method).__name__}: {reason}")
        raise NotApplicable("; ".join(reasons))
