"""DAGER: exact texts from the gradient of a transformer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks._applicability import applies_to
from seepage.attacks._certificate import certify_solved
from seepage.attacks.text._both_ways import CERTAIN, assemble_texts
from seepage.attacks.text._readers import TextReaders, find_readers, list_weights, takes_prefixes
from seepage.attacks.text._span_check import SpanCheck, calibrate_span, find_span, measure_tokens
from seepage.attacks.text._text_labels import find_labels, find_last_words, rank_next_words
from seepage.attacks.text._token_table import UNKNOWN, draw_texts, require_texts
from seepage.core import Attack, BaseAttack, Certificate, Observation, Reconstruction, Rng, Task
from seepage.core._device import precision
from seepage.core._progress import report
from seepage.core.errors import NotApplicable, require_at_least, require_within
from seepage.domains import Tokens

# Where there are too many texts to try: tokens that stay, at least.
_TOKENS = 16
# Next tokens that are tried for each place: at most so many can be likelier than one in so many.
_NEXT = 32


@dataclass(frozen=True, kw_only=True)
class Dager(BaseAttack):
    """Find the texts whose tokens and prefixes lie in the spans of a decoder's gradients.

    The weight gradient of a layer that reads vectors x_i is sum_i (dL/dy_i) x_i^T. So the x_i lie
    in its row space, whose dimension is at most the number of tokens in the batch. The first
    attention reads a function of a token and its position: every token of the vocabulary is tried.
    Later layers also depend on the tokens before: texts grow from left to right, and only those
    are kept whose every prefix lies in the spans. Where only the last layers of a decoder are
    trained, the whole vocabulary is tried after every prefix, or those tokens whose rows of the
    output layer have the largest gradients, as the next ones have.

    Labels, batch size and the gradient of the embeddings are not needed. The scale of the update
    cancels, so one local step and clipping change nothing. With noise, where nothing lies inside,
    the guess is made of the nearest texts, and the certificate says so.

    The arguments are those of `dager`.
    """

    rank_tolerance: float = 1e-6
    tolerance: float = 0.05
    at_most: int = 16_384

    def __post_init__(self) -> None:
        require_within("(0, 1)", rank_tolerance=self.rank_tolerance, tolerance=self.tolerance)
        require_at_least(1, at_most=self.at_most)

    def run(self, observation: Observation, rng: Rng) -> Reconstruction:
        """Read the texts; chance only orders what is tried."""
        task, size = observation.task, observation.batch_size
        domain = require_texts(task.domain, needed_by="dager")
        readers = find_readers(task, tolerance=self.rank_tolerance)
        checks = self._find_spans(observation, readers)
        if not readers.both_ways:
            checks = _calibrate_spans(observation, checks, readers)
        if readers.token is None:
            rest, candidates = checks, self._list_tokens(observation, at_least=size or 1)
        else:
            rest, candidates = checks[1:], self._find_tokens(task, checks[0], at_least=size or 1)
        found, outside, complete = self._find_texts(observation, readers, rest, candidates, rng)
        size = size or len(found)
        limit = max(check.tolerance for check in rest)
        limit = min(limit, CERTAIN) if readers.both_ways else limit
        clear = all(check.whole for check in checks)
        texts, inside = found[:size], int((outside < limit).sum())
        if not readers.reads_last:
            texts = self._complete_texts(observation, texts, domain)
        # Unique if no other text that the vocabulary can make lies in the spans.
        alone = complete and inside == size and clear
        labels, certificate = _certify_texts(observation, texts, size, checks, alone=alone)
        sure = (outside[: len(texts), None] < limit) & (texts != UNKNOWN)
        return Reconstruction(
            texts, labels, certificate=certificate, confidence=(sure & clear).float()
        )

    def _find_texts(
        self,
        observation: Observation,
        readers: TextReaders,
        checks: Sequence[SpanCheck],
        candidates: Sequence[Tensor],
        rng: Rng,
    ) -> tuple[Tensor, Tensor, bool]:
        """Find texts, how far outside the spans each lies, and whether no other lies inside."""
        task, size = observation.task, observation.batch_size
        if readers.both_ways:
            return assemble_texts(
                task,
                checks,
                candidates,
                size=size,
                tolerance=self.tolerance,
                at_most=self.at_most,
                rng=rng,
            )
        domain, least = require_texts(task.domain, needed_by="dager"), size or 1
        read = candidates if readers.reads_last else candidates[:-1]
        found, outside, complete = self._grow_texts(task, checks, read, at_least=least)
        found, outside = _order_texts(found, outside, domain.padding, at_least=least)
        complete &= readers.token is not None or len(candidates[-1]) == domain.vocabulary
        return found, outside, complete

    def _find_spans(self, observation: Observation, readers: TextReaders) -> list[SpanCheck]:
        """The spans of the gradients; unclear if noise or local steps left too many directions."""
        task, size = observation.task, observation.batch_size
        first = () if readers.token is None else (readers.token,)
        spans = [
            find_span(
                task,
                reader,
                observation.update,
                places=None if size is None else size * task.domain.shape[0],
                rank_tolerance=self.rank_tolerance,
                tolerance=self.tolerance,
            )
            for reader in (*first, *readers.later)
        ]
        # A span with all the rows that adapters have may be a part of one, in which no text lies.
        checks = [s for s in spans if s is not None and (s.whole or not s.clear)]
        if len(checks) <= len(first) or (first and checks[0].reader != readers.token):
            raise NotApplicable(
                f"the update spans everything that {task.name} could have read, so it tells no "
                "texts apart; the batch holds too many tokens for this width or these adapters, or "
                "it is noisy"
            )
        return checks

    def _complete_texts(self, observation: Observation, texts: Tensor, domain: Tokens) -> Tensor:
        """Append the last token of each text, or a place for it if it is unknown."""
        padding = domain.padding
        wide = texts.new_full((len(texts), domain.length), UNKNOWN if padding is None else padding)
        wide[:, : texts.shape[1]] = texts
        lengths = texts.new_full((len(texts),), texts.shape[1])
        if padding is not None:
            lengths = (texts != padding).long().sum(1)
        return find_last_words(observation, wide, lengths)

    def _find_tokens(self, task: Task, check: SpanCheck, *, at_least: int) -> list[Tensor]:
        """Try every token at every position; keep those whose embedding lies in the span.

        Raises:
            NotApplicable: The span holds half of the vocabulary or more, so it tells nothing.
        """
        (outside,) = measure_tokens(task, check.reader, [check.basis])
        outside = outside.expand(-1, task.domain.shape[0])
        if float((outside < check.tolerance).double().mean()) > 0.5:
            raise NotApplicable(
                f"the update spans {len(check.basis)} directions and with them nearly every token, "
                "so it tells none apart; the batch holds too many tokens for this width, or it is "
                "noisy"
            )
        return [self._select_nearest(column, at_least, check.tolerance) for column in outside.T]

    def _list_tokens(self, observation: Observation, *, at_least: int) -> list[Tensor]:
        """Every token for each position; after the first only likely ones if there are too many.

        Raises:
            NotApplicable: There are too many, and no output layer that tells which are likely.
        """
        domain = require_texts(observation.task.domain, needed_by="dager")
        every = observation.task.move_inputs(torch.arange(domain.vocabulary))
        likely = rank_next_words(observation)
        if likely is None and len(every) > self.at_most:
            raise NotApplicable(
                f"expected at most {self.at_most} tokens to try after every prefix, as dager does "
                f"where neither the first layers nor the output layer is trained, got {len(every)}"
            )
        if likely is None or len(every) * at_least <= self.at_most:
            return [every] * domain.length
        most = min(self.at_most // at_least, _NEXT * at_least * domain.length)
        return [every, *[likely[: max(_TOKENS, most)]] * (domain.length - 1)]

    def _grow_texts(
        self,
        task: Task,
        checks: Sequence[SpanCheck],
        candidates: Sequence[Tensor],
        *,
        at_least: int,
    ) -> tuple[Tensor, Tensor, bool]:
        """Grow texts by a token at a time, and keep those whose every prefix lies in the spans.

        Position i of a decoder does not depend on later positions, so the rest may be anything. A
        text may end anywhere if the domain knows padding: what follows is not read.

        Returns:
            The texts `(N, L)`, the nearest first; how far outside each lies at its worst `(N,)`;
            and whether every text that lies inside is among them.
        """
        padding = task.domain.padding if isinstance(task.domain, Tokens) else None
        live = candidates[0].new_full((1, task.domain.shape[0]), padding or 0)
        worst = live.new_zeros(1, dtype=torch.float64)
        ended, ended_worst = live[:0], worst[:0]
        complete = max(map(len, candidates)) < self.at_most
        tolerance = max(check.tolerance for check in checks)
        # Unclear spans have tolerances of their own.
        clear = all(check.whole for check in checks)
        short = takes_prefixes(task, checks[-1].reader)
        for position, tokens in enumerate(candidates):
            if padding is not None:
                tokens = tokens[tokens != padding]
                if position:
                    ended, ended_worst = torch.cat([ended, live]), torch.cat([ended_worst, worst])
            if position and len(live) * len(tokens) > self.at_most:
                complete = False
                nearest = worst.argsort(stable=True)[: self.at_most // max(at_least, _TOKENS)]
                live, worst = live[nearest], worst[nearest]
                tokens = tokens[: max(1, self.at_most // len(live))]
            worst = worst.repeat_interleave(len(tokens))
            live = _extend(live, tokens, position)
            for check in checks:
                if not len(live):
                    break
                limit = tolerance if clear else check.tolerance
                outside = check.measure_last(task, live, position, short=short)
                worst = torch.maximum(worst, outside * (tolerance / limit))
                kept = self._select_nearest(torch.cat([worst, ended_worst]), at_least, tolerance)
                stopped = kept[kept >= len(worst)] - len(worst)
                ended, ended_worst = ended[stopped], ended_worst[stopped]
                # Texts that begin alike stay together, which are read faster.
                kept = kept[kept < len(worst)].sort().values
                live, worst = live[kept], worst[kept]
            if not len(live):
                break
            report(position + 1, len(candidates), float(worst.max()))
        worst = torch.cat([worst, ended_worst])
        order = worst.argsort(stable=True)
        return torch.cat([live, ended])[order, : len(candidates)], worst[order], complete

    def _select_nearest(self, outside: Tensor, at_least: int, tolerance: float) -> Tensor:
        """Return indices of those inside, nearest first; with noise, of the `at_least` nearest."""
        count = int((outside < tolerance).sum())
        return outside.argsort(stable=True)[: min(max(count, at_least), self.at_most)]


def _certify_texts(
    observation: Observation, texts: Tensor, size: int, checks: Sequence[SpanCheck], *, alone: bool
) -> tuple[Tensor | None, Certificate]:
    """Find the labels of whole texts, and certify both; no labels if any text is missing."""
    if len(texts) != size or not bool((texts != UNKNOWN).all()):
        return None, Certificate(math.inf)
    labels = find_labels(observation, texts)
    if labels is None:
        return None, Certificate(math.inf)
    layers = tuple(layer for check in checks for layer in check.reader)
    read = list_weights(observation.task, layers)
    return labels, certify_solved(observation, texts, labels, read=read, alone=alone)


def _calibrate_spans(
    observation: Observation, checks: Sequence[SpanCheck], readers: TextReaders
) -> list[SpanCheck]:
    """Calibrate unclear spans by a simulated client, unless it has a defense."""
    task, size, client = observation.task, observation.batch_size, observation.simulate.client
    if size is None or client is None or client.chain.links or all(c.whole for c in checks):
        return list(checks)
    texts = task.move_inputs(draw_texts(require_texts(task.domain, needed_by="dager"), size))
    simulate, labels = observation.simulate, task.blank_labels(size)
    if task.target_shape is None and len(task.output_shape) == 1:
        labels = torch.arange(size).to(labels) % task.classes
    for half in (torch.bfloat16, torch.float16):
        if all(torch.equal(t, t.to(half).to(t)) for t in observation.update):
            simulate = simulate.with_task(task.to(dtype=half))
    simulated = simulate(texts, labels).map(lambda t: t.to(next(iter(observation.update)).dtype))
    read = texts.shape[1] - (not readers.reads_last)
    return [
        c if c.whole else calibrate_span(task, c, observation.update, texts, simulated, read=read)
        for c in checks
    ]


def _extend(texts: Tensor, tokens: Tensor, position: int) -> Tensor:
    """Texts `(N M, L)` with each of M tokens at a position of each of N texts."""
    grown = texts.repeat_interleave(len(tokens), 0)
    grown[:, position] = tokens.repeat(len(texts))
    return grown


def _order_texts(
    found: Tensor, outside: Tensor, padding: int | None, *, at_least: int
) -> tuple[Tensor, Tensor]:
    """Leave out beginnings of other texts, and put the least likely texts last."""
    if padding is not None:
        kept = _drop_beginnings(found, padding, at_least=at_least)
        found, outside = found[kept], outside[kept]
    # Where positions are rotations, one word again and again looks like the word alone.
    last = (found == found[:, :1]).all(1).long().argsort(stable=True)
    return found[last], outside[last]


def _drop_beginnings(texts: Tensor, padding: int, *, at_least: int) -> Tensor:
    """Indices of texts that are not the beginning of another one, which lie in the spans as well.

    Args:
        texts: `(N, L)`, the nearest first.
        padding: What fills texts up.
        at_least: The longest beginnings are kept as well if there are fewer texts than this.

    Example:
        >>> texts = torch.tensor([[4, 0, 0], [4, 7, 0], [5, 0, 0]])
        >>> _drop_beginnings(texts, 0, at_least=2).tolist()
        [1, 2]
    """
    rows = [tuple(t for t in text if t != padding) for text in texts.tolist()]
    beginnings = {row[:end] for row in rows for end in range(len(row))}
    whole = [i for i, row in enumerate(rows) if row not in beginnings]
    parts = sorted(set(range(len(rows))) - set(whole), key=lambda i: -len(rows[i]))
    chosen = whole + parts[: max(0, at_least - len(whole))]
    return torch.tensor(chosen, dtype=torch.long, device=texts.device)


def _require_readers(observation: Observation) -> None:
    require_texts(observation.task.domain, needed_by="dager")
    with precision("float32"):
        find_readers(observation.task, tolerance=1e-6)


@applies_to(Tokens, require=_require_readers)
def dager(
    *, rank_tolerance: float = 1e-6, tolerance: float = 0.05, at_most: int = 16_384
) -> Attack:
    """Exact texts of a transformer: tokens and texts that lie in the spans of its gradients.

    Args:
        rank_tolerance: Singular values below this share of the largest are rounding.
        tolerance: Largest share of a vector outside a span that counts as inside; less where the
            span is clear.
        at_most: Texts tried at each position of a decoder; of an encoder, in all. Where there are
            more, the likeliest are tried, and what came of it is returned. If only last layers are
            trained, every token of the vocabulary passes the network once.

    Example:
        >>> dager(tolerance=0.01).tolerance
        0.01

    Deviations:
        Layers that read the same, such as query, key and value, are stacked: the query alone says
        nothing about a first token, which attends only to itself. Texts are checked at the layers
        of about two blocks; the paper takes the second attention. Texts of encoders are put
        together position by position instead of trying all combinations.

    References:
        Petrov et al., 2024 (petrov2024dager)
    """
    return Dager(rank_tolerance=rank_tolerance, tolerance=tolerance, at_most=at_most)
