"""The summary as tables: on a terminal, and in Markdown for an issue or a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from seepage.audit.record import UNAWARE
from seepage.report.change import Change, Direction, comparison_verdict
from seepage.report.headroom import COLUMNS, Headroom, headrooms, silences, tabulate_bounds
from seepage.report.leak import Verdict, attempts
from seepage.report.summary import Row, exact_words, summarise, unscored_words
from seepage.report.verdict import audit_verdict, missing
from seepage.report.words import (
    Setup,
    decibels,
    defense_words,
    label_setups,
    local_words,
    short_names,
    tell_apart,
    threat_label,
    threat_words,
)

if TYPE_CHECKING:
    from seepage.audit.audit_result import AuditResult

# From this width on a terminal has room for more columns.
WIDE = 110
# The most that a name of several words gets of a narrow terminal.
ENOUGH = 16
_MEASURES: Mapping[str, str] = {
    "psnr": "PSNR in dB",
    "feature_accuracy": "for tables, the share of columns that are right",
    "token_accuracy": "for texts, the share of words that are right",
    "token_recall": "for texts in no order, the share of different words that were named",
}
_FIELDS = {"batch": "batch_size", "client": "local", "adversary": "threat"}
SHOWN = 20
STYLES = {Direction.worse: "bold red", Direction.better: "green"}


def leak_table(rows: Sequence[Row], *, width: int = WIDE) -> Table:
    """One line per attack and setup, the worst-off person first.

    Args:
        rows: From `summarise`.
        width: Columns of the terminal. The network is shown on a wide terminal, or if two lines
            would be the same without it. The batch size, what clients compute, what the
            adversary knows and the steps of an attack are shown if they vary; a narrow terminal
            then has no median.
    """
    wide = width >= WIDE
    exact = wide and any(row.exact is not None for row in rows)
    extra = [n for n in ("ssim", "lpips") if wide and any(n in row.other for row in rows)]
    varying = _list_varying(rows)
    without_network = {(r.data, r.attack, r.threat, r.setup) for r in rows}
    network = ["network"] * (wide or len(without_network) < len(rows))
    data = {row.data: row.data for row in rows} if wide else short_names(r.data for r in rows)
    # On a narrow terminal these are broken between words, and defenses get what is left.
    names = {} if wide else {"data": data.values(), "attack": [row.attack.name for row in rows]}
    fixed = {name: _fit_column([name, *cells]) for name, cells in names.items()}
    table = _start_table("What leaked, worst first", _write_caption(rows))
    for column in ("data", *network, "attack", *varying, "defense"):
        table.add_column(column, overflow="fold", width=fixed.get(column))
    # A narrow terminal with one column more has no room for the median.
    medians = wide or not varying
    shown = (*extra, *["exact"] * exact, *["seconds"] * wide)
    for column in ("found", "worst-off", *["median"] * medians, "no update", *shown):
        table.add_column(column, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        scores = (row.other.get(name) for name in extra)
        table.add_row(
            # As text: a name from a spec may look like markup.
            Text(data[row.data]),
            *(Text(row.model) for _ in network),
            Text(row.attack.name),
            *(Text(cells[number]) for cells in varying.values()),
            Text(defense_words(row.defense)),
            _write_identified(row),
            _write_leak(row),
            *[row.words(row.median, unit=False)] * medians,
            row.words(row.baseline, unit=False),
            *("-" if score is None else f"{score:.3f}" for score in scores),
            *[exact_words(row, of="/")] * exact,
            *([f"{row.seconds:.1f}"] * wide),
        )
    return table


def _list_varying(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The cells of the columns that are shown only if they vary."""
    clients = tell_apart((row.local for row in rows), local_words, str)
    cells = {
        "batch": [str(row.batch_size) for row in rows],
        "client": [clients[row.local] for row in rows],
        "adversary": ["" if r.threat is None else threat_label(r.threat) for r in rows],
    }
    # The name of an unaware attack already says what its threat would.
    aware = [row for row in rows if not row.attack.name.startswith(UNAWARE)]
    varying = {
        column: cells[column]
        for column, field in _FIELDS.items()
        if len({getattr(row, field) for row in aware}) > 1
    }
    steps = [str(row.attack.arguments.get("steps", "")) for row in rows]
    names = [row.attack.name for row in rows]
    if len(set(zip(names, steps, strict=True))) > len(set(names)):
        varying["steps"] = steps
    return varying


def _start_table(title: str, caption: str | None) -> Table:
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _fit_column(cells: Sequence[str]) -> int:
    """The width that fits the longest word, and up to `ENOUGH` of the longest cell."""
    words = max(len(word) for cell in cells for word in cell.split())
    return max(words, min(ENOUGH, max(map(len, cells))))


def _write_caption(rows: Sequence[Row]) -> str:
    metrics = {row.metric for row in rows}
    measures = [words for metric, words in _MEASURES.items() if metric in metrics]
    return (
        "Found: people identified among strangers. The worst-off person (#), the median, and the "
        f"best guess without any update: {', '.join(measures) or _MEASURES['psnr']}."
    )


def _write_leak(row: Row) -> Text:
    if row.worst_person is None:
        return Text(unscored_words(row), style="yellow")
    return Text(f"{row.words(row.worst, unit=False)} #{row.worst_person}")


def _write_identified(row: Row) -> Text:
    if not row.people:
        return Text("-")
    style = "bold red" if row.identified else "green"
    return Text(f"{row.identified}/{row.people}", style=style)


def bound_table(found: Sequence[Headroom]) -> Table:
    """One line per bound that speaks, network and defense; `silences` explains the others."""
    table = _start_table(
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
    rows = tabulate_bounds([headroom for headroom in found if headroom.speaks])
    networks = short_names(row[0] for row in rows)
    for network, *row in rows:
        style = "bold red" if row[-1].startswith("BEATEN") else ""
        table.add_row(*(Text(cell, style=style) for cell in (networks[network], *row)))
    return table


def change_table(found: Sequence[Change]) -> Table:
    """One line per person and setup that changed, the worst first; at most `SHOWN`."""
    changed = [change for change in found if change.direction in STYLES]
    left = len(changed) - SHOWN
    table = _start_table("What changed, worst first", f"and {left} more" if left > 0 else None)
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
    header = ["data", "network", "attack", "defense", "batch size"]
    header += ["identified", "worst-off", "median", "no update", "exact"]
    found = summarise(audit.records)
    labels = label_setups(row.setup for row in found)
    rows = [
        [
            row.data,
            row.model,
            row.attack.name,
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
        for row in found
    ]
    threats, lacks = dict.fromkeys(record.threat for record in audit.records), missing(audit)
    notes = [f"The adversary had {threat_words(threat)}." for threat in threats]
    notes += [lacks] if lacks else []
    text = _write_document(audit.title, audit_verdict(audit), notes, header, rows)
    bounds = headrooms(attempts(audit.records), audit.bounds)
    if not bounds:
        return text
    table = markdown_table(list(COLUMNS), tabulate_bounds(bounds))
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
