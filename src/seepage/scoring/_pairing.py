"""Which guess belongs to whom: one guess per person, one person per guess."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seepage.core import Batch, Domain, Paired, Reconstruction
from seepage.core.errors import InvalidValue
from seepage.domains import domain_of

# Squares of a diverged guess overflow, and the assignment refuses infinite costs.
_LARGEST_COST = 1e300
# Share of the largest cost that a wrong label adds: too little to matter where inputs differ.
_TIE = 1e-13


def pair(
    guess: Reconstruction,
    batch: Batch,
    *,
    peak: float = 1.0,
    low: float = 0.0,
    domain: Domain | None = None,
) -> Paired:
    """Assign each guess to one person so that the summed mean squared error is least.

    The order of a reconstruction means nothing (a gradient is a sum over the batch), so guesses
    and people are matched by

        min over injective a of  sum_i mean_j (guess[a(i)]_j - truth[i]_j)^2

    solved exactly in float64; people with equal inputs get the guesses with their labels. Two
    people never share a guess: a many-to-one match would count a single recovered image as a leak
    of everybody who resembles it.

    People left over when there are fewer guesses than people get a guess of mid-grey and the
    assignment -1; guesses left over are dropped. An attack that diverged must not bring down the
    audit it is part of: entries that are NaN or infinite are replaced by mid-grey. Nothing is
    clamped otherwise, and no tensor of the caller is changed.

    Between tokens the error is 0 or 1, and 1 is the range of values, whatever `peak` and `low`; a
    missing token is -1.

    Args:
        guess: What the attack returned, in any order.
        batch: The truth; the result lives on its device, in the wider of the two precisions.
        peak: Width of the range of values, 1 for images in [0, 1].
        low: Lowest value of the range; mid-grey is `low + peak / 2`.
        domain: What an input is, for metrics that ask for it.

    Raises:
        InvalidValue: If a guess has another shape than a private input.

    Example:
        >>> batch = Batch(torch.tensor([[0.0], [1.0]]), torch.tensor([7, 8]))
        >>> pair(Reconstruction(torch.tensor([[0.9], [0.2]])), batch).assignment
        (1, 0)
        >>> paired = pair(Reconstruction(torch.tensor([[0.9]])), batch)
        >>> paired.assignment, paired.guess.flatten().tolist()
        ((-1, 0), [0.5, 0.8999999761581421])

    References: Kuhn, 1955 (kuhn1955hungarian)
    """
    if not (math.isfinite(peak) and peak > 0 and math.isfinite(low)):
        raise InvalidValue(f"expected a finite range with peak > 0, got {peak=!r}, {low=!r}")
    guesses, truth = align_tensors(guess, batch)
    domain = domain or domain_of(truth)
    whole = domain.discrete
    grey = -1 if whole else low + peak / 2
    guesses = torch.where(torch.isfinite(guesses), guesses, grey)
    assignment = _assign(guesses, truth, guess.labels, batch.labels, domain)
    return Paired(
        truth=truth,
        guess=_pick(guesses, assignment, missing=grey),
        labels=batch.labels.detach(),
        guessed_labels=_pick_labels(guess.labels, assignment, like=batch.labels),
        assignment=assignment,
        peak=1.0 if whole else peak,
        domain=domain,
        low=0.0 if whole else low,
    )


def align_tensors(guess: Reconstruction, batch: Batch) -> tuple[Tensor, Tensor]:
    """Guesses and truth, detached, on the device of the truth and in one precision."""
    guesses, truth = guess.inputs.detach(), batch.inputs.detach()
    if guesses.ndim != truth.ndim or guesses.shape[1:] != truth.shape[1:]:
        wanted = ", ".join(str(size) for size in truth.shape[1:])
        raise InvalidValue(
            f"expected guesses (B, {wanted}) like the private inputs, got "
            f"{tuple(guesses.shape)}; score a reconstruction against the batch it was made from"
        )
    if not bool(torch.isfinite(truth).all()):
        raise InvalidValue("expected finite private inputs, got NaN or infinity; check the batch")
    if guesses.is_floating_point() != truth.is_floating_point():
        raise InvalidValue(
            f"expected guesses of the kind of the private inputs, {truth.dtype}, got "
            f"{guesses.dtype}; tokens are whole numbers, everything else is not"
        )
    dtype = torch.promote_types(guesses.dtype, truth.dtype)
    return guesses.to(truth.device, dtype), truth.to(dtype)


def _assign(
    guesses: Tensor, truth: Tensor, guessed: Tensor | None, labels: Tensor, domain: Domain
) -> tuple[int, ...]:
    """For each person the index of a guess, or -1; of equal inputs the label decides."""
    from scipy.optimize import linear_sum_assignment

    near_guesses, near_truth = guesses.cpu(), truth.cpu()
    assignment = [-1] * len(truth)
    if len(guesses) == 0:
        return tuple(assignment)
    # A row at a time: all pairs at once would not fit for a batch of photographs, and the
    # expanded square |g|^2 - 2gt + |t|^2 is not exactly zero at the truth.
    rows = [domain.subtract(g, near_truth).square().flatten(1).mean(1) for g in near_guesses]
    costs = torch.stack(rows).clamp(max=_LARGEST_COST)
    if guessed is not None and guessed.ndim == labels.ndim == 1:
        costs += _TIE * costs.max().clamp(min=_TIE) * (guessed.cpu()[:, None] != labels.cpu())
    for index, person in zip(*linear_sum_assignment(costs.numpy()), strict=True):
        assignment[int(person)] = int(index)
    return tuple(assignment)


def _pick(rows: Tensor, assignment: tuple[int, ...], *, missing: float) -> Tensor:
    """Rows in the order of people; index -1 finds the row that stands for a missing guess."""
    blank = rows.new_full((1, *rows.shape[1:]), missing)
    return torch.cat([rows, blank])[list(assignment)]


def _pick_labels(
    labels: Tensor | None, assignment: tuple[int, ...], *, like: Tensor
) -> Tensor | None:
    if labels is None:
        return None
    return _pick(labels.detach().to(like.device), assignment, missing=-1)
