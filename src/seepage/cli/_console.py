"""How every command prints and writes: text as it is, and files that are whole or not there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from seepage._printable import make_printable

if TYPE_CHECKING:
    from seepage.report import Verdict


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


def print_verdict(console: Console, judged: Verdict) -> None:
    """Print what an audit found, with alarms before the details."""
    print_line(console, f"{judged.headline}.", style="bold")
    for alarm in judged.alarms:
        print_line(console, alarm, style="bold red")
    for sentence in judged.details:
        print_line(console, sentence)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file, complete or not at all, and the folder it is in."""
    from seepage.audit._folder import require_free
    from seepage.core._whole_file import write_whole
    from seepage.core.errors import UnreadableFile

    data = content if isinstance(content, bytes) else content.encode()
    require_free(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise UnreadableFile(
            f"cannot write the report to {str(path)!r}: {error.strerror}; choose another --out"
        ) from error
