"""Rectified heads: everybody's direction in the span, one person at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from seepage.attacks.exact_batch import Complementarity
from seepage.attacks.exact_batch.candidates import Candidates, none_yet
from seepage.attacks.exact_batch.factors import Factors, column_space
from seepage.attacks.feature_recovery.equations import Equations
from seepage.attacks.feature_recovery.head import TwoLayerHead
from seepage.attacks.feature_recovery.span import Span
from seepage.core import Rng
from seepage.core.progress import report

# Equations for each unknown of a person: more of them only cost time.
_EQUATIONS = 64
EXPLAINED = 1e-4


def separated(
    head: TwoLayerHead,
    span: Span,
    equations: Equations,
    *,
    search: Complementarity,
    rng: Rng,
) -> Tensor | None:
    """Features `(B, d)` up to their lengths, or None if not everybody was found.

    With ReLU the columns of dL/dZ are zero at silent neurons and what the head sends down at the
    others, which singles them out in the span of dL/dW (see `Complementarity`); P with
    dL/dZ = left P then gives the features, P^-1 mixtures. The equations of the last layer, which
    had no part in it, say when everybody is right.
    """
    sent = column_space(head.last, at_most=span.people)
    factors = Factors(
        span.left, span.mixtures, span.left.new_zeros(span.people), span.noise, head.above.T @ sent
    )
    some = _some_neurons(factors, rng.fork("neurons"))
    found, best, least = none_yet(factors.span), None, float("inf")
    for number in range(search.rounds):
        before = found.directions
        key = rng.fork("round", number)
        found = found.joined(search(some, found, rng=key)).independent()
        if len(found) < span.people or torch.equal(found.directions, before):
            continue
        features = _features(head, span, found)
        misfit = equations.misfit(features)
        report(number + 1, search.rounds, misfit)
        if misfit < least:
            best, least = features, misfit
        if least < EXPLAINED or (not span.clean and number > 3):
            break
    return best


def _some_neurons(factors: Factors, rng: Rng) -> Factors:
    assert factors.above is not None
    unknowns = factors.people + factors.above.shape[1]
    live = torch.nonzero(factors.live)[:, 0]
    chosen = live[rng.permutation(len(live)).to(live.device)[: _EQUATIONS * unknowns]]
    return Factors(
        factors.span[chosen],
        factors.mixtures,
        factors.total,
        factors.noise,
        factors.above[chosen],
    )


def _features(head: TwoLayerHead, span: Span, found: Candidates) -> Tensor:
    """Of these directions, each with the sign that agrees with which neurons are active."""
    directions = found.directions.T
    flat = torch.nan_to_num(torch.linalg.solve_ex(directions, span.mixtures)[0])
    flat = flat / flat.norm(dim=1, keepdim=True).clamp_min(1e-300)
    loud = (span.left @ directions).square().T
    forwards = head.hidden(flat) > 0
    share = (loud * forwards).sum(1) / loud.sum(1)
    return torch.where(share[:, None] < 0.5, -flat, flat)
