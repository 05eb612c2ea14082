"""Guesses that need no gradient: what a score is worth is what it adds to these.

The mean input resembles everybody a little, and other people's inputs resemble the batch the more,
the more of them the pairing can choose from. An attack that does no better has not shown a leak.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.core import Batch, Domain, Metric, Reconstruction, Rng
from seepage.core.errors import InvalidValue
from seepage.scoring.scores import Scores, score


def mean_guess(mean_input: Tensor, size: int) -> Reconstruction:
    """The same mean input for everybody: the best single guess in mean squared error.

    Args:
        mean_input: Mean over inputs of other people, without the batch axis.
        size: Number of people.

    Example:
        >>> import torch
        >>> mean_guess(torch.zeros(1, 4, 4), 3).inputs.shape
        torch.Size([3, 1, 4, 4])
    """
    _check_size(size)
    return Reconstruction(mean_input.detach().expand(size, *mean_input.shape).clone())


def draw_guess(pool: Tensor, size: int, *, rng: Rng) -> Reconstruction:
    """Other people's inputs, drawn without replacement: a guess that looks real and is not.

    Args:
        pool: Inputs `(N, ...)` of people who are not in the batch; N must be at least `size`.
        size: Number of people.
        rng: Randomness.

    Example:
        >>> import torch
        >>> pool = torch.arange(5.0).reshape(5, 1)
        >>> len(set(draw_guess(pool, 5, rng=Rng(0)).inputs.flatten().tolist()))
        5
    """
    _check_size(size)
    if len(pool) < size:
        raise InvalidValue(
            f"expected a pool of at least {size} inputs to draw from, got {len(pool)}; "
            "give a larger pool of other people's inputs"
        )
    chosen = rng.permutation(len(pool))[:size]
    return Reconstruction(pool.detach()[chosen.to(pool.device)])


def baseline_scores(
    batch: Batch,
    *,
    pool: Tensor,
    metrics: Sequence[Metric] | None = None,
    rng: Rng,
    peak: float = 1.0,
    low: float = 0.0,
    domain: Domain | None = None,
) -> dict[str, Scores]:
    """Scores of both trivial guesses, paired and scored exactly as an attack's.

    Args:
        batch: The truth.
        pool: Inputs `(N, ...)` of people who are not in the batch, at least as many as in it.
        metrics: By default every metric that fits these inputs.
        rng: Randomness of the draw.
        peak: Width of the range of values, 1 for images in [0, 1].
        low: Lowest value of the range.
        domain: What an input is, if known: the mean is then made a valid one, of categories the
            most frequent.

    Returns:
        Scores under "mean", which of tokens is the most frequent at each place, and "draw".

    Example:
        >>> import torch
        >>> batch = Batch(torch.tensor([[0.0], [1.0]]), torch.tensor([7, 8]))
        >>> scores = baseline_scores(batch, pool=torch.tensor([[0.25], [0.75]]), rng=Rng(0))
        >>> scores["mean"]["mse"].tolist(), scores["draw"]["mse"].tolist()
        ([0.25, 0.25], [0.0625, 0.0625])
    """
    drawn = draw_guess(pool, len(batch), rng=rng)
    guesses = {"mean": mean_guess(_typical(pool, domain), len(batch)), "draw": drawn}
    return {
        name: score(guess, batch, metrics=metrics, peak=peak, low=low, domain=domain)
        for name, guess in guesses.items()
    }


def _typical(pool: Tensor, domain: Domain | None) -> Tensor:
    """The best single guess without an update."""
    if not pool.is_floating_point():
        return torch.mode(pool, dim=0).values
    mean = pool.mean(0)
    return mean if domain is None else domain.project(mean)


def _check_size(size: int) -> None:
    if size < 1:
        raise InvalidValue(f"expected at least one person to guess for, got {size!r}")
