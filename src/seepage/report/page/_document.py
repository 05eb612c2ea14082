"""The document around every page, its first screen, and the templates that pages are made of.

A template is a file of macros, one for each section. Whatever is put into one is escaped, unless a
template made it. A whole document is cleared of control characters at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from seepage._printable import make_printable
from seepage.audit._record import Record
from seepage.audit._words import list_words, threat_words
from seepage.audit.results import Level, Result
from seepage.report._finding import Verdict
from seepage.report._unscored import inapplicable
from seepage.report.wording import describe_effort

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


MEANINGS = {
    Level.reconstructed: "the same 8-bit image, every column, every word came back, and fits no "
    "stranger as well",
    Level.recognisable: "first among the strangers, and as similar as a noisy copy of the truth: "
    "an eye would agree",
    Level.singled_out: "first among the strangers, though an eye may see nothing",
    Level.partly: "the label, some columns or some words came back",
    Level.not_shown: "not identified, by an attack that finds people chosen by the audit "
    "without the defense; or behind noise that, in theory, leaves any attack nothing but luck",
    Level.inconclusive: "not identified, and the attack may have been too weak or too short, or "
    "the strangers too few to tell",
}


def opening(
    title: str,
    judged: Verdict,
    *,
    pictures: str | None = None,
    missing: str | None = None,
    private: str | None = None,
) -> Markup:
    """Write the verdict, what the audit lacks and, beside it, the pictures if they were kept.

    The last sentence says which private data the page embeds.
    """
    found: Markup = macros("opening").opening(
        title,
        level_class(judged.level),
        judged.headline,
        judged.alarms,
        judged.details,
        missing,
        private,
        pictures,
    )
    return found


def assumptions(records: Sequence[Record]) -> Markup:
    """What the verdict rests on: knowledge, convention and effort."""
    found: Markup = macros("opening").assumptions(
        [threat_words(threat) for threat in dict.fromkeys(r.threat for r in records)],
        describe_effort(records),
        inapplicable(records),
        [(badge(level), meaning) for level, meaning in MEANINGS.items()],
    )
    return found


def rerun_section(
    records: Sequence[Record], *, spec: str, environment: Mapping[str, object]
) -> Section:
    """How to run the audit again: the command, the spec, the seeds and the versions."""
    kinds = ("data", "model", "local", "defense", "threat", "attack")
    parts = [
        f"{kind}: {value}"
        for kind in kinds
        for value in dict.fromkeys(_write(getattr(record, kind)) for record in records)
    ]
    seeds = list_words([str(seed) for seed in sorted({record.seed for record in records})])
    return Section(
        "rerun",
        "To run it again",
        "The same spec, seeds, versions and device give the same results, on a GPU up to rounding.",
        macros("opening").rerun(
            seeds or "none", spec, json.dumps(environment, indent=2), "\n".join(parts)
        ),
    )


def _write(value: object) -> str:
    return " + ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
