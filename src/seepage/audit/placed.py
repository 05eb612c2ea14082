"""Errors in a spec, told with the file, the line and the section."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seepage.audit.lines import Place, lines, nearest
from seepage.audit.source import Source
from seepage.core.errors import SeepageError

_SECTIONS = ("scenario", "data", "models", "locals", "defenses", "threats", "attacks", "bounds")


@contextmanager
def placed(source: Source) -> Iterator[None]:
    """Put the place before the sentence of any error raised inside."""
    try:
        yield
    except SeepageError as error:
        line = nearest(lines(source.text), error.place)
        file = source.name if line is None else f"{source.name}, line {line}"
        sentence = ": ".join([file, *_sections(error.place), str(error)])
        error.args = (sentence,)
        if isinstance(error, ImportError):  # which prints its message, not its arguments
            error.msg = sentence
        raise


def _sections(place: Place) -> Iterator[str]:
    for part, after in zip(place, (*place[1:], None), strict=True):
        if part == "scenario" and isinstance(after, int):
            yield f"scenario {after + 1}"
        elif part in _SECTIONS[1:]:
            yield str(part)
