"""HTML as values: whatever is not markup already is escaped when it is put into an element."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

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
    return Markup(f"<{name}{written}>{joined(*children)}</{name}>")


def joined(*parts: str | None) -> Markup:
    """Parts one after the other.

    Example:
        >>> joined(element("br"), "<script>")
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


def scrolling(label: str, content: Markup) -> Markup:
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
