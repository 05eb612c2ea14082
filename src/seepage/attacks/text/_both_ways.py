"""Whole texts of networks that read both ways, put together from the tokens of each position."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.text._span_check import SpanCheck, find_widest
from seepage.attacks.text._token_table import UNKNOWN
from seepage.core import Rng, Task
from seepage.core._progress import report
from seepage.domains import Tokens

# A whole text that lies no further outside is certain: one wrong word moves all of it further.
CERTAIN = 1e-3
# Rounds in which texts are put together, and texts that are begun in each, at least.
_ROUNDS, _STARTS = 6, 16
# Random texts in which each token is read, and tokens of a position that are tried at first.
_CONTEXTS, _NEAREST = 6, 6
# Times that the tokens most similar to a text are chosen anew, and that all positions are changed.
_CHOSEN, _SWEEPS = 4, 8
# Choices of tokens that are fewer than this are all tried.
_MOST = 4_096

# A position, and a token that may stand there.
_Place = tuple[int, int]


def assemble_texts(
    task: Task,
    checks: Sequence[SpanCheck],
    candidates: Sequence[Tensor],
    *,
    size: int | None,
    tolerance: float,
    at_most: int,
    rng: Rng,
) -> tuple[Tensor, Tensor, bool]:
    """Choose a token for each position so that all of the text lies in the span of a later layer.

    What a later layer reads at a position depends on every token of the text, and on its own token
    most. So a text with one wrong token lies a little outside the span at all positions, and one
    with several lies further outside. Each token is first read in random texts. Those of the batch
    lie nearer to the span than others, even so; and those of one text lie outside it in similar
    directions, since all of them lack the rest of their text. A text begins with a token that no
    text found so far explains, and with those most similar to it; then one position after the other
    takes the token that brings the text nearest.

    Args:
        task: The network.
        checks: What reads whole texts, and the spans of their gradients; the widest is used.
        candidates: Tokens that may stand at each position, the likeliest first.
        size: How many texts there are, if known; no more tokens than that stand at a position.
        tolerance: Largest share outside that counts as inside.
        at_most: Texts tried in all, beside the last of a round. What is found by then is returned.
        rng: Draws the random texts.

    Returns:
        Texts `(N, L)`, whole ones first, then one for each missing text with tokens that are left
        over, and -1 where none is; how far outside each lies `(N,)`; and whether every choice of
        tokens was tried.
    """
    domain = task.domain
    assert isinstance(domain, Tokens)
    options = [[t for t in row.tolist() if t != domain.padding] for row in candidates]
    check = find_widest(checks)
    search = _Search(task, check, domain, options, at_most)
    wanted = size or max(map(len, options))
    texts = _list_all(options, domain, at_most=min(_MOST, at_most))
    found = search.measure_worst(texts) if texts else {}
    whole = _choose(found, check.tolerance, domain)
    for attempt in range(0 if texts else _ROUNDS):
        lacking = search.read_tokens(rng.fork("texts", attempt), size)
        left = _list_left(search.options, whole)
        if len(whole) >= wanted or not left or search.tries <= 0:
            break
        starts = [
            search.begin(held, lacking, left) for held in left[: max(_STARTS, wanted - len(whole))]
        ]
        found |= search.improve(starts, lacking)
        whole = _choose(found, check.tolerance, domain)
        report(attempt + 1, _ROUNDS, min(found.values()))
    chosen = _choose(found, tolerance, domain)[: max(wanted, len(whole))]
    parts = _place_left(_list_left(search.options, chosen), wanted - len(chosen), domain.length)
    shares = [*(found[text] for text in chosen), *(1.0 for _ in parts)]
    device = candidates[0].device
    rows = torch.tensor([*map(list, chosen), *parts], dtype=torch.long, device=device)
    return rows, torch.tensor(shares, dtype=torch.float64, device=device), bool(texts)


@dataclass
class _Search:
    """Texts that are changed word by word; `tries` says how many may still be tried."""

    task: Task
    check: SpanCheck
    domain: Tokens
    options: list[list[int]]
    tries: int

    def read_tokens(self, rng: Rng, size: int | None) -> dict[_Place, Tensor]:
        """Read every token in random texts; return in which direction it lies outside the span.

        Only the nearest `size` tokens of each position stay options.
        """
        longest = max(place + 1 for place, row in enumerate(self.options) if row)
        most = max(map(len, self.options))
        columns = []
        for place, row in enumerate(self.options[:longest]):
            # Random orders of the options, so that each is read equally often.
            keys = rng.fork(place).uniform((_CONTEXTS, max(1, len(row))))
            orders = keys.argsort(1).repeat(1, -(-most // max(1, len(row))))[:, :most]
            tokens = torch.tensor(row or self.options[0][:1])
            columns.append(tokens[orders.flatten()])
        texts = [_fill(text, self.domain) for text in torch.stack(columns, 1).tolist()]
        self.tries -= len(texts)
        lacking: dict[_Place, Tensor] = {}
        shares: dict[_Place, float] = {}
        outside = self.check.find_outside(self.task, self.task.move_inputs(torch.tensor(texts)))
        for place, row in enumerate(self.options):
            for token in row:
                found = outside[(columns[place] == token).to(outside.device), place]
                shares[place, token] = float(found.norm(dim=1).mean())
                lacking[place, token] = found.mean(0) / found.mean(0).norm()
            row.sort(key=lambda token: shares[place, token])
            del row[size:]
        return lacking

    def begin(
        self, held: _Place, lacking: Mapping[_Place, Tensor], left: Sequence[_Place]
    ) -> list[int]:
        """Start a text from a token and those most similar to it, unexplained tokens first."""
        fresh: list[list[int]] = [[] for _ in self.options]
        for place, token in left:
            fresh[place].append(token)
        text = [held[1] if place == held[0] else UNKNOWN for place in range(len(fresh))]
        for _ in range(_CHOSEN):
            known = [(place, token) for place, token in enumerate(text) if token != UNKNOWN]
            wanted = torch.stack([lacking[one] for one in known]).sum(0)
            for place, row in enumerate(self.options):
                choice = fresh[place] or row
                if place != held[0] and choice:
                    scores = torch.stack([lacking[place, token] for token in choice]) @ wanted
                    text[place] = choice[int(scores.argmax())]
        ends = [place for place, token in enumerate(text) if token == UNKNOWN]
        length = next((end for end in ends if end > held[0]), len(text))
        filler = next(token for token in text if token != UNKNOWN)
        return _fill([filler if t == UNKNOWN else t for t in text[:length]], self.domain)

    def improve(
        self, texts: list[list[int]], lacking: Mapping[_Place, Tensor]
    ) -> dict[tuple[int, ...], float]:
        """Change one position of each text at a time, or its length, as long as it comes nearer.

        The tokens most similar to a text are tried first, and all of them once those bring nothing.

        Returns:
            The texts, each with how far outside the span it lies at its worst position.
        """
        found = self.measure_worst(texts)
        going, few = [list(t) for t, share in found.items() if share >= self.check.tolerance], True
        best = [math.inf] * len(going)
        for _ in range(_SWEEPS):
            before = list(best)
            for place in range(-1, self.domain.length):
                self._change(going, best, place, lacking, few=few)
            found |= self.measure_worst(going)
            moved = [new < old for new, old in zip(best, before, strict=True)]
            if not any(moved) and few and self.tries > 0:
                few = False
                continue
            kept = {
                tuple(text): share
                for text, share, changed in zip(going, best, moved, strict=True)
                if changed and found[tuple(text)] >= self.check.tolerance
            }
            going, best = [list(text) for text in kept], list(kept.values())
            if not going or self.tries <= 0:
                break
        return found

    def _change(
        self,
        texts: list[list[int]],
        best: list[float],
        place: int,
        lacking: Mapping[_Place, Tensor],
        *,
        few: bool,
    ) -> None:
        """Give each text the token at a place, or at -1 the length, that brings it nearest."""
        varied = [self._vary(text, place, lacking, few=few) for text in texts]
        self.tries -= sum(map(len, varied))
        if not any(varied) or self.tries <= 0:
            return
        shares = self._measure([one for tried in varied for one in tried])
        parts = torch.split(shares, [len(tried) for tried in varied])
        for row, (tried, outside) in enumerate(zip(varied, parts, strict=True)):
            nearest = int(outside.argmin()) if tried else 0
            if tried and float(outside[nearest]) < best[row]:
                texts[row], best[row] = tried[nearest], float(outside[nearest])

    def _vary(
        self, text: list[int], place: int, lacking: Mapping[_Place, Tensor], *, few: bool
    ) -> list[list[int]]:
        """Texts with another token at a place; with another length at place -1."""
        length = _measure_length(text, self.domain)
        if place >= 0:
            row = self.options[place] if place < length else []
            if few and len(row) > _NEAREST:
                wanted = torch.stack([lacking[one] for one in enumerate(text[:length])]).sum(0)
                scores = torch.stack([lacking[place, token] for token in row]) @ wanted
                row = [row[i] for i in scores.topk(_NEAREST).indices.tolist()]
            return [[*text[:place], token, *text[place + 1 :]] for token in row]
        if self.domain.padding is None:
            return [text]
        varied = [_fill(text[:end], self.domain) for end in range(1, length + 1)]
        longer = list(text[:length])
        while len(longer) < self.domain.length and self.options[len(longer)]:
            longer.append(self.options[len(longer)][0])
            varied.append(_fill(longer, self.domain))
        return varied

    def measure_worst(self, texts: Sequence[Sequence[int]]) -> dict[tuple[int, ...], float]:
        """How far outside the span texts lie at their worst position."""
        different = list(dict.fromkeys(map(tuple, texts)))
        if not different:
            return {}
        shares = self._measure(different, worst=True).tolist()
        return dict(zip(different, shares, strict=True))

    def _measure(self, texts: Sequence[Sequence[int]], *, worst: bool = False) -> Tensor:
        """How far outside the span texts lie: on average over their tokens, or at the worst one."""
        rows = self.task.move_inputs(torch.tensor(texts))
        outside = self.check.measure(self.task, rows)
        lengths = torch.tensor([_measure_length(text, self.domain) for text in texts])
        inside = torch.arange(rows.shape[1]) < lengths[:, None]
        outside = outside.cpu() * inside
        return outside.amax(1) if worst else outside.sum(1) / lengths


def _list_all(
    options: Sequence[Sequence[int]], domain: Tokens, *, at_most: int
) -> list[tuple[int, ...]]:
    """All combinations of candidate tokens; empty if more than `at_most`."""
    lengths = range(1 if domain.padding is not None else domain.length, domain.length + 1)
    counts = [math.prod(map(len, options[:length])) for length in lengths]
    if sum(counts) > at_most:
        return []
    choices = (itertools.product(*options[:length]) for length in lengths)
    return [tuple(_fill(text, domain)) for text in itertools.chain.from_iterable(choices)]


def _list_left(options: Sequence[Sequence[int]], whole: Sequence[tuple[int, ...]]) -> list[_Place]:
    """Positions and tokens that no complete text explains, sorted by position."""
    used = {(place, token) for text in whole for place, token in enumerate(text)}
    listed = ((place, token) for place, row in enumerate(options) for token in row)
    return [one for one in listed if one not in used]


def _choose(
    found: Mapping[tuple[int, ...], float], tolerance: float, domain: Tokens
) -> list[tuple[int, ...]]:
    """Texts inside the span, nearest first; uncertain ones only if most of their tokens are new."""
    chosen: list[tuple[int, ...]] = []
    used: set[_Place] = set()
    for text, share in sorted(found.items(), key=lambda item: item[1]):
        words = set(enumerate(text[: _measure_length(text, domain)]))
        if share < CERTAIN or (share < tolerance and 2 * len(words - used) > len(words)):
            chosen.append(text)
            used |= words
    return chosen


def _measure_length(text: Sequence[int], domain: Tokens) -> int:
    return next((i for i, token in enumerate(text) if token == domain.padding), len(text))


def _fill(text: Sequence[int], domain: Tokens) -> list[int]:
    filler = UNKNOWN if domain.padding is None else domain.padding
    return [*text, *[filler] * (domain.length - len(text))]


def _place_left(left: Sequence[_Place], count: int, length: int) -> list[list[int]]:
    """Put tokens that are left over at their positions, one for each missing text."""
    rows = [[UNKNOWN] * length for _ in range(max(0, count))]
    for place, token in left:
        free = next((row for row in rows if row[place] == UNKNOWN), None)
        if free is not None:
            free[place] = token
    return rows
