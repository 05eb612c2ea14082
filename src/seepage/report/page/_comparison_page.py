"""The comparison of two audits as a page."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from seepage.audit._audit_result import AuditResult
from seepage.audit._words import label_setups, list_words
from seepage.audit.results import Result
from seepage.audit.results._amount import SATURATED
from seepage.audit.results._judge import NOTICED
from seepage.report._change import Change, Direction, changes, comparison_verdict, shifts
from seepage.report._unscored import missing
from seepage.report.page._document import (
    Section,
    amount,
    coloured,
    document,
    faint,
    level_class,
    number_columns,
    table,
)
from seepage.report.page._opening import opening, rerun_section
from seepage.report.page._strip_sections import median_words

SHOWN = 400


def comparison_page(before: AuditResult, after: AuditResult) -> str:
    """Write one self-contained page: what got worse and what got better, person by person."""
    found = changes(before.results, after.results)
    judged = comparison_verdict(found)
    lacks = [f"{a.path.name}: {said}" for a in (before, after) if (said := missing(a))]
    first, second = (f"{audit.title} ({audit.path.name})" for audit in (before, after))
    title = f"Seepage comparison: {first} against {second}"
    return document(
        f"{title}: {judged.headline}",
        first=opening(title, judged, missing=list_words(lacks) or None),
        sections=[
            _group_section(found),
            _person_section(found),
            rerun_section(after.records, spec=after.spec, environment=after.environment),
        ],
        private=False,
    )


def _group_section(found: Sequence[Change]) -> Section:
    labels = label_setups(setup for change in found for setup in change.setups)
    ways = (Direction.worse, Direction.better, Direction.same)
    rows = [
        [
            shift.changes[0].words(labels),
            shift.changes[0].attacked.data,
            shift.changes[0].attacked.model,
            median_words(c.before for c in shift.changes if c.before),
            median_words(c.after for c in shift.changes if c.after),
            *(str(sum(c.direction is way for c in shift.changes)) for way in ways),
            str(shift.direction),
        ]
        for shift in shifts(found)
    ]
    counted = ("median before", "median now", *map(str, ways))
    header = [*number_columns(*counted, words=("defense", "data", "network")), ("together", "")]
    caption = "Median over people in dB of PSNR with its 95 % interval, and how many changed"
    return Section(
        "defenses",
        "By setup",
        f"A person counts as changed from {NOTICED:g} dB on, or when the level changes. The last "
        "column is about all people of a line: within noise, unless the 95 % interval of the mean "
        "change over people lies on one side of zero.",
        table("By setup", caption, header, rows),
    )


def _person_section(found: Sequence[Change]) -> Section:
    labels = label_setups(setup for change in found for setup in change.setups)
    words, counted = ("person", "defense", "attack"), ("before", "now", "difference")
    header = [*number_columns(*counted, words=words), ("", "")]
    rows: list[list[str]] = [
        [
            change.name,
            change.words(labels),
            change.attacks,
            _write_amount(change.before),
            _write_amount(change.after),
            f"{change.difference:+.1f} dB" if change.difference else "-",
            coloured(str(change.direction), change.direction.name),
        ]
        for change in found[:SHOWN]
    ]
    left = len(found) - len(rows)
    caption = "Every person with every defense, what got worst first"
    return Section(
        "people",
        "Person by person",
        f"The strongest guess at each person, before and now. The difference counts PSNR up to "
        f"{SATURATED:g} dB: above that, a guess equals the input up to rounding."
        + (f" These are the first {SHOWN}; {left} more are in the other formats." if left else ""),
        table("Person by person", caption, header, rows),
    )


def _write_amount(row: Result | None) -> Markup:
    if row is None:
        return faint("-")
    return coloured(amount(row), level_class(row.level))
