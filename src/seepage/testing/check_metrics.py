"""Laws of every metric."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from seepage.core import Domain, Metric, Paired, Rng
from seepage.testing.contract import require


def check_metric(
    metric: Metric, *, shape: tuple[int, ...] = (3, 32, 32), domain: Domain | None = None
) -> None:
    """Raise `ContractError` unless a metric keeps every law.

    Laws: one number per person; arguments untouched; deterministic; the truth itself leaks more
    than any noisy guess; scores follow a permutation of the people; a person scored alone scores
    the same, so that nobody's score depends on another's.

    Args:
        metric: The metric to check.
        shape: Shape of one input.
        domain: For metrics of tables or tokens: where inputs are drawn from, in place of images.

    Example:
        >>> from seepage.scoring import METRICS
        >>> check_metric(METRICS["psnr"])
    """
    noisy = _example(shape) if domain is None else _drawn(domain)
    exact = replace(noisy, guess=noisy.truth.clone(), guessed_labels=noisy.labels.clone())
    kept = noisy.truth.clone(), noisy.guess.clone()
    scores, perfect = metric(noisy), metric(exact)
    untouched = torch.equal(kept[0], noisy.truth) and torch.equal(kept[1], noisy.guess)
    require(untouched, metric, "arguments are not changed")
    require(scores.shape == (len(noisy),), metric, "it gives one number per person")
    require(torch.equal(metric(noisy), scores), metric, "it is deterministic")
    sign = 1.0 if metric.higher_leaks_more else -1.0
    require(bool((sign * perfect > sign * scores).all()), metric, "the truth leaks most")
    order = torch.tensor([2, 0, 3, 1])
    permuted = metric(_reorder(noisy, order))
    require(_close(permuted, scores[order]), metric, "scores follow a permutation")
    alone = torch.cat([metric(_reorder(noisy, torch.tensor([i]))) for i in range(len(noisy))])
    require(_close(alone, scores), metric, "nobody's score depends on another's")


def _example(shape: tuple[int, ...]) -> Paired:
    truth = Rng(0).fork("truth").uniform((4, *shape))
    noise = Rng(0).fork("noise").normal((4, *shape))
    strength = torch.tensor([0.05, 0.1, 0.2, 0.4]).reshape(-1, *(1,) * len(shape))
    guess = (truth + strength * noise).clamp(0, 1)
    labels = torch.arange(4)
    return Paired(truth, guess, labels, (labels + 1) % 4, assignment=(0, 1, 2, 3))


def _drawn(domain: Domain) -> Paired:
    truth, guess = (domain.sample(4, rng=Rng(0).fork(name)) for name in ("truth", "guess"))
    labels = torch.arange(4)
    assignment = (0, 1, 2, 3)
    return Paired(truth, guess, labels, (labels + 1) % 4, assignment, domain=domain)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a, b)


def _reorder(paired: Paired, order: Tensor) -> Paired:
    wrong = paired.guessed_labels
    return replace(
        paired,
        truth=paired.truth[order],
        guess=paired.guess[order],
        labels=paired.labels[order],
        assignment=tuple(paired.assignment[i] for i in order.tolist()),
        guessed_labels=None if wrong is None else wrong[order],
    )
