"""A section of the page: a heading, a sentence on how to read it, and its content."""

from __future__ import annotations

from dataclasses import dataclass

from seepage.report.page.markup import Markup, element


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
