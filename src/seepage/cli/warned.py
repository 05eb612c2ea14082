"""Warnings as a command line shows them: one sentence, and not where in the code it stands."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console

_as_python_does = warnings.showwarning


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show our own warnings as a sentence each inside the block; others stay as they are."""
    with warnings.catch_warnings():
        warnings.showwarning = _shown
        yield


def _shown(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if not category.__module__.startswith("seepage."):
        _as_python_does(message, category, filename, lineno, file, line)
        return
    Console(stderr=True).print(
        f"seepage: warning: {message}",
        style="yellow",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
