"""The comparison of two audits as a page."""

from __future__ import annotations

from collections.abc import Sequence

from seepage.audit.audit_result import AuditResult
from seepage.core.construct import Component
from seepage.report.change import NOTICED, Change, Direction, changes, comparison_verdict
from seepage.report.intervals import median_interval
from seepage.report.leak import Attempt
from seepage.report.page.defense_section import interval_words
from seepage.report.page.document import (
    Markup,
    Section,
    amount,
    document,
    element,
    level_class,
    make_scrollable,
    table,
)
from seepage.report.page.opening import opening, rerun_section
from seepage.report.verdict import missing
from seepage.report.words import Setup, label_setups, list_words, short_names

SHOWN = 400


def comparison_page(before: AuditResult, after: AuditResult) -> str:
    """One self-contained page: what got worse, what got better, person by person.

    Args:
        before: The first audit.
        after: The second.
    """
    found = changes(before.records, after.records)
    judged = comparison_verdict(found)
    lacks = [f"{a.path.name}: {said}" for a in (before, after) if (said := missing(a))]
    title = f"Seepage comparison: {_name(before)} against {_name(after)}"
    return document(
        f"{title}: {judged.headline}",
        first=opening(title, judged, pictures=None, missing=list_words(lacks) or None),
        sections=[
            _grouped(found),
            _people(found),
            rerun_section(after.records, spec=after.spec, environment=after.environment),
        ],
        private=False,
    )


def _name(audit: AuditResult) -> str:
    return f"{audit.title} ({audit.path.name})"


def _grouped(found: Sequence[Change]) -> Section:
    groups: dict[tuple[Setup, Component], list[Change]] = {}
    for change in found:
        if change.before and change.after:
            groups.setdefault((change.setup, change.attack), []).append(change)
    short = short_names(change.attack for change in found)
    labels = label_setups(change.setup for change in found)
    rows = [
        [
            labels[setup],
            short[attack],
            _median([c.before for c in group if c.before]),
            _median([c.after for c in group if c.after]),
            str(sum(c.direction is Direction.worse for c in group)),
            str(sum(c.direction is Direction.better for c in group)),
            str(sum(c.direction is Direction.same for c in group)),
        ]
        for (setup, attack), group in groups.items()
    ]
    header = {"defense": "", "attack": "", "median before": "number", "median now": "number",
              "worse": "number", "better": "number", "same": "number"}  # fmt: skip
    caption = "Median over people in dB of PSNR with its 95 % interval, and how many changed"
    return Section(
        "defenses",
        "By defense and attack",
        f"A person counts as changed from {NOTICED:g} dB on, or when the reading changes.",
        make_scrollable("By defense and attack", table(caption, header, rows)),
    )


def _median(tried: Sequence[Attempt]) -> str:
    return interval_words(median_interval([attempt.psnr for attempt in tried]))


def _people(found: Sequence[Change]) -> Section:
    short = short_names(change.attack for change in found)
    labels = label_setups(change.setup for change in found)
    header = {"person": "", "defense": "", "attack": "", "before": "number", "now": "number",
              "difference": "number", "": ""}  # fmt: skip
    rows: list[list[str]] = [
        [
            "{} #{}".format(*change.victim),
            labels[change.setup],
            short[change.attack],
            _reached(change.before),
            _reached(change.after),
            f"{change.difference:+.1f} dB" if change.difference else "-",
            element("span", {"class": change.direction.name}, str(change.direction)),
        ]
        for change in found[:SHOWN]
    ]
    left = len(found) - len(rows)
    caption = "Every person with every defense, what got worst first"
    return Section(
        "people",
        "Person by person",
        "The strongest guess at each person, before and now."
        + (f" These are the first {SHOWN}; {left} more are in the other formats." if left else ""),
        make_scrollable("Person by person", table(caption, header, rows)),
    )


def _reached(attempt: Attempt | None) -> Markup:
    if attempt is None:
        return element("span", {"class": "faint"}, "-")
    return element("span", {"class": level_class(attempt.level)}, amount(attempt))
