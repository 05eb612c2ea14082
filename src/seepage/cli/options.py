"""Options that several commands share, and what every command begins with."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Numbers in one input: a hundred times as many as a photograph has.
_LARGEST = 100_000_000
# Control characters but for the end of a line, and those that turn the
# direction of text or cannot be encoded.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
Device = StrEnum("Device", ["auto", "cpu", "cuda"])
Where = StrEnum("Where", ["local", "ray"])
CapturedForm = StrEnum("CapturedForm", ["gradient", "difference", "weights_after"])
Effort = StrEnum("Effort", ["quick", "standard", "thorough"])
Printed = StrEnum("Printed", ["text", "json"])
Format = StrEnum("Format", "html markdown csv json parquet pivot latex svg pdf junit sarif")
Kind = StrEnum("Kind", "attacks bounds risks defenses locals models data metrics")

DeviceOption = Annotated[Device, typer.Option(help="Device to train and attack on.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Number of worker processes; a GPU takes one."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Skip cases that already have a result in --out.")
]
Overwrite = Annotated[bool, typer.Option(help="Replace the audit in --out.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="List the cases and estimate the time; run nothing.")
]
Plain = Annotated[
    bool, typer.Option("--plain", help="Print lines for a log instead of a progress bar.")
]
Quiet = Annotated[bool, typer.Option(help="Show only the result, no progress.")]
PrintedOption = Annotated[Printed, typer.Option("--format", help="Output format.")]
EncryptKey = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Key that encrypts private data; SEEPAGE_KEY_FILE by default."
    ),
]
NetworkOptions = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="An argument of the model, as key=value; repeatable."),
]
Attacks = Annotated[
    list[str] | None,
    typer.Option(help="As NAME or NAME:key=value,key=value; repeatable. auto by default."),
]
KnowsLabels = Annotated[
    bool, typer.Option("--knows-labels", help="The adversary knows the labels.")
]


def _make_printable(text: str) -> str:
    r"""Replace what a terminal would obey instead of showing it.

    Example:
        >>> _make_printable("a\x1b[2Jb")
        'a?[2Jb'
    """
    return _UNSAFE.sub("?", text)


class _SafeConsole(Console):
    """A console that prints text from specs, records and files as text only."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as always, without control characters in any text."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else _make_printable(text), style, control)


def make_console(*, stderr: bool = False) -> Console:
    """A console for the output, or for messages, of a command."""
    # Names in files and paths may look like the code of an emoji, such as `a:b:c`.
    return _SafeConsole(stderr=stderr, emoji=False)


def use_key(path: Path | None) -> None:
    """Let the file of a key count for this process and those it starts."""
    from seepage.core.encryption import VARIABLE

    if path is not None:
        os.environ[VARIABLE] = str(path.absolute())


def import_from_here() -> None:
    """Let `package.module:factory` name modules in the current folder."""
    sys.path.insert(0, str(Path.cwd()))


def read_option(written: str) -> tuple[str, Any]:
    """Read a key and its value, written as in a spec; a bare word is a string."""
    from seepage.core.construct import parse_toml
    from seepage.core.errors import InvalidValue

    key, separator, value = written.partition("=")
    if not separator:
        raise InvalidValue(f"expected --option as key=value, got {written!r}")
    try:
        return key.strip(), parse_toml(f"value = {value}")["value"]
    except InvalidValue:
        return key.strip(), value.strip()


def read_shape(shape: str) -> tuple[int, ...]:
    """Read the shape of one input.

    Example:
        >>> read_shape("3x32x32")
        (3, 32, 32)
        >>> read_shape("12")
        (12,)
    """
    from seepage.core.errors import InvalidValue

    read = tuple(int(size) for size in shape.split("x") if size.isdecimal())
    if len(read) not in (1, 2, 3) or shape.count("x") != len(read) - 1:
        raise InvalidValue(
            f"expected --shape as channels and sizes, such as 3x32x32 or 1x140, or as the "
            f"number of columns of a row, such as 12, got {shape!r}"
        )
    if (entries := prod(read)) > _LARGEST:
        raise InvalidValue(
            f"expected --shape of {_LARGEST:,} numbers or fewer, got {shape}, which are {entries:,}"
        )
    return read
