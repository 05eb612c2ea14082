"""Whole texts of networks that read both ways, put together from the tokens of each position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.attacks.text.readers import SpanCheck
from seepage.attacks.text.token_table import UNKNOWN
from seepage.core import Rng, Task
from seepage.core.progress import report
from seepage.domains import Tokens

# A whole text that lies no further outside is certain: one wrong word moves all of it further.
CERTAIN = 1e-3
# Beginnings from which texts are put together at once, and rounds of them.
_STARTS, _ROUNDS = 16, 6
# Times that all positions of a text are gone through.
_SWEEPS = 8
# Choices of tokens that are fewer than this are all tried.
_MOST = 4_096


def assemble_texts(
    task: Task,
    check: SpanCheck,
    candidates: Sequence[Tensor],
    *,
    size: int | None,
    tolerance: float,
    rng: Rng,
) -> tuple[Tensor, Tensor, bool]:
    """Choose a token for each position so that all of the text lies in the span of a later layer.

    What a later layer reads at a position depends on every token of the text, and on its own token
    most. So a text with one wrong token lies a little outside the span at all positions, and one
    with several lies further outside: from a random choice, one position after the other takes the
    token that brings the text nearest. Beginnings hold tokens that no text found so far explains.

    Args:
        task: The network.
        check: What reads whole texts, and the span of its gradient.
        candidates: Tokens that may stand at each position, the likeliest first.
        size: How many texts there are, if known.
        tolerance: Largest share outside that counts as inside.
        rng: Orders what is tried.

    Returns:
        Texts `(N, L)`, whole ones first, then one for each missing text with tokens that are left
        over, and -1 where none is; how far outside each lies `(N,)`; and whether every choice of
        tokens was tried.
    """
    domain = task.domain
    assert isinstance(domain, Tokens)
    options = [tokens.tolist() for tokens in candidates]
    if domain.padding is not None:
        options = [[t for t in row if t != domain.padding] for row in options]
    wanted = size or max(map(len, options))
    found: dict[tuple[int, ...], float] = {}
    lengths = range(1 if domain.padding is not None else domain.length, domain.length + 1)
    complete = sum(_count(options[:length]) for length in lengths) <= _MOST
    certain: list[tuple[int, ...]] = []
    for attempt in range(_ROUNDS):
        left = _list_left(options, certain)
        if len(certain) >= wanted or not left:
            break
        keys = [rng.fork("start", attempt, number) for number in range(max(_STARTS, 2 * wanted))]
        starts = [
            _start_text(options, left[number % len(left)], lengths, left, key)
            for number, key in enumerate(keys)
        ]
        found |= _improve(task, check, starts, options, domain)
        certain = [text for text, share in found.items() if share < CERTAIN]
        report(attempt + 1, _ROUNDS, min(found.values()))
    chosen = certain
    for text, share in sorted(found.items(), key=lambda item: item[1]):
        fresh = set(enumerate(text)) & set(_list_left(options, chosen))
        if share < tolerance and len(chosen) < wanted and 2 * len(fresh) > len(text):
            chosen = [*chosen, text]
    parts = _place_left(_list_left(options, chosen), wanted - len(chosen), domain.length)
    shares = [*(found[text] for text in chosen), *(1.0 for _ in parts)]
    device = candidates[0].device
    texts = torch.tensor([*map(list, chosen), *parts], dtype=torch.long, device=device)
    return texts, torch.tensor(shares, dtype=torch.float64, device=device), complete


def _count(options: Sequence[Sequence[int]]) -> int:
    """How many texts the options make, or more than are tried."""
    count = 1
    for row in options:
        count = min(count * len(row), _MOST + 1)
    return count


def _list_left(
    options: Sequence[Sequence[int]], whole: Sequence[tuple[int, ...]]
) -> list[tuple[int, int]]:
    """Positions and tokens that no whole text explains, the likeliest of each position first."""
    used = {(place, token) for text in whole for place, token in enumerate(text)}
    ranked = [
        (rank, place, token)
        for place, row in enumerate(options)
        for rank, token in enumerate(row)
        if (place, token) not in used
    ]
    return [(place, token) for _, place, token in sorted(ranked)]


def _start_text(
    options: Sequence[Sequence[int]],
    held: tuple[int, int],
    lengths: range,
    left: Sequence[tuple[int, int]],
    rng: Rng,
) -> list[int]:
    """Draw a text that holds a token at its place, of tokens that are left over where there are."""
    fresh: list[list[int]] = [[] for _ in options]
    for other, one in left:
        fresh[other].append(one)
    place, token = held
    longest = max(length for length in lengths if all(options[:length])) if options[0] else 1
    chosen = []
    for other, row in enumerate(options[: max(longest, place + 1)]):
        choice = fresh[other] or list(row)
        drawn = int(float(rng.fork(other).uniform((1,))) * len(choice))
        chosen.append(token if other == place else choice[drawn])
    return chosen


def _improve(
    task: Task,
    check: SpanCheck,
    starts: Sequence[list[int]],
    options: Sequence[Sequence[int]],
    domain: Tokens,
) -> dict[tuple[int, ...], float]:
    """Change one position of each text at a time, or its length, as long as it comes nearer.

    Returns:
        The texts, each with how far outside the span it lies at its worst position.
    """
    texts = [_fill(start, domain) for start in starts]
    best = [math.inf] * len(texts)
    for _ in range(_SWEEPS):
        before = list(best)
        for place in range(-1, domain.length):
            varied = [_vary(text, place, options, domain) for text in texts]
            if not any(varied):
                continue
            shares = _measure(task, check, [one for tried in varied for one in tried], domain)
            for row, (tried, outside) in enumerate(
                zip(varied, torch.split(shares, [len(tried) for tried in varied]), strict=True)
            ):
                nearest = int(outside.argmin()) if tried else 0
                if tried and float(outside[nearest]) < best[row]:
                    texts[row], best[row] = tried[nearest], float(outside[nearest])
        if best == before:
            break
    worst = _measure(task, check, texts, domain, worst=True).tolist()
    return {tuple(text): share for text, share in zip(texts, worst, strict=True)}


def _vary(
    text: list[int], place: int, options: Sequence[Sequence[int]], domain: Tokens
) -> list[list[int]]:
    """Texts with another token at a place; with another length at place -1."""
    length = _measure_length(text, domain)
    if place >= 0:
        if place >= length:
            return []
        return [[*text[:place], token, *text[place + 1 :]] for token in options[place]]
    if domain.padding is None:
        return [text]
    varied = [_fill(text[:end], domain) for end in range(1, length + 1)]
    longer = list(text[:length])
    while len(longer) < domain.length and options[len(longer)]:
        longer.append(options[len(longer)][0])
        varied.append(_fill(longer, domain))
    return varied


def _measure_length(text: Sequence[int], domain: Tokens) -> int:
    return next((i for i, token in enumerate(text) if token == domain.padding), len(text))


def _fill(text: Sequence[int], domain: Tokens) -> list[int]:
    filler = UNKNOWN if domain.padding is None else domain.padding
    return [*text, *[filler] * (domain.length - len(text))]


def _measure(
    task: Task, check: SpanCheck, texts: list[list[int]], domain: Tokens, *, worst: bool = False
) -> Tensor:
    """How far outside the span texts lie: on average over their tokens, or at the worst one."""
    rows = task.move_inputs(torch.tensor(texts))
    outside = check.measure(task, rows)
    lengths = torch.tensor([_measure_length(text, domain) for text in texts])
    inside = torch.arange(rows.shape[1]) < lengths[:, None]
    outside = outside.cpu() * inside
    return outside.amax(1) if worst else outside.sum(1) / lengths


def _place_left(left: Sequence[tuple[int, int]], count: int, length: int) -> list[list[int]]:
    """Put tokens that are left over at their positions, one for each missing text."""
    rows = [[UNKNOWN] * length for _ in range(max(0, count))]
    for place, token in left:
        free = next((row for row in rows if row[place] == UNKNOWN), None)
        if free is not None:
            free[place] = token
    return rows
