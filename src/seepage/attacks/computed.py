"""One function per paper, of those that compute: the bibliography in code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from seepage.attacks.exact_batch import (
    Complementarity,
    ExactBatch,
    KernelSampling,
    SparseDirections,
)
from seepage.attacks.exact_batch.search import DirectionSearch
from seepage.attacks.gradient_matching import Engine
from seepage.attacks.linear_systems import RGAP, AnalyticFC, Correction, Hybrid
from seepage.attacks.linear_systems.hybrid import Constraint
from seepage.attacks.text import Dager
from seepage.core import Attack
from seepage.core.errors import InvalidValue

# Corrections fall by orders of magnitude, which TF32 cannot follow.
_EXACT = Engine(precision="float32")


def analytic_fc() -> Attack:
    """Closed-form input of a network that begins with fully connected layers, one with a bias.

    Example:
        >>> analytic_fc()
        AnalyticFC()

    References:
        Geiping et al., 2020, Propositions 1 and 2, Corollary 1 (geiping2020inverting)
    """
    return AnalyticFC()


def exact_batch(
    *, engine: str = "auto", starts: int = 64, samples: int = 8_192, sparse_starts: int = 128
) -> Attack:
    """The whole batch behind a fully connected first layer with bias and ReLU, exactly.

    Args:
        engine: How people are told apart. "least_squares" is the quickest up to 32 people, or
            behind one hidden layer, and needs a fully connected second layer; "sparse" needs about
            16 neurons per person, more where many share a label and the second layer is the last,
            and nothing else; "sampling" is the first paper's and serves about 16 people. "auto"
            tries those that have a chance in this order, beyond 32 people with "sparse" first
            where it is likely to succeed.
        starts: Of each round of least squares.
        samples: Of each round of kernel sampling.
        sparse_starts: Of each round of sparse directions.

    Deviations:
        SPEAR samples only, and so is limited to about 25 people. Least squares on the equations
        "silent or passing" (`Complementarity`) is ours. SPEAR++ learns a sparsely-used dictionary;
        which algorithm it takes was not at hand, and `SparseDirections` is ours.

    Example:
        >>> exact_batch(starts=128).searches[0]
        Complementarity(starts=128, steps=40, rounds=24)
        >>> [type(search).__name__ for search in exact_batch(engine="sparse").searches]
        ['SparseDirections']

    References:
        Dimitrov et al., 2024 (dimitrov2024spear); Bakarsky et al., 2025 (bakarsky2025spear)
    """
    searches: dict[str, DirectionSearch] = {
        "least_squares": Complementarity(starts=starts),
        "sparse": SparseDirections(starts=sparse_starts),
        "sampling": KernelSampling(samples=samples),
    }
    if engine == "auto":
        return ExactBatch(searches=tuple(searches.values()))
    if engine not in searches:
        raise InvalidValue(f"expected engine in {['auto', *searches]}, got {engine!r}")
    return ExactBatch(searches=(searches[engine],))


def rgap(*, damping: float = 0.0) -> Attack:
    """Recursive gradient attack: every layer's input by linear least squares, last layer first.

    For one example and a chain of convolutions and fully connected layers whose activations can be
    undone. Needs the label only where the last layer has no bias.

    Args:
        damping: Tikhonov damping of the least squares, for noisy updates.

    Example:
        >>> rgap()
        RGAP(damping=0.0)

    Deviations:
        Least squares by conjugate gradients, without the matrix. Any loss will do: the gradient at
        the logits is read off the last bias, or found from the loss itself, trying every solution.

    References:
        Zhu and Blaschko, 2021 (zhu2021recursive)
    """
    return RGAP(damping=damping)


_CORRECTIONS = (
    Correction(steps=10_000, matching=1.0, tv=0.1, system=0.05, norm=1e-3),
    Correction(steps=8_000, matching=1.0, tv=0.1, system=0.1, norm=1e-3),
    Correction(steps=1_000, matching=10.0, tv=0.1, system=1.0, norm=1e-3),
)


def hybrid(
    *,
    constraint: Constraint = "auto",
    steps: Sequence[int] = (10_000, 8_000, 1_000),
    step_size: float = 1e-3,
    damping: float = 0.0,
    engine: Engine = _EXACT,
) -> Attack:
    """R-GAP whose solutions are corrected, layer by layer, by gradient matching.

    Args:
        constraint: "soft" as in the paper's experiments, "hard" as in its Algorithm 1; "auto"
            takes "hard" for systems that hold no error from layers above, "soft" for others.
        steps: Of the correction of the first layer, the second, and all deeper ones.
        step_size: Of Adam, in normalised coordinates.
        damping: Tikhonov damping of the least squares, for noisy updates.
        engine: How it is computed.

    Deviations:
        A layer whose solution is certain is not corrected. Features stay within the range of the
        activation that made them. Iterations and weights are those of the paper's code, made for
        images in [-0.5, 0.5], but for a total variation ten times weaker on the first two layers:
        with theirs, results fall behind R-GAP's on networks such as "cnn3-v2". A hundredth of its
        weight goes to the mean square, for total variation hardly sees slow changes; and among
        solutions that all explain the update no gradients are matched. Without these two, results
        fall behind R-GAP's on "cnn3-v4".

    References:
        Chen and Campbell, 2022, Algorithm 1 (chen2022analysing)
    """
    if len(steps) != len(_CORRECTIONS):
        raise InvalidValue(f"expected {len(_CORRECTIONS)} numbers of steps, got {steps!r}")
    corrections = tuple(
        replace(correction, steps=count)
        for correction, count in zip(_CORRECTIONS, steps, strict=True)
    )
    return Hybrid(
        corrections=corrections,
        constraint=constraint,
        step_size=step_size,
        damping=damping,
        engine=engine,
    )


def dager(*, rank_tolerance: float = 1e-6, tolerance: float = 0.05, at_most: int = 4_096) -> Attack:
    """Texts of a decoder, exactly: tokens and prefixes that lie in the spans of its gradients.

    Args:
        rank_tolerance: Singular values below this share of the largest are rounding.
        tolerance: Largest share of a vector outside a span that counts as inside.
        at_most: Prefixes kept at each position.

    Example:
        >>> dager(tolerance=0.01)
        Dager(rank_tolerance=1e-06, tolerance=0.01, at_most=4096)

    Deviations:
        Query, key and value are read together, as are all layers that read the same: the query
        alone says nothing of a first token, which attends to itself only. Texts are checked at
        every layer that tells, where the paper takes the second attention. Decoders only, and
        texts of one length.

    References:
        Petrov et al., 2024 (petrov2024dager)
    """
    return Dager(rank_tolerance=rank_tolerance, tolerance=tolerance, at_most=at_most)
