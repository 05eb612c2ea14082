"""Words of a text that look like personal data, found by simple patterns."""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def find_personal_data(words: Sequence[str]) -> tuple[str, ...]:
    """Say of each word what personal data it seems to be part of; empty if of none.

    Patterns find email addresses, dates, phone numbers, long numbers and pairs of capitalised
    words. They miss much and take some other words for data: they show where to look first.

    Args:
        words: Of a text, as a tokenizer writes them.

    Example:
        >>> find_personal_data(("write", "to", "Ann", "Lee", "at", "ann@lee.org"))
        ('', '', 'name', 'name', '', 'email address')
        >>> find_personal_data(("\u2581call", "\u2581020", "-79", "46", "-017"))[1:3]
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
