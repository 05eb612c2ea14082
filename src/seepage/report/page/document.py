"""The parts of an HTML page: elements, tables, sections, and the document around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import quote

from seepage.printable import make_printable

if TYPE_CHECKING:
    from seepage.audit.results import Level, Result


# Elements without content, in HTML and in SVG.
_PLAIN = frozenset({"br", "col", "hr", "img", "input", "meta"})
_DRAWN = frozenset({"circle", "line", "polyline", "rect"})

Attributes = Mapping[str, str | int | float | bool | None]


class Markup(str):
    """Text that is HTML. Only this package makes it, so that a name from a spec never is."""

    __slots__ = ()


def element(name: str, attributes: Attributes | None = None, *children: str | None) -> Markup:
    """Write one element, with its attributes and children.

    True writes an attribute without a value; None and False leave it out. Children that are not
    markup are escaped; None is left out.

    Example:
        >>> element("p", {"class": "note", "hidden": True}, "a < b ", element("b", None, "c"))
        '<p class="note" hidden>a &lt; b <b>c</b></p>'
    """
    written = "".join(_attribute(key, value) for key, value in (attributes or {}).items())
    if name in _PLAIN or name in _DRAWN:
        return Markup(f"<{name}{written}{'/' if name in _DRAWN else ''}>")
    return Markup(f"<{name}{written}>{join_markup(*children)}</{name}>")


def join_markup(*parts: str | None) -> Markup:
    """Join parts, and escape those that are not markup.

    Example:
        >>> join_markup(element("br"), "<script>")
        '<br>&lt;script&gt;'
    """
    known = (part for part in parts if part is not None)
    return Markup("".join(part if isinstance(part, Markup) else _escape(part) for part in known))


def _escape(text: str) -> str:
    return escape(make_printable(text))


def faint(text: str) -> Markup:
    """Write text in a faint colour."""
    return element("span", {"class": "faint"}, text)


def table(
    caption: str,
    header: Mapping[str, str] | Sequence[tuple[str, str]],
    rows: list[list[str]],
    attributes: Attributes | None = None,
) -> Markup:
    """Write a table; `header` has the title of each column and the style class of its cells.

    The first cell of each row is its header.
    """
    columns = list(header.items()) if isinstance(header, Mapping) else header
    classes = [kind for _, kind in columns]
    head = [element("th", {"scope": "col", "class": c or None}, title) for title, c in columns]
    body = [element("tr", None, *_cells(row, classes)) for row in rows]
    return element(
        "table",
        attributes,
        element("caption", None, element("span", None, caption)),
        element("thead", None, element("tr", None, *head)),
        element("tbody", None, *body),
    )


def _cells(row: list[str], classes: list[str]) -> Iterator[Markup]:
    yield element("th", {"scope": "row", "class": classes[0] or None}, row[0])
    for cell, kind in zip(row[1:], classes[1:], strict=True):
        yield element("td", {"class": kind or None}, cell)


def wide_table(
    label: str,
    caption: str,
    header: Mapping[str, str] | Sequence[tuple[str, str]],
    rows: list[list[str]],
    attributes: Attributes | None = None,
) -> Markup:
    """Write a table that scrolls if it is wider than the page; `label` names it for a reader."""
    return make_scrollable(label, table(caption, header, rows, attributes))


def definitions(kind: str, items: Iterable[tuple[str, str]]) -> Markup:
    """Write a list of terms and what is said of each, in a style class."""
    pairs = [
        join_markup(element("dt", None, term), element("dd", None, said)) for term, said in items
    ]
    return element("dl", {"class": kind}, *pairs)


def make_scrollable(label: str, content: Markup) -> Markup:
    """Let content scroll that may be wider than the page, also by keyboard."""
    return element(
        "div", {"class": "scroll", "tabindex": 0, "role": "region", "aria-label": label}, content
    )


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    return f" {key}" if value is True else f' {key}="{_escape(str(value))}"'


@dataclass(frozen=True)
class Section:
    """One section: its anchor, its heading, how to read it, and what it shows."""

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


# The page may load and run only what it contains.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def document(
    title: str, *, first: Markup, sections: Sequence[Section], private: bool = True
) -> str:
    """Write a whole page: `first`, the contents, then the sections.

    A `private` page warns that it contains private inputs.
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
    links = [element("li", None, element("a", {"href": f"#{s.name}"}, s.title)) for s in sections]
    listed = element("nav", {"aria-label": "Contents"}, element("ul", None, *links))
    contents = listed if len(sections) > 1 else None
    warning = "This page contains private inputs: treat it as you treat the data."
    body = element(
        "body",
        None,
        element("a", {"class": "skip", "href": "#main"}, "Skip to the results"),
        element("main", {"id": "main"}, first, contents, *(s.markup() for s in sections)),
        element("footer", None, element("p", {"class": "faint"}, warning if private else "")),
        element("div", {"id": "tip", "role": "status", "hidden": True}),
        element("script", None, Markup(_file("script.js"))),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _file(name: str) -> str:
    return (files("seepage.report.page") / name).read_text(encoding="utf-8")


_CLASSES = {"partly": "trace", "inconclusive": "trace", "not_shown": "safe"}


def level_class(level: Level | None) -> str:
    """The style class that colours a level."""
    return "none" if level is None else _CLASSES.get(level.name, "leak")


def badge(level: Level) -> Markup:
    """Write the level as a word in its colour."""
    return element("span", {"class": f"badge {level_class(level)}"}, str(level))


def amount(row: Result) -> str:
    """What came back, in short; "exact" if the guess is the input."""
    return "exact" if row.exact else row.amount.words()


def filter_link(label: str, *, words: str) -> Markup:
    """Write a label that filters the table of results by these words when it is clicked."""
    return element("a", {"href": f"#filter={quote(words)}"}, label)
