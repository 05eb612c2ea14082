"""Which tokens stand where, and which of them stand in one text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.text.reading import Reader, read_by
from seepage.attacks.text.span import Span
from seepage.core import Task
from seepage.core.errors import NotApplicable
from seepage.core.progress import report


@dataclass(frozen=True, eq=False)
class Check:
    """A reader with the span of its gradient in the observed update."""

    reader: Reader
    span: Span


@dataclass(frozen=True)
class Limits:
    """What counts as inside, and how many are kept.

    Args:
        tolerance: Largest share of a vector that may lie outside a span.
        at_least: Of the nearest, kept even if none lies inside: a best effort behind noise.
        at_most: Kept at each position.
    """

    tolerance: float
    at_least: int
    at_most: int

    def kept(self, outside: Tensor) -> Tensor:
        """Indices of those that lie inside, the nearest first."""
        nearest = outside.argsort(stable=True)
        count = int((outside < self.tolerance).sum())
        return nearest[: min(max(count, self.at_least), self.at_most)]


@dataclass(frozen=True, eq=False)
class Found:
    """Texts, the nearest to the spans first.

    Args:
        texts: `(N, L)`.
        outside: How far outside each lies at its worst, `(N,)`.
        complete: Whether every text that lies inside is among them.
    """

    texts: Tensor
    outside: Tensor
    complete: bool


def tokens_in_span(task: Task, check: Check, *, vocabulary: int, limits: Limits) -> list[Tensor]:
    """For each position the tokens whose embedding there lies in the span.

    Every token of the vocabulary is tried at every position.

    Raises:
        NotApplicable: The span holds half of the vocabulary or more, so that it tells nothing.
    """
    length = task.domain.shape[0]
    device = next(iter(task.parameters.values())).device
    everywhere = torch.arange(vocabulary, device=device)[:, None].expand(-1, length)
    outside = check.span.distances(read_by(task, check.reader, everywhere))
    if float((outside < limits.tolerance).double().mean()) > 0.5:
        raise NotApplicable(
            f"the update spans {check.span.rank} directions and with them nearly every token, so "
            "it tells none apart; the batch holds too many tokens for this width, or it is noisy"
        )
    return [limits.kept(column) for column in outside.T]


def assembled(
    task: Task, checks: Sequence[Check], candidates: Sequence[Tensor], *, limits: Limits
) -> Found:
    """The texts all of whose prefixes lie in the spans.

    Texts grow by a token at a time: position i of a decoder depends on nothing that comes later,
    so that the rest may be anything.

    Args:
        task: What was broadcast.
        checks: Of layers that read prefixes.
        candidates: Tokens for each position.
        limits: What counts as inside.
    """
    length = len(candidates)
    texts = candidates[0].new_zeros(1, length)
    worst = texts.new_zeros(1, dtype=torch.float64)
    complete = max(map(len, candidates)) < limits.at_most
    for position, tokens in enumerate(candidates):
        outside = worst.repeat_interleave(len(tokens))
        texts = texts.repeat_interleave(len(tokens), 0)
        texts[:, position] = tokens.repeat(len(worst))
        for check in checks:
            read = read_by(task, check.reader, texts)[:, position]
            outside = torch.maximum(outside, check.span.distances(read))
            kept = limits.kept(outside)
            texts, outside = texts[kept], outside[kept]
            complete = complete and len(kept) < limits.at_most
        worst = outside
        report(position + 1, length, float(worst.max()))
    return Found(texts, worst, complete)
