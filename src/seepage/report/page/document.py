"""The document around the sections: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from seepage.report.page.markup import Markup, element, joined
from seepage.report.page.section import Section

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
    return element("footer", None, element("p", {"class": "faint"}, joined(warning)))


def _file(name: str) -> str:
    return (files("seepage.report.page") / name).read_text(encoding="utf-8")
