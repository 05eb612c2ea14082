"""How likely a batch is to come back, before anything is tried."""

from __future__ import annotations

import math

# Neurons per person at which sparsity alone finds every second batch, as measured.
_SPARSE_HALF = 11.0


def determined_probability(*, neurons: int, people: int, silent: float = 0.5) -> float:
    """Probability that everybody leaves enough neurons silent to be told apart.

    A direction in a span of B dimensions is fixed by B - 1 silent neurons and checked by one more:

        Prob(Binomial(m, s) >= B)^B

    Args:
        neurons: Width m of the layer, less those nobody activates.
        people: Batch size B.
        silent: Share s of neurons that one input leaves silent.

    Example:
        >>> round(determined_probability(neurons=64, people=8), 4)
        1.0
        >>> round(determined_probability(neurons=16, people=8), 4)
        0.0164
    """
    from scipy.stats import binom

    return float(binom.sf(people - 1, neurons, silent)) ** people


def success_probability(*, neurons: int, people: int, samples: int, silent: float = 0.5) -> float:
    """Probability that kernel sampling finds everybody.

    Of N draws of B - 1 neurons each, one at least must be silent for every person:

        Prob(determined) (1 - (1 - s^(B-1))^N)^B

    The draws that are needed grow as s^-B: a quarter of a million serves 16 people, and not 20. It
    is an estimate for inputs that all leave half of the neurons silent; one that leaves fewer is
    much harder to hit.

    Args:
        neurons: Width m of the layer, less those nobody activates.
        people: Batch size B.
        samples: Number N of draws.
        silent: Share s of neurons that one input leaves silent.

    Example:
        >>> round(success_probability(neurons=256, people=16, samples=2**18), 3)
        0.995
        >>> round(success_probability(neurons=256, people=16, samples=2**18, silent=0.45), 3)
        0.033
        >>> round(success_probability(neurons=256, people=20, samples=2**18), 3)
        0.0

    References:
        Dimitrov et al., 2024 (dimitrov2024spear)
    """
    missed = (1 - silent ** (people - 1)) ** samples
    return determined_probability(neurons=neurons, people=people, silent=silent) * (
        (1 - missed) ** people
    )


def sparse_probability(*, neurons: int, people: int, silent: float = 0.5) -> float:
    """Probability that sparse directions find everybody, as measured on untrained networks.

    Directions that are sparse by chance become rare as neurons per person grow, at whatever
    batch size:

        Prob(determined) / (1 + exp(11 - m / B))

    Args:
        neurons: Width m of the layer, less those nobody activates.
        people: Batch size B.
        silent: Share of neurons that one input leaves silent.

    Example:
        >>> round(sparse_probability(neurons=1024, people=64), 3)
        0.993
        >>> round(sparse_probability(neurons=256, people=64), 3)
        0.001
    """
    determined = determined_probability(neurons=neurons, people=people, silent=silent)
    return determined / (1 + math.exp(_SPARSE_HALF - neurons / people))
