"""The recipes that recover features."""

from __future__ import annotations

from seepage.attacks.exact_batch import Complementarity
from seepage.attacks.feature_recovery.exact import ExactFeatures
from seepage.attacks.feature_recovery.likely import LikelyFeatures
from seepage.attacks.feature_recovery.softmax import SoftmaxFeatures
from seepage.attacks.feature_recovery.tensor import TensorFeatures


def tensor_features(*, reduced: bool = False) -> TensorFeatures:
    """What a wide Gaussian head reads, by Hermite moments of its last gradient.

    As an attack it returns inputs where the head reads them; `recover` gives the features of any
    network with such a head.

    Args:
        reduced: Take the constant and linear part of the gradient away before the moments, which
            is ours: it keeps what they mean and lowers their noise.

    Example:
        >>> tensor_features()
        TensorFeatures(reduced=False)

    Deviations:
        The paper's H2 and H3 fit no common activation; orders are chosen from its Gaussian
        derivatives. All classes are used, and second-order moments take part in the decomposition.
        The unit vector a, "any" in the paper, is the direction of the first-order moments.

    References:
        Liu et al., 2024, appendix B (liu2024systematic); Wang et al., 2023
        (wang2023reconstructing)
    """
    return TensorFeatures(reduced=reduced)


def exact_features(*, rounds: int = 24, steps: int = 12, starts: int = 2) -> ExactFeatures:
    """What a two-layer head reads, exactly where nothing hides it.

    As an attack it returns inputs where the head reads them; `recover` gives the features of any
    network with such a head.

    Args:
        rounds: Of the search for people behind ReLU, at most.
        steps: Of least squares, from each start.
        starts: Of least squares, at most.

    Example:
        >>> exact_features(starts=5).starts
        5

    References:
        Liu et al., 2024 (liu2024systematic), for the setting; the method is ours
    """
    return ExactFeatures(search=Complementarity(rounds=rounds), steps=steps, starts=starts)


def softmax_features(*, steps: int = 200, starts: int = 24) -> SoftmaxFeatures:
    """What the last layer of an ordinary classifier reads, for fewer people than classes.

    As an attack it returns inputs where that layer reads them, as in logistic regression;
    `recover` gives the features of any network that ends in a linear layer and a softmax.

    Args:
        steps: Of least squares, from each start.
        starts: Of least squares, at most.

    Example:
        >>> softmax_features(starts=5).starts
        5

    References:
        Huang et al., 2021, Lemma B.1 (huang2021evaluating), for the span; the method is ours
    """
    return SoftmaxFeatures(steps=steps, starts=starts)


def likely_features(*, noise: float = 1e-2, steps: int = 300) -> LikelyFeatures:
    """What the last layer of a classifier probably reads, where `softmax_features` cannot tell.

    Behind pruning, dropout and noise, and for as many people as classes or more. Not an attack of
    its own: `recover` gives features for `systematic` and `teacher_forced`, and the latter uses it
    by itself.

    Args:
        noise: Of every entry of the gradient, relative to their size.
        steps: Of L-BFGS, at most.

    Example:
        >>> likely_features(noise=0.1).noise
        0.1

    References:
        Liu and Nocedal, 1989 (liu1989limited), for the search; the method is ours
    """
    return LikelyFeatures(noise=noise, steps=steps)
