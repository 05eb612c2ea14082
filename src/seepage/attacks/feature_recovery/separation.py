"""Rectified heads: everybody's direction in the span, one person at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from seepage.attacks.exact_batch import Complementarity
from seepage.attacks.exact_batch.candidates import Candidates, none_yet
from seepage.attacks.exact_batch.factors import Factors, column_space
from seepage.attacks.feature_recovery.equations import Equations
from seepage.attacks.feature_recovery.gaussian import one_column
from seepage.attacks.feature_recovery.head import TwoLayerHead
from seepage.attacks.feature_recovery.span import Span
from seepage.core import Rng
from seepage.core.progress import report

# Equations for each unknown of a person: more of them only cost time.
_EQUATIONS = 64
# Below so many for each unknown, others than people solve them as well.
_ENOUGH = 8
# Where nearly every start ends at somebody, rounds without gain tell that the update is blurred.
_PATIENCE, _BETTER = 2, 0.9
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

    Neurons with one column of A in common, such as the random ones of the paper, come first: all of
    them are sent the same number, so that a person's column holds no other than that and zero, and
    nearly every start ends at somebody. Where they do not say enough all neurons are asked.
    """
    best, least = None, float("inf")
    for number, (some, within) in enumerate(_groups(head, span)):
        key = rng.fork("group", number)
        patience = search.rounds if some is head else _PATIENCE
        found = _searched(some, within, equations, search=search, patience=patience, rng=key)
        misfit = float("inf") if found is None else equations.misfit(found)
        if misfit < least:
            best, least = found, misfit
        if least < EXPLAINED:
            break
    return best


def _groups(head: TwoLayerHead, span: Span) -> Iterator[tuple[TwoLayerHead, Span]]:
    """Parts of a head, each with its part of the gradient."""
    common = one_column(head)
    if common is not None:
        chosen = torch.nonzero(common & (span.left != 0).any(1))[:, 0]
        if len(chosen) >= _ENOUGH * (span.people + 1):
            part = replace(
                head,
                weight=head.weight[chosen],
                bias=head.bias[chosen],
                above=head.above[:, chosen],
                first=None if head.first is None else head.first[chosen],
                last=head.last[:, chosen],
            )
            # Starts that are random in orthonormal coordinates favour nobody.
            left, turn = torch.linalg.qr(span.left[chosen])
            yield part, replace(span, left=left, mixtures=turn @ span.mixtures)
    yield head, span


def _searched(
    head: TwoLayerHead,
    span: Span,
    equations: Equations,
    *,
    search: Complementarity,
    patience: int,
    rng: Rng,
) -> Tensor | None:
    above = head.above.T @ column_space(head.last, at_most=span.people)
    factors = Factors(
        span.left,
        span.mixtures,
        span.left.new_zeros(span.people),
        span.noise,
        column_space(above, at_most=above.shape[1]),
    )
    some = _some_neurons(factors, rng.fork("neurons"))
    found, best, least, idle = none_yet(factors.span), None, float("inf"), 0
    for number in range(search.rounds):
        before = found.directions
        key = rng.fork("round", number)
        found = found.joined(search(some, found, rng=key)).independent()
        if len(found) < span.people:
            continue
        idle += 1
        if idle > patience:
            break
        if torch.equal(found.directions, before):
            continue
        features = _features(head, span, found)
        misfit = equations.misfit(features)
        report(number + 1, search.rounds, misfit)
        if misfit < _BETTER * least:
            idle = 0
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
