"""Whether what layers read of a text lies in the span of their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from seepage.attacks.text._readers import (
    Reader,
    count_heads,
    read_last,
    run_reader,
    split_texts,
    stack_gradients,
    stack_normalised,
    takes_prefixes,
)
from seepage.attacks.text._token_table import require_texts
from seepage.core import Task, Update
from seepage.numerics._row_span import row_span, share_outside, split_span

# Vectors that made a span lie outside it by at most this, or this multiple of its rounding.
_OUTSIDE, TURNED = 1e-3, 2.0
# Rounding to single precision adds up to at most this share of the largest singular value.
_SINGLE = 1e-7
# Where there are as many directions as tokens, rounding that reaches the last of them may turn them
# so far.
BLURRED = 0.5

# Directions to try, in multiples of the tokens and at most this share of all; which share of wrong
# texts may lie nearer than the tolerance assumes; how much further out than known texts the unknown
# may lie; and by how much rounding may be larger than simulated.
_MULTIPLES, _MOST = (1, 1.25, 1.5, 2, 2.5, 3, 4, 5), 0.95
_NEAR, _MARGIN, _ROUNDED = 0.1, 1.2, 10.0


def measure_tokens(task: Task, reader: Reader, bases: Sequence[Tensor]) -> Tensor:
    """How far outside each of several spans every token lies at every position, `(N, V, L)`.

    `(N, V, 1)` if what is read does not depend on the position, as with rotations.
    """
    domain = require_texts(task.domain, needed_by="a reader of texts")
    texts = task.move_inputs(torch.arange(domain.vocabulary))[:, None].expand(-1, domain.length)
    first = run_reader(task, reader, texts[:1])
    if torch.allclose(first[:, :1].expand_as(first), first, atol=1e-6):
        texts = texts[:, :1] if takes_prefixes(task, reader, 1) else texts
        first = first[:, :1]
    measured = []
    for part in split_texts(texts):
        read = run_reader(task, reader, part)[:, : first.shape[1]]
        measured.append(torch.stack([share_outside(basis, read) for basis in bases]))
    return torch.cat(measured, dim=1)


@dataclass(frozen=True, eq=False)
class SpanCheck:
    """A reader with the basis of the row space of its observed gradient.

    Args:
        reader: The layers.
        basis: `(r, d)`.
        tolerance: Largest share of a vector outside the span that counts as inside.
        clear: Whether the gradient has no more directions than there are tokens.
        whole: Whether it also has more rows than directions, so that all that was read lies inside.
    """

    reader: Reader
    basis: Tensor
    tolerance: float
    clear: bool = True
    whole: bool = True

    @cached_property
    def _beyond(self) -> Tensor | None:
        """A basis of all that lies outside the span, in single precision, if that is faster."""
        inside, width = self.basis.shape
        if width - inside > 2 * inside:
            return None
        full: Tensor = torch.linalg.qr(self.basis.T, mode="complete").Q
        return full.T[inside:].float()

    def _share(self, vectors: Tensor) -> Tensor:
        """How far outside the span vectors lie, told from zero above 1e-5 or so."""
        if self._beyond is None:
            return share_outside(self.basis.float(), vectors).double()
        single = vectors.float()
        shares: Tensor = (single @ self._beyond.T).norm(dim=-1) / single.norm(dim=-1)
        return shares.double()

    def measure(self, task: Task, texts: Tensor) -> Tensor:
        """Return how far outside the span texts `(N, L)` lie at every position, `(N, L)`."""
        return torch.cat(
            [self._share(run_reader(task, self.reader, p)) for p in split_texts(texts)]
        )

    def measure_last(self, task: Task, texts: Tensor, position: int, *, short: bool) -> Tensor:
        """Return how far outside texts lie at a position, `(N,)`; `short` if the rest is left out.

        For networks in which a position does not depend on later ones, see `takes_prefixes`.
        """
        rows = texts[:, : position + 1] if short else texts
        read = torch.cat([read_last(task, self.reader[0], p, position) for p in split_texts(rows)])
        return self._share(read)

    def find_outside(self, task: Task, texts: Tensor) -> Tensor:
        """Return what lies outside the span at every position, `(N, L, d)`, of unit vectors."""
        found = []
        for rows in split_texts(texts):
            read = run_reader(task, self.reader, rows).double()
            read = read / read.norm(dim=-1, keepdim=True)
            found.append((read - read @ self.basis.T @ self.basis).float())
        return torch.cat(found)


def find_widest(checks: Sequence[SpanCheck]) -> SpanCheck:
    """The check that leaves most directions outside, of those that every position reaches."""
    # Of a loss at some positions the last layers hear of those alone, and their spans are small.
    most = max(len(one.basis) for one in checks)
    reached = [one for one in checks if len(one.basis) >= 0.9 * most]
    return max(reached, key=lambda one: one.basis.shape[1] - len(one.basis))


def find_span(
    task: Task,
    reader: Reader,
    update: Update,
    *,
    places: int | None,
    rank_tolerance: float,
    tolerance: float,
    normalised: bool = False,
) -> SpanCheck | None:
    """Return what a reader's gradient spans; None if that is nothing, or all that could be read.

    Args:
        task: The network.
        reader: The layers.
        update: What was observed.
        places: How many tokens the batch has room for, if known. Noise, rounding in half precision
            and local steps leave more directions than that.
        rank_tolerance: Singular values above this share of the largest are no rounding.
        tolerance: Largest share outside that counts as inside. Where rounding is told apart clearly
            it is less: tokens that resemble one of the batch lie near.
        normalised: Whether layers count equally, however small their gradients are, as those of
            adapters in their first steps.
    """
    gradient = stack_gradients(task, reader, update)
    if not bool(gradient.any()):
        return None
    basis, turned = split_span(gradient, tolerance=rank_tolerance)
    # Each token has a vector in every head.
    places = None if places is None else places * math.prod(count_heads(reader))
    if normalised and len(basis) < (places or min(gradient.shape)):
        # Behind noise, which is as large in every layer, there are more.
        gradient = stack_normalised(task, reader, update)
        basis, turned = split_span(gradient, tolerance=rank_tolerance, most=places)
    width = gradient.shape[1]
    if normalised and (places or width) >= width == len(row_span(gradient, tolerance=_SINGLE)):
        return None
    clear = len(basis) < min(gradient.shape) if places is None else len(basis) <= places
    whole = clear and len(basis) < min(gradient.shape)
    if len(basis[:places]) == width:
        return None
    if whole:
        limit = max(tolerance, BLURRED) if normalised and len(basis) == places else tolerance
        tolerance = min(limit, max(_OUTSIDE, TURNED * turned))
    return SpanCheck(reader, basis[:places], tolerance, clear, whole)


def calibrate_span(
    task: Task, check: SpanCheck, update: Update, texts: Tensor, simulated: Update, *, read: int
) -> SpanCheck:
    """Choose the directions of an unclear span, and its tolerance, by texts that one knows.

    Local steps and half precision leave no gap between what was read and the rest, and which share
    of a vector then lies outside differs from layer to layer. So the client is simulated on random
    texts `(N, L)`, as many as it has; `read` tokens of each are read, and not only predicted. Kept
    are as many directions as tell these best from texts with a wrong word at the end.
    """
    (_, own_values, own), (_, values, observed) = (
        torch.linalg.svd(stack_gradients(task, check.reader, one).double(), full_matrices=False)
        for one in (simulated, update)
    )
    most = int(_MOST * len(values))
    last = min(most, texts.numel())
    # Some rounding is not simulated.
    if values[last] / values[0] > _ROUNDED * own_values[last] / own_values[0]:
        return check
    rows = torch.arange(len(texts) * read, device=texts.device)
    changed = texts.repeat_interleave(read, 0)
    changed[rows, rows % read] = texts[:, :read].flatten().roll(1 if len(texts) == 1 else read)
    right = run_reader(task, check.reader, texts)[:, :read]
    wrong = run_reader(task, check.reader, changed)[rows, rows % read]
    best = 0.0
    for count in (round(multiple * texts.numel()) for multiple in _MULTIPLES):
        if count > most:
            break
        inside = float(share_outside(own[:count], right).max())
        outside = float(share_outside(own[:count], wrong).quantile(_NEAR))
        if outside > best * inside:
            best = outside / inside
            tolerance = max(_MARGIN * inside, math.sqrt(inside * outside))
            check = SpanCheck(check.reader, observed[:count], tolerance, clear=False, whole=False)
    return check
