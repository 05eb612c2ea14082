"""Draw one input: an image, a signal, a text with what looks like personal data, or a row."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence

import torch
from markupsafe import Markup
from torch import Tensor

from seepage.domains._box import Vector
from seepage.report._contact_sheet import draw_image
from seepage.report.page._document import macros

# Longest side of a picture, in pixels; larger images are reduced.
LARGEST = 96
POINTS = 160
# What a piece of text is called, the first that fits.
_PATTERNS = (
    ("email address", re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")),
    ("date", re.compile(r"\b(\d{4}-\d{1,2}-\d{1,2}|\d{1,2}[./]\d{1,2}[./]\d{2,4})\b")),
    ("long number", re.compile(r"(?<![\d+])\d{6,}")),
    ("phone number", re.compile(r"(?<!\w)\+?\d[\d ()/-]{6,}\d(?!\w)")),
    ("name", re.compile(r"\b[A-Z][a-z]+(?: [A-Z]\.)? [A-Z][a-z]+\b")),
)
# How tokenizers mark the beginning of a word, or its continuation.
_SPACES, _JOINED = ("\u0120", "\u2581"), "##"

Shown = Tensor | tuple[str, ...]


def picture(values: Shown, *, alt: str, over: Shown | None = None) -> Markup:
    """Draw an image `(C, H, W)` as pixels, words as text, and other tensors as lines.

    Args:
        values: One person's input or a guess at it, in natural units or in words.
        alt: What it shows, for screen readers.
        over: The truth under a guess: lines are drawn over it, and words that differ are marked.
    """
    if not isinstance(values, Tensor):
        return _draw_words(values, over=over if isinstance(over, tuple) else values)
    if values.ndim == 1:
        said = Vector(tuple(values.shape)).words(values)
        return _draw_columns(said, said)
    if values.ndim == 3:
        return _part("pixels", _png(values), alt)
    return _draw_signal(values, alt=alt, over=over if isinstance(over, Tensor) else None)


def _draw_words(said: tuple[str, ...], *, over: tuple[str, ...]) -> Markup:
    """A text or the columns of a row; words that differ from the truth are marked.

    Words of the text that came back in another place are told from wrong ones, and what looks like
    personal data is highlighted.

    Example:
        >>> _draw_words(("good", "night"), over=("good", "morrow"))
        Markup('<p class="said"><span>good</span> <mark>night</mark> </p>')
        >>> _draw_words(("night", "_"), over=("good", "night"))
        Markup('<p class="said"><span class="elsewhere">night</span> <mark>_</mark> </p>')
    """
    if all(": " in word for word in (*said, *over)):
        return _draw_columns(said, over)
    kinds, pool = _find_personal_data(over), set(over)
    places = {word: kind for word, kind in zip(over, kinds, strict=True) if kind}
    marked = []
    for ours, theirs in zip(said, over, strict=True):
        classes = ["elsewhere"] * (ours in pool and ours != theirs)
        classes += ["personal"] * (ours in places)
        marked.append((ours, ours in pool, " ".join(classes) or None, places.get(ours)))
    return _part("text", marked)


def _find_personal_data(words: Sequence[str]) -> tuple[str, ...]:
    """Say of each word what personal data it seems to be part of; empty if of none.

    Patterns find email addresses, dates, phone numbers, long numbers and pairs of capitalised
    words. They miss much and take some other words for data: they show where to look first.

    Example:
        >>> _find_personal_data(("write", "to", "Ann", "Lee", "at", "ann@lee.org"))
        ('', '', 'name', 'name', '', 'email address')
        >>> _find_personal_data(("\u2581call", "\u2581020", "-79", "46", "-017"))[1:3]
        ('phone number', 'phone number')
    """
    spaced = any(word.startswith(_SPACES) for word in words)
    pieces = [_write(word, spaced=spaced) for word in words]
    if pieces:
        pieces[0] = pieces[0].lstrip()
    ends = [sum(map(len, pieces[: place + 1])) for place in range(len(pieces))]
    text, kinds = "".join(pieces), [""] * len(pieces)
    for kind, pattern in _PATTERNS:
        for found in pattern.finditer(text):
            for place, end in enumerate(ends):
                begin = end - len(pieces[place].lstrip())
                if begin < found.end() and end > found.start() and not kinds[place]:
                    kinds[place] = kind
    return tuple(kinds)


def _write(word: str, *, spaced: bool) -> str:
    """A token as it stands in a text, with the space before it.

    Args:
        word: As the tokenizer writes it.
        spaced: Whether it marks where words begin; else where they go on, or not at all.
    """
    if word.startswith(_SPACES):
        return f" {word[1:]}"
    if word.startswith(_JOINED):
        return word[2:]
    return word if spaced else f" {word}"


def _draw_columns(said: tuple[str, ...], over: tuple[str, ...]) -> Markup:
    """A row as a table of its columns: the truth, and what came back where it differs.

    Example:
        >>> "<td><mark>61</mark></td>" in _draw_columns(("age: 61",), ("age: 58",))
        True
    """
    rows = []
    for ours, theirs in zip(said, over, strict=True):
        name, _, value = ours.partition(": ")
        rows.append((name, theirs.partition(": ")[2], value))
    return _part("columns", rows, over is not said)


def _png(image: Tensor) -> str:
    """An image `(C, H, W)` in [0, 1] as a data address; a small one keeps its pixels.

    Example:
        >>> _png(torch.zeros(1, 2, 2))[:22]
        'data:image/png;base64,'
    """
    drawn, kept = draw_image(image), io.BytesIO()
    drawn.thumbnail((LARGEST, LARGEST))
    drawn.save(kept, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(kept.getvalue()).decode("ascii")


def _draw_signal(values: Tensor, *, alt: str, over: Tensor | None) -> Markup:
    """A signal `(C, L)` or `(L,)` as one line per channel."""
    layers = {"under": over, None: values}
    drawn = {kind: _thin(layer) for kind, layer in layers.items() if layer is not None}
    low = min(float(lines.min()) for lines in drawn.values())
    high = max(float(lines.max()) for lines in drawn.values())
    lines = [
        (kind, _list_points((line - low) / max(high - low, 1e-12)))
        for kind, channels in drawn.items()
        for line in channels
    ]
    return _part("signal", alt, lines)


def _thin(values: Tensor) -> Tensor:
    """Channels `(C, L)` with about `POINTS` values each at most."""
    lines = values.nan_to_num().reshape(-1, values.shape[-1])
    return lines[:, :: max(1, lines.shape[-1] // POINTS)]


def _list_points(heights: Tensor) -> str:
    """The points of a line of heights in [0, 1]."""
    across = torch.linspace(2, 94, len(heights)).tolist()
    pairs = zip(across, heights.tolist(), strict=True)
    return " ".join(f"{x:.1f},{36 - 32 * y:.1f}" for x, y in pairs)


def _part(name: str, *given: object) -> Markup:
    made: Markup = getattr(macros("picture"), name)(*given)
    return made
