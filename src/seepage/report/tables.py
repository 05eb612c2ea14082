"""The summary as tables: on a terminal, and in Markdown for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from seepage.report.change import Change, Direction, comparison_verdict
from seepage.report.headroom import (
    Headroom,
    closest_words,
    error_words,
    headrooms,
    read_headroom,
    silences,
)
from seepage.report.leak import Verdict, attempts
from seepage.report.leak_table import list_varying, start_table
from seepage.report.summary import exact_words, summarise, unscored_words
from seepage.report.unscored import missing
from seepage.report.verdict import audit_verdict
from seepage.report.words import Setup, decibels, label_setups, short_names, threat_words

if TYPE_CHECKING:
    from seepage.audit.audit_result import AuditResult

SHOWN = 20
COLUMNS = ("network", "defense", "bound", "error at least", "PSNR at most", "closest attack", "")
STYLES = {Direction.worse: "bold red", Direction.better: "green"}


def bound_table(found: Sequence[Headroom]) -> Table:
    """One line per bound that speaks, network and defense; `silences` explains the others."""
    table = start_table(
        "What theory allows",
        "For the person in the middle: the error per entry that no attack covered by the bound "
        "goes below, and the PSNR that this means. The report lists the assumptions.",
    )
    for column in COLUMNS:
        numeric = column in ("error at least", "PSNR at most")
        table.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            max_width=8 if numeric else None,
        )
    rows = _tabulate_bounds([headroom for headroom in found if headroom.speaks or headroom.odds])
    networks = short_names(row[0] for row in rows)
    for network, *row in rows:
        style = "bold red" if row[-1].startswith("BEATEN") else ""
        table.add_row(*(Text(cell, style=style) for cell in (networks[network], *row)))
    return table


def _tabulate_bounds(found: Sequence[Headroom]) -> list[list[str]]:
    """One row per scene and bound, as text under `COLUMNS`."""
    short = short_names(headroom.bound for headroom in found)
    labels = label_setups(headroom.scene.setup for headroom in found)
    return [
        [
            headroom.scene.model,
            labels[headroom.scene.setup],
            short[headroom.bound],
            error_words(headroom.middle.rmse) if headroom.speaks else "-",
            decibels(headroom.middle.ceiling) if headroom.speaks else "-",
            closest_words([headroom]),
            read_headroom(headroom),
        ]
        for headroom in found
    ]


def change_table(found: Sequence[Change]) -> Table:
    """One line per person and setup that changed, the worst first; at most `SHOWN`."""
    changed = [change for change in found if change.direction in STYLES]
    left = len(changed) - SHOWN
    table = start_table("What changed, worst first", f"and {left} more" if left > 0 else None)
    for column in ("person", "defense", "attack"):
        table.add_column(column, overflow="fold")
    for column in ("before", "now", ""):
        table.add_column(column, justify="right", no_wrap=True)
    labels = label_setups(setup for change in found for setup in change.setups)
    for change in changed[:SHOWN]:
        *cells, direction = _change_cells(change, labels)
        table.add_row(*map(Text, cells), Text(direction, style=STYLES[change.direction]))
    return table


def _change_cells(change: Change, labels: Mapping[Setup, str]) -> list[str]:
    return [
        "{} #{}".format(*change.victim),
        change.words(labels),
        change.attacks,
        *(decibels(None if a is None else a.psnr) for a in (change.before, change.after)),
        str(change.direction),
    ]


def audit_markdown(audit: AuditResult) -> str:
    """The verdict, what the adversary had, and a table with the worst leak first."""
    found = summarise(audit.records)
    varying = list_varying(found)
    varied = [title for title in ("adversary", "drawn", "steps") if title in varying]
    header = ["data", "network", "attack", *varied, "defense", "batch size"]
    header += ["identified", "worst-off", "median", "no update", "exact"]
    labels = label_setups(row.setup for row in found)
    rows = [
        [
            row.data,
            row.model,
            row.attack.name,
            *(varying[title][number] for title in varied),
            labels[row.setup],
            str(row.batch_size),
            f"{row.identified} of {row.people}",
            unscored_words(row)
            if row.worst_person is None
            else f"{row.words(row.worst)} #{row.worst_person}",
            row.words(row.median),
            row.words(row.baseline),
            exact_words(row, of=" of "),
        ]
        for number, row in enumerate(found)
    ]
    threats, lacks = dict.fromkeys(record.threat for record in audit.records), missing(audit)
    notes = [f"The adversary had {threat_words(threat)}." for threat in threats]
    notes += [lacks] if lacks else []
    text = _write_document(audit.title, audit_verdict(audit), notes, header, rows)
    bounds = headrooms(attempts(audit.records), audit.bounds)
    if not bounds:
        return text
    table = markdown_table(list(COLUMNS), _tabulate_bounds(bounds))
    reasons = [line for reason in silences(bounds) for line in ("", markdown_words(reason))]
    return text + "\n".join(["", "## What theory allows", "", *table, *reasons]) + "\n"


def comparison_markdown(before: str, after: str, found: Sequence[Change]) -> str:
    """What changed between two audits, the worst first, without what stayed the same."""
    labels = label_setups(setup for change in found for setup in change.setups)
    rows = [
        _change_cells(change, labels) for change in found if change.direction is not Direction.same
    ]
    header = ["person", "defense", "attack", before, after, ""]
    return _write_document(f"{before} against {after}", comparison_verdict(found), [], header, rows)


def _write_document(
    title: str, judged: Verdict, notes: list[str], header: list[str], rows: list[list[str]]
) -> str:
    paragraphs = [
        f"# {markdown_words(title)}",
        f"**{markdown_words(judged.headline)}.**",
        *(f"**{markdown_words(alarm)}**" for alarm in judged.alarms),
        *map(markdown_words, (*judged.details, *notes)),
        "\n".join(markdown_table(header, rows)),
    ]
    return "\n\n".join(paragraphs).rstrip() + "\n"


def markdown_table(header: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table; none if it has no rows."""
    if not rows:
        return []
    every = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(map(markdown_words, row)) + " |" for row in every]


def markdown_words(text: str) -> str:
    """Escape text from a spec, so that it is neither markup nor a cell or line of its own."""
    plain = " ".join(text.split())
    for sign in "\\`*_[]<>|":
        plain = plain.replace(sign, f"\\{sign}")
    return plain
