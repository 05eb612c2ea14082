"""What every command prints with: text as it is, without what could drive a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from seepage._printable import make_printable


class _SafeConsole(Console):
    """A console that prints text from specs, records and files as text only."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as always, without control characters in any text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else make_printable(text), style, control)


def make_console(*, stderr: bool = False) -> Console:
    """A console for the output, or for messages, of a command."""
    # Names in files and paths may look like the code of an emoji, such as `a:b:c`.
    return _SafeConsole(stderr=stderr, emoji=False)


def print_line(console: Console, text: str, *, style: str | None = None) -> None:
    """Print text as it is, in one line whatever the width of the terminal."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
