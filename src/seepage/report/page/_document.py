"""The document around every page, and the templates that pages are made of.

A template is a file of macros, one for each section. Whatever is put into one is escaped, unless a
template made it. A whole document is cleared of control characters at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from seepage._printable import make_printable
from seepage.audit.results import Level, Result

# The page may load and run only what it contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_CLASSES = {Level.partly: "trace", Level.inconclusive: "trace", Level.not_shown: "safe"}


@dataclass(frozen=True)
class Section:
    """One section: its anchor, its heading, how to read it, and what it shows."""

    name: str
    title: str
    lead: str
    content: str


def document(
    title: str, *, first: str, sections: Iterable[Section | None], private: bool = True
) -> str:
    """Write a whole page: `first`, the contents, then the sections; None is left out.

    A `private` page warns that it contains private inputs.
    """
    page = _environment().get_template("page.html")
    shown = [section for section in sections if section is not None]
    return make_printable(
        page.render(title=title, first=first, sections=shown, private=private, policy=POLICY)
    )


def macros(template: str) -> Any:  # noqa: ANN401
    """The macros of a template, by name; each returns markup."""
    return _environment().get_template(f"{template}.html").module


def join_markup(*parts: str | None) -> Markup:
    """Join parts, and escape those that are not markup; None is left out.

    Example:
        >>> join_markup(Markup("<br>"), "<script>")
        Markup('<br>&lt;script&gt;')
    """
    return Markup("").join(part for part in parts if part is not None)


def faint(text: str) -> Markup:
    """Write text in a faint colour."""
    return _part("faint", text)


def badge(level: Level) -> Markup:
    """Write the level as a word in its colour."""
    return _part("badge", str(level), level_class(level))


def coloured(text: str, kind: str | None) -> Markup:
    """Write text in the colour of a style class."""
    return _part("coloured", text, kind)


def filter_link(label: str, *, words: str) -> Markup:
    """Write a label that filters the table of results by these words when it is clicked."""
    return _part("filter_link", label, words)


def make_scrollable(label: str, content: str) -> Markup:
    """Let content scroll that may be wider than the page, also by keyboard."""
    return _part("scrollable", label, content)


def table(
    label: str,
    caption: str,
    header: Iterable[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    *,
    kind: str | None = None,
    name: str | None = None,
) -> Markup:
    """Write a table that scrolls if it is wider than the page.

    Args:
        label: Names it for a screen reader.
        caption: Stands above it.
        header: The title of each column, and the style class of its cells.
        rows: Their cells; the first of each row is its header.
        kind: Style class of the table.
        name: Its anchor.
    """
    return _part("table", label, caption, list(header), rows, kind, name)


def number_columns(*titles: str, words: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The header of a table: columns of words, then columns of numbers."""
    return [*((title, "") for title in words), *((title, "number") for title in titles)]


def level_class(level: Level | None) -> str:
    """The style class that colours a level."""
    return "none" if level is None else _CLASSES.get(level, "leak")


def amount(row: Result) -> str:
    """What came back, in short; "exact" if the guess is the input."""
    return "exact" if row.exact else row.amount.words()


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FunctionLoader(_read), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    found.filters["keep_counts"] = _keep_counts
    found.globals |= {"style": Markup(_read("style.css")), "script": Markup(_read("script.js"))}
    return found


def _read(name: str) -> str:
    folder = files("seepage.report.page")
    place = folder / "templates" / name if name.endswith(".html") else folder / name
    return place.read_text(encoding="utf-8")


def _part(name: str, *given: object) -> Markup:
    made: Markup = getattr(macros("parts"), name)(*given)
    return made


def _keep_counts(text: str) -> str:
    """Keep a number and the word it counts on one line."""
    return re.sub(r"(?<=\d) (?=\w)|(?<=\bof) (?=\d)", "\N{NO-BREAK SPACE}", text)
