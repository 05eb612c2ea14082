"""Tokens whose vectors lie in the span of the first layers' gradients, adapters included."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks._applicability import applies_to
from seepage.attacks._certificate import certify_solved
from seepage.attacks.labels._infer_labels import try_labels
from seepage.attacks.text._prefix_keys import PrefixKeys
from seepage.attacks.text._readers import (
    Reader,
    list_readers,
    list_weights,
    run_reader,
    stack_normalised,
)
from seepage.attacks.text._span_check import (
    BLURRED,
    TURNED,
    SpanCheck,
    find_span,
    measure_tokens,
)
from seepage.attacks.text._token_table import UNKNOWN, require_texts
from seepage.clients import Gradient
from seepage.core import Attack, BaseAttack, Certificate, Observation, Reconstruction, Rng, Task
from seepage.core.errors import NotApplicable, require_positive, require_within
from seepage.domains import Tokens
from seepage.numerics._row_span import row_span, share_outside, split_span
from seepage.probing._heads import classifier_head

# The upper quartile of a normal variable, in standard deviations.
_QUARTILE = 0.6745
# Shares below this are rounding.
_TINY = 1e-6
# Singular values below this share of the largest are rounding.
_RANK = 1e-6
# Vectors with less than this share outside a span made it, unless rounding turned the span.
_SPANNED = 1e-2
# Simulated batches that tell chance, at least and at most.
_FEWEST, _MOST = 8, 64
# Tokens whose vectors differ by less than this share are told apart by nothing but their distance.
_DUPLICATE = 0.3
# Most tokens and places that are compared with each other.
_LISTED = 2_048


# A token with the probability of being as near to the spans by chance, and whether its place is
# told.
_Named = tuple[int, float, bool]


def list_token_readers(task: Task) -> tuple[Reader, ...]:
    """List trained layers that read a function of one token and its position.

    Those are the projections of the first attention, the matrices A of their adapters, the matrices
    B, which read A x, and trained keys, which meet queries. Only layers count whose gradient
    depends on every place of a text, which is tested on one random text: a query alone says nothing
    about a first token that attends only to itself.

    Example:
        >>> from seepage.zoo import gpt
        >>> [reader[0] for reader in list_token_readers(gpt(width=32, layers=2, lora=4))]
        ['blocks.0.attention.query.lora_A']

    Raises:
        NotApplicable: Inputs are no texts, or no such layer is trained.
    """
    require_texts(task.domain, needed_by="token_span")
    seen = list_readers(task)
    probe = Gradient()(task, seen.text[None], task.blank_labels(1))
    found, silent = [], ""
    for reader in seen.readers:
        gradient = stack_normalised(task, reader.layers, probe)
        if reader.sees != "token":
            continue
        if not bool(gradient.any()):
            silent = silent or reader.layers[0]
            continue
        basis, turned = split_span(gradient, tolerance=_RANK, most=len(reader.read))
        limit = max(_SPANNED, min(BLURRED, TURNED * turned))
        # The last token has no gradient where it is only predicted.
        spanned = bool((share_outside(basis, reader.read[:-1]) < limit).all())
        # A span of everything that could be read tells nothing, however short the batch is.
        if len(basis) < gradient.shape[1] and (spanned or len(basis) == len(gradient)):
            found.append(reader.layers)
    if not found:
        first = f"{silent}, whose gradient is zero, as that of adapters is in their first step"
        got = f"{first}; audit a later step" if silent else _describe_trained(task)
        raise NotApplicable(
            f"expected {task.name} to train a linear layer that reads the vector of one token, or "
            "keys before those of a text in the first attention, with more entries than a text has "
            f"tokens, got {got}; use bag_of_words if the embeddings are trained"
        )
    return tuple(found)


def _describe_trained(task: Task) -> str:
    """Say what a head that is trained alone gives away."""
    with suppress(NotApplicable):
        head = classifier_head(task)
        if len(task.output_shape) == 1 and task.parameters.keys() <= {head.weight, head.bias}:
            return (
                f"{head.layer} alone, whose gradient tells the features that it reads of a single "
                "text, but no words"
            )
    return "none"


@dataclass(frozen=True, kw_only=True)
class TokenSpan(BaseAttack):
    """Try every token at every position; keep those that lie in the spans.

    The arguments are those of `token_span`.
    """

    false_tokens: float = 0.1
    rank_tolerance: float = _RANK
    tolerance: float = 0.05

    def __post_init__(self) -> None:
        require_positive(false_tokens=self.false_tokens)
        require_within("(0, 1)", rank_tolerance=self.rank_tolerance, tolerance=self.tolerance)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Read the tokens; nothing is random."""
        domain = require_texts(observation.task.domain, needed_by="token_span")
        task = observation.task
        spans = tuple(self._find_spans(observation, domain))
        if not spans:
            raise NotApplicable(
                "the gradients of the first layers span everything that they could read, or are "
                "zero, so they tell no token apart; the batch holds too many tokens, or it is noisy"
            )
        doubt = self._test_tokens(observation, spans)
        limit = self.false_tokens / doubt.numel()
        told = _find_known_places(doubt <= limit, spans)
        texts, sure = _arrange(doubt, limit, told, domain, observation.batch_size)
        labels = try_labels(observation, size=len(texts))
        certificate = Certificate(math.inf)
        if len(texts) == 1 and labels is not None and bool((texts != UNKNOWN).all()):
            read = [name for span in spans for name in list_weights(task, span.reader)]
            alone = doubt.shape[1] > 1 and bool(((doubt <= limit).sum(0) == 1).all())
            certificate = certify_solved(observation, texts, labels, read=read, alone=alone)
        return Reconstruction(texts, labels, certificate=certificate, confidence=sure)

    def _find_spans(self, observation: Observation, domain: Tokens) -> Iterator[SpanCheck]:
        """Spans that tell tokens apart: those smaller than the space of what is read."""
        size = observation.batch_size
        for reader in list_token_readers(observation.task):
            span = find_span(
                observation.task,
                reader,
                observation.update,
                places=None if size is None else size * domain.length,
                rank_tolerance=self.rank_tolerance,
                tolerance=self.tolerance,
                normalised=True,
            )
            if span is not None:
                yield span

    def _test_tokens(self, observation: Observation, spans: tuple[SpanCheck, ...]) -> Tensor:
        """How likely it is for each token to lie as near to all spans by chance, `(V, L or 1)`.

        Most tokens are absent, so the shares outside a span of all tokens tell what chance does.
        On a logarithmic scale of odds they are taken as normal, with the median and the upper
        quartile of all tokens. Where the span is known to be whole, a token outside it is absent.
        Where it is not, chance is what spans of other texts do, see `_test_part`.
        """
        doubt: Tensor | None = None
        for span in spans:
            if span.whole or not span.clear:
                (outside,) = measure_tokens(observation.task, span.reader, [span.basis])
                chance = torch.special.ndtr(_standardise(_take_odds(outside)))
                # Probabilities too small for a float are told apart by the distance.
                chance = torch.maximum(chance, 1e-30 * outside)
            else:
                chance = self._test_part(observation, span)
            if span.whole:
                chance = torch.where(outside < span.tolerance, chance, torch.ones_like(chance))
            doubt = chance if doubt is None else torch.maximum(doubt, chance)
        assert doubt is not None
        return doubt

    def _test_part(self, observation: Observation, span: SpanCheck) -> Tensor:
        """Test tokens by a span that holds only a part of what was read, `(V, L or 1)`.

        This is so where adapters have fewer rows than the batch has tokens. In a trained network
        some tokens lie near to any span, and others near to a token of the batch. So random texts
        are read, and their vectors mixed by random numbers to as many rows: a token counts by how
        much nearer it lies than to those spans, and is named if no absent token lies as near in as
        many simulations as one mistake is allowed in. Of tokens whose vectors are nearly the same,
        only the nearest is named.
        """
        task, domain = observation.task, require_texts(observation.task.domain, needed_by="it")
        count = max(_FEWEST, min(_MOST, math.ceil(1 / self.false_tokens)))
        size = observation.batch_size or math.ceil(2 * len(span.basis) / domain.length)
        bases, drawn = [span.basis], []
        for number in range(count):
            key = Rng(0).fork("part", number)
            texts = task.move_inputs(domain.sample(size, rng=key.fork("texts")))
            read = run_reader(task, span.reader, texts).flatten(0, 1).double()
            if isinstance(first := span.reader[0], PrefixKeys):
                mixed = first.mix(read, rng=key.fork("mix"))
            else:
                mixed = key.fork("mix").normal((len(span.basis), len(read))).to(read) @ read
            bases.append(row_span(mixed, tolerance=_RANK))
            drawn.append(texts.flatten())
        odds = _take_odds(measure_tokens(task, span.reader, bases))
        total = odds[1:].sum(0)
        nearest = []
        for one, tokens in zip(odds[1:], drawn, strict=True):
            apart = _standardise(one - (total - one) / (count - 1))
            apart[tokens] = math.inf
            nearest.append(apart.amin(1).sort().values)
        allowed = max(1, int(count * self.false_tokens))
        limit = float(torch.cat(nearest).sort().values[allowed - 1])
        apart = _standardise(odds[0] - total / count)
        chance = torch.ones_like(apart)
        for token, place in _drop_near_duplicates(task, span.reader, apart, limit):
            chance[token, place] = torch.special.ndtr(apart[token, place]) * 1e-30
        return chance


def _take_odds(outside: Tensor) -> Tensor:
    squares = outside.clamp(_TINY, 1 - _TINY).square()
    return squares.log() - (1 - squares).log()


def _standardise(odds: Tensor) -> Tensor:
    """Distances from the median of all tokens, in deviations that the upper quartile tells."""
    middle = odds.median(0, keepdim=True).values
    upper = odds.quantile(0.75, dim=0, keepdim=True)
    return (odds - middle) / ((upper - middle) / _QUARTILE).clamp(min=1e-3)


def _drop_near_duplicates(
    task: Task, reader: Reader, apart: Tensor, limit: float
) -> Iterator[tuple[int, int]]:
    """Tokens and their places below a limit, nearest first, without near duplicates."""
    found = (apart < limit).nonzero()
    found = found[apart[found[:, 0], found[:, 1]].argsort(stable=True)][:_LISTED]
    if not len(found):
        return
    texts = found[:, :1].expand(-1, task.domain.shape[0])
    read = run_reader(task, reader, task.move_inputs(texts))
    vectors = read[torch.arange(len(found)), found[:, 1]].double()
    vectors = vectors / vectors.norm(dim=1, keepdim=True)
    near = 1 - (vectors @ vectors.T).square() < _DUPLICATE**2
    left = torch.ones(len(found), dtype=torch.bool, device=near.device)
    for number, (token, place) in enumerate(found.tolist()):
        if bool(left[number]):
            left &= ~near[number]
            yield token, place


def _find_known_places(found: Tensor, spans: Sequence[SpanCheck]) -> Tensor:
    """Which of the tokens that were found stand where they were found, `(V, L or 1)`.

    A word that stands at two positions puts their difference into the span, and with it every other
    word of the one at the other. So a place is told of a word that is found nowhere else, and where
    nothing else is found. The latter holds if spans are whole, since then no word is missed. By a
    part of what was read, no place is told.
    """
    if found.shape[1] == 1:
        return found
    if any(span.clear and not span.whole for span in spans):
        return torch.zeros_like(found)
    told = found & (found.sum(1, keepdim=True) == 1)
    if all(span.whole for span in spans):
        told |= found & (found.sum(0, keepdim=True) == 1)
    return told


def _arrange(
    doubt: Tensor, limit: float, told: Tensor, domain: Tokens, size: int | None
) -> tuple[Tensor, Tensor]:
    """Make texts of the tokens that are hardly there by chance, and say how sure they are.

    Where positions are told, the tokens of a position go to different texts; which text is not
    told. Tokens found at several positions are placed once if there is room, and nothing is claimed
    of their place. Without positions words stand in no order. What remains unknown is -1.
    """
    doubts, order = doubt.T.sort(dim=1, stable=True)
    rows = zip(order.tolist(), doubts.tolist(), told.T.gather(1, order).tolist(), strict=True)
    found = [[one for one in zip(*row, strict=True) if one[1] <= limit] for row in rows]
    if len(found) == 1:
        count = size or max(1, math.ceil(len(found[0]) / domain.length))
        texts_found = _cut(found[0], count, domain.length)
    else:
        count = size or max(1, max(map(len, found)))
        texts_found = _place(found, count)
    texts = torch.full((count, domain.length), UNKNOWN)
    sure = torch.zeros(count, domain.length)
    for row, named in enumerate(texts_found):
        for place, one in enumerate(named):
            if one is not None:
                texts[row, place], sure[row, place] = one[0], (1 - one[1]) * one[2]
    return texts.to(doubt.device), sure.to(doubt.device)


def _cut(found: list[_Named], count: int, length: int) -> list[list[_Named | None]]:
    """Put all tokens into every text if they fit, else share them out."""
    fits = len(found) <= length
    starts = [0 if fits else row * length for row in range(count)]
    return [list(found[start : start + length]) for start in starts]


def _place(found: list[list[_Named]], count: int) -> list[list[_Named | None]]:
    """Place the tokens of each position, those whose place is told or with few candidates first."""
    placed: set[int] = set()
    rows: list[list[_Named | None]] = [[None] * len(found) for _ in range(count)]
    for place in sorted(range(len(found)), key=lambda place: len(found[place])):
        fresh = sorted(found[place], key=lambda one: (not one[2], one[0] in placed))[:count]
        placed.update(token for token, _, _ in fresh)
        for row, one in enumerate(fresh):
            rows[row][place] = one
    return rows


def _require_readers(observation: Observation) -> None:
    list_token_readers(observation.task)


@applies_to(Tokens, require=_require_readers)
def token_span(
    *, false_tokens: float = 0.1, rank_tolerance: float = _RANK, tolerance: float = 0.05
) -> Attack:
    """Tokens of a batch whose vectors lie in the span of a first layer's gradient, as of LoRA.

    The weight gradient of a layer is sum_i (dL/dy_i) x_i^T. So the vectors x_i that it read lie in
    its row space, if they are fewer than the rows and the columns of the weight. The first
    attention reads a function of a token and its position: every token is tried at every position.
    Nothing else of the network matters, so encoders and decoders, rotary positions and attention of
    any kind are read in the same way, and the embeddings may be frozen.

    An adapter of rank r adds B A x to a layer, and dL/dA has r rows that lie in the same span.
    Adapters that read the same vectors are stacked: k of them give away k r tokens of a batch, and
    beyond that fewer and fewer. Before the first step B is zero and so is dL/dA; dL/dB then spans
    A x, in r dimensions. Trained keys of the first attention, as of prefix tuning, span queries:
    P keys give away P tokens, and fewer than a head is wide.

    A token is named if it lies nearer to the span than chance explains, as the other tokens of the
    vocabulary tell. Within the budget no token was named by mistake through pretrained networks.
    Beyond it the span is a part of what was read: chance is then simulated by random texts, whose
    words are not those that people use, so more tokens may be named by mistake than is stated.

    Words that stand at several places make each other appear at all of these. Such words are placed
    as well as possible, but with a confidence of 0: only that the batch holds them is certain.

    Args:
        false_tokens: How many tokens are named by mistake, on average.
        rank_tolerance: Singular values below this share of the largest are rounding.
        tolerance: Largest share of a vector outside a span that counts as inside, where the span
            is known to be whole.

    Example:
        >>> token_span(false_tokens=1).false_tokens
        1

    Deviations:
        The first stage of DAGER, extended to adapters, to prefixes and to a test with a stated rate
        of mistakes.

    References:
        Petrov et al., 2024 (petrov2024dager); Hu et al., 2022 (hu2022lora), on adapters; Li and
        Liang, 2021 (li2021prefix), on prefixes
    """
    return TokenSpan(false_tokens=false_tokens, rank_tolerance=rank_tolerance, tolerance=tolerance)
