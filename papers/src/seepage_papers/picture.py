"""What figures that are files of their own share: their frame, and words in it."""

from __future__ import annotations

from seepage.report.page.document import Attributes, Markup, element

PAPER, INK = "#fbfaf7", "#2b2b2b"


def picture(width: int, height: int, title: str, said: str, *parts: Markup) -> Markup:
    """A figure that is a file of its own.

    Args:
        width: In pixels.
        height: The same.
        title: For who cannot see it.
        said: Its content in words, for the same.
        parts: What is drawn on the paper.
    """
    return element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {width} {height}",
            "role": "img",
            "aria-labelledby": "t d",
            "font-family": "system-ui, sans-serif",
            "font-size": 12,
        },
        element("title", {"id": "t"}, title),
        element("desc", {"id": "d"}, said),
        element("rect", {"width": width, "height": height, "rx": 8, "fill": PAPER}),
        *parts,
    )


def words(x: float, y: float, anchor: str, text: str, *, bold: bool = False) -> Markup:
    """One line of text."""
    place: Attributes = {"x": round(x, 1), "y": round(y, 1), "text-anchor": anchor, "fill": INK}
    return element("text", {**place, "font-weight": 600 if bold else None}, text)
