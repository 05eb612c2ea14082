"""Section: every score of every person, to filter and to sort."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from seepage.audit.record import Record
from seepage.report.leak import Attempt, attempts, strength, unscored
from seepage.report.page.document import Markup, Section, element, join_markup, make_scrollable
from seepage.report.words import (
    count_noun,
    decibels,
    defense_words,
    local_words,
    short_names,
    tell_apart,
    threat_words,
)

# Rows written as HTML, for readers without scripts and for paper; the script has all of them.
WRITTEN = 200
# Columns that are shown only if they vary, by the field of a record.
VARYING = {"network": "model", "client": "local", "adversary": "threat"}
TEXTS = frozenset({"person", "defense", "attack", "reading", *VARYING})


def record_section(records: Sequence[Record]) -> Section:
    """One row per person and attack, worst first, failed cases last."""
    columns, rows = _table_rows(records)
    return Section(
        "records",
        "Every result",
        f"{count_noun(len(rows), 'row')}: one per person and attack, worst first. The filter shows "
        "the rows that contain all words typed; it is part of the page's address, so you can share "
        "it. Click a heading to sort.",
        join_markup(_controls(len(rows)), _table(columns, rows), _data(columns, rows)),
    )


def _table_rows(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Titles of the columns, and the cells as text."""
    short = short_names(record.attack for record in records)
    labels: dict[str, dict[Any, str]] = {
        "model": short_names(record.model for record in records),
        "local": tell_apart((record.local for record in records), local_words, str),
        "threat": {record.threat: threat_words(record.threat) for record in records},
    }
    varying = {title: name for title, name in VARYING.items() if len(labels[name]) > 1}
    metrics = list(dict.fromkeys(n for r in records for n in r.scores if n != "psnr"))
    columns = ["person", "defense", "attack", "batch size", *varying, "reading", "psnr", *metrics]
    columns += ["without update", "residual", "steps", "restarts", "seconds", "seed"]

    def row(who: str, record: Record, *cells: str) -> list[str]:
        defense, attack = defense_words(record.defense), short[record.attack]
        varied = [labels[name][getattr(record, name)] for name in varying.values()]
        named = [who, defense, attack, str(record.batch_size), *varied]
        return [*named, *cells, str(record.seed)]

    def scored(attempt: Attempt) -> list[str]:
        record = attempt.record
        return row(
            "{} #{}".format(*attempt.victim),
            record,
            str(attempt.level),
            decibels(attempt.psnr, unit=False),
            *(_number(attempt.score(name)) for name in metrics),
            decibels(attempt.baseline, unit=False),
            *_checked(record),
        )

    def failed(record: Record) -> list[str]:
        blank = ["-"] * (len(metrics) + 6)
        return row(_everybody(record), record, f"failed: {record.error}", *blank)

    def blind(record: Record) -> list[str]:
        blank = ["-"] * (len(metrics) + 2)
        return row(_everybody(record), record, "no truth", *blank, *_checked(record))

    ranked = sorted(attempts(records), key=strength, reverse=True)
    rows = [*map(scored, ranked), *map(blind, unscored(records))]
    return columns, rows + [failed(r) for r in records if r.error is not None]


def _everybody(record: Record) -> str:
    return f"{record.data} {', '.join(f'#{person}' for person in record.people)}"


def _checked(record: Record) -> list[str]:
    residual = record.certificate["residual"] if record.certificate else None
    effort = (record.effort.get(name) for name in ("steps", "restarts", "seconds"))
    return [_number(value) for value in (residual, *effort)]


def _number(value: float | int | str | bool | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return f"{int(value)}"
    if isinstance(value, str) or not math.isfinite(value):
        return str(value)
    return f"{value:.3g}"


def _controls(total: int) -> Markup:
    return element(
        "form",
        {"class": "controls", "id": "controls", "role": "search"},
        element("label", {"for": "filter"}, "Filter"),
        element("input", {"id": "filter", "type": "search", "autocomplete": "off",
                          "placeholder": "recognisable Prune photos"}),
        element("output", {"id": "count", "for": "filter", "aria-live": "polite"},
                f"{min(total, WRITTEN)} of {total} rows shown"),
    )  # fmt: skip


def _table(columns: list[str], rows: list[list[str]]) -> Markup:
    numbers = [title not in TEXTS for title in columns]
    head = [
        element(
            "th",
            {"scope": "col", "class": "number" if number else None},
            element("button", {"type": "button"}, title),
        )
        for title, number in zip(columns, numbers, strict=True)
    ]
    body = [
        element(
            "tr",
            None,
            element("th", {"scope": "row"}, row[0]),
            *(
                element("td", {"class": "number" if number else None}, cell)
                for cell, number in zip(row[1:], numbers[1:], strict=True)
            ),
        )
        for row in rows[:WRITTEN]
    ]
    filled = element(
        "table",
        {"id": "results"},
        element("caption", None, "Scores per person and attack"),
        element("thead", None, element("tr", None, *head)),
        element("tbody", None, *body),
    )
    more = element("button", {"id": "more", "type": "button", "hidden": True}, "Show more rows")
    return join_markup(make_scrollable("Every result", filled), more)


def _data(columns: list[str], rows: list[list[str]]) -> Markup:
    """The rows for the script: each cell the number of its text, since texts repeat."""
    words = {word: number for number, word in enumerate(dict.fromkeys(c for r in rows for c in r))}
    content = {
        "numbers": [title not in TEXTS for title in columns],
        "words": list(words),
        "rows": [[words[cell] for cell in row] for row in rows],
    }
    # A closing tag inside a text would end the element.
    text = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    return element("script", {"type": "application/json", "id": "data"}, Markup(text))
