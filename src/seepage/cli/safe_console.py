"""A console on which names and titles cannot move the cursor or change the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Control characters but for the end of a line, and those that turn the
# direction of text or cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def _make_printable(text: str) -> str:
    r"""Replace what a terminal would obey instead of showing it.

    Example:
        >>> _make_printable("a\x1b[2Jb")
        'a?[2Jb'
    """
    return _UNSAFE.sub("?", text)


class SafeConsole(Console):
    """A console that prints text from specs, records and files as text only."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as always, without control characters in any text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _make_printable(text), style, control)
