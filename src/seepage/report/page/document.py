"""The parts of an HTML page: elements, tables, sections, and the document around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from seepage.report.leak import Attempt, Level


VOID = frozenset({"br", "circle", "col", "hr", "img", "input", "line", "meta", "polyline", "rect"})

Attributes = Mapping[str, str | int | float | bool | None]


class Markup(str):
    """Text that is HTML. Only this package makes it, so that a name from a spec never is."""

    __slots__ = ()


def element(name: str, attributes: Attributes | None = None, *children: str | None) -> Markup:
    """One element.

    Args:
        name: Of the tag.
        attributes: By name; True stands for an attribute without a value, and what is None or
            False is left out.
        children: Markup as it is, other text escaped; None is left out.

    Example:
        >>> element("p", {"class": "note", "hidden": True}, "a < b ", element("b", None, "c"))
        '<p class="note" hidden>a &lt; b <b>c</b></p>'
    """
    written = "".join(_attribute(key, value) for key, value in (attributes or {}).items())
    if name in VOID:
        return Markup(f"<{name}{written}>" if name in _PLAIN else f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join_markup(*children)}</{name}>")


def join_markup(*parts: str | None) -> Markup:
    """Parts one after the other.

    Example:
        >>> join_markup(element("br"), "<script>")
        '<br>&lt;script&gt;'
    """
    return Markup("".join(_safe(part) for part in parts if part is not None))


def table(
    caption: str,
    header: Mapping[str, str],
    rows: list[list[str]],
    attributes: Attributes | None = None,
) -> Markup:
    """A table with a caption, scoped headers and the first cell of each row as its header.

    Args:
        caption: What the table shows.
        header: Title of each column to the class of its cells.
        rows: Cells, as many as there are columns.
        attributes: Of the table.
    """
    classes = list(header.values())
    head = [element("th", {"scope": "col", "class": c or None}, t) for t, c in header.items()]
    body = [element("tr", None, *_cells(row, classes)) for row in rows]
    return element(
        "table",
        attributes,
        element("caption", None, caption),
        element("thead", None, element("tr", None, *head)),
        element("tbody", None, *body),
    )


def _cells(row: list[str], classes: list[str]) -> list[Markup]:
    first, *rest = row
    cells = zip(rest, classes[1:], strict=True)
    return [
        element("th", {"scope": "row", "class": classes[0] or None}, first),
        *(element("td", {"class": c or None}, cell) for cell, c in cells),
    ]


def make_scrollable(label: str, content: Markup) -> Markup:
    """Content that may be wider than the page, reachable by keyboard."""
    return element(
        "div", {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": label}, content
    )


_PLAIN = frozenset({"br", "col", "hr", "img", "input", "meta"})


def _safe(part: str) -> str:
    return part if isinstance(part, Markup) else escape(part)


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{escape(str(value))}"'


@dataclass(frozen=True)
class Section:
    """One section.

    Args:
        name: Of its anchor.
        title: Its heading, also in the list of contents.
        lead: How to read it.
        content: What it shows.
    """

    name: str
    title: str
    lead: str
    content: Markup

    def markup(self) -> Markup:
        """The section as HTML."""
        heading = f"{self.name}-title"
        return element(
            "section",
            {"id": self.name, "aria-labelledby": heading},
            element("h2", {"id": heading}, self.title),
            element("p", {"class": "lead"}, self.lead),
            self.content,
        )


# Nothing but what stands in the page itself may be loaded or run.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def document(
    title: str, *, first: Markup, sections: Sequence[Section], private: bool = True
) -> str:
    """A whole page.

    Args:
        title: Of the window.
        first: What stands above the list of contents.
        sections: In order.
        private: Whether the page contains private inputs, which it then says.
    """
    head = element(
        "head",
        None,
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}),
        element("title", None, title),
        element("style", None, Markup(_file("style.css"))),
    )
    body = element(
        "body",
        None,
        element("a", {"class": "skip", "href": "#main"}, "Skip to the results"),
        element(
            "main", {"id": "main"}, first, _contents(sections), *(s.markup() for s in sections)
        ),
        _footer(private),
        element("div", {"id": "tip", "role": "status", "hidden": True}),
        element("script", None, Markup(_file("script.js"))),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _contents(sections: Sequence[Section]) -> Markup:
    links = [element("li", None, element("a", {"href": f"#{s.name}"}, s.title)) for s in sections]
    return element("nav", {"aria-label": "Contents"}, element("ul", None, *links))


def _footer(private: bool) -> Markup:
    warning = (
        "This page contains private inputs: treat it as you treat the data." if private else ""
    )
    return element("footer", None, element("p", {"class": "faint"}, join_markup(warning)))


def _file(name: str) -> str:
    return (files("seepage.report.page") / name).read_text(encoding="utf-8")


_CLASSES = {"recognisable": "leak", "partial": "trace", "hidden": "safe"}


def level_class(level: Level | None) -> str:
    """The class that colours it."""
    return "none" if level is None else _CLASSES[level.name]


def badge(level: Level) -> Markup:
    """The level as a word in its colour."""
    return element("span", {"class": f"badge {level_class(level)}"}, str(level))


def amount(attempt: Attempt) -> str:
    """What came back, in a few characters.

    Exact means that the guess rounds to the same 8-bit input.
    """
    return "exact" if attempt.score("exact") else attempt.amount.words()


def filter_link(label: str, *, words: str) -> Markup:
    """A label that filters the table of results by these words when it is clicked."""
    return element("a", {"href": f"#filter={quote(words)}"}, label)
