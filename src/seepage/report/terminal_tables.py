"""The summary as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from rich import box
from rich.table import Table
from rich.text import Text

from seepage.audit.record import UNAWARE
from seepage.report.change import Change, Direction, psnr_words
from seepage.report.headroom import COLUMNS, Headroom, tabulate_bounds
from seepage.report.leak import YARDSTICKS
from seepage.report.summary import Row, exact_words, unscored_words
from seepage.report.words import (
    defense_words,
    label_setups,
    local_words,
    short_names,
    tell_apart,
    threat_label,
)

# A guess this far above the best one made without any update is shown in red, in dB of PSNR; of
# shares it is the margin of their yardstick.
CLEAR = 10.0
WIDE = 110
# The most that a name of several words gets of a narrow terminal.
ENOUGH = 16
_MEASURES: Mapping[str, str] = {
    "psnr": "PSNR in dB",
    "feature_accuracy": "for tables, the share of columns that are right",
    "token_accuracy": "for texts, the share of words that are right",
}


def leak_table(rows: Sequence[Row], *, width: int = WIDE) -> Table:
    """One line per attack and setup, the worst-off person first.

    Args:
        rows: From `summarise`.
        width: Columns of the terminal. The network is shown on a wide terminal, or if two lines
            would be the same without it. The batch size, what clients compute and what the
            adversary knows are shown if they vary; a narrow terminal then has no median.
    """
    exact = any(row.exact is not None for row in rows)
    caption = _caption({row.metric for row in rows}, exact=exact)
    table = _start_table("What leaked, worst first", caption)
    wide = width >= WIDE
    extra = [n for n in ("ssim", "lpips") if wide and any(n in row.other for row in rows)]
    described = {name: cells for name, cells in _describe(rows).items() if _varies(name, rows)}
    told_apart = {(r.data, r.attack, r.threat, r.setup) for r in rows}
    network = ["network"] * (wide or len(told_apart) < len(rows))
    data = {row.data: row.data for row in rows} if wide else short_names(r.data for r in rows)
    attacks = [row.attack.name for row in rows]
    # On a narrow terminal these are broken between words, and defenses get what is left.
    names = {} if wide else {"data": data.values(), "attack": attacks}
    fixed = {name: _room([name, *cells]) for name, cells in names.items()}
    for column in ("data", *network, "attack", *described, "defense"):
        table.add_column(column, overflow="fold", width=fixed.get(column))
    # A narrow terminal with one column more has no room for the median.
    medians = wide or not described
    shown = (*extra, *["exact"] * exact, *["seconds"] * wide)
    for column in ("worst-off", *["median"] * medians, "no update", *shown):
        table.add_column(column, justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        table.add_row(
            # As text: a name from a spec may look like markup.
            Text(data[row.data]),
            *(Text(row.model) for _ in network),
            Text(row.attack.name),
            *(Text(cells[number]) for cells in described.values()),
            Text(defense_words(row.defense)),
            _leak(row),
            *[row.words(row.median, unit=False)] * medians,
            row.words(row.baseline, unit=False),
            *(_score(row.other.get(name)) for name in extra),
            *[exact_words(row, of="/")] * exact,
            *([f"{row.seconds:.1f}"] * wide),
        )
    return table


def _describe(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The cells of the columns that are shown if they vary."""
    clients = tell_apart((row.local for row in rows), local_words, str)
    return {
        "batch": [str(row.batch_size) for row in rows],
        "client": [clients[row.local] for row in rows],
        "adversary": ["" if r.threat is None else threat_label(r.threat) for r in rows],
    }


def _varies(column: str, rows: Sequence[Row]) -> bool:
    # An attack that is called unaware says by its name what its threat would.
    aware = [row for row in rows if not row.attack.name.startswith(UNAWARE)]
    field = {"batch": "batch_size", "client": "local", "adversary": "threat"}[column]
    return len({getattr(row, field) for row in aware}) > 1


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


def _room(cells: Sequence[str]) -> int:
    """What a column needs for its longest word, and up to `ENOUGH` for its longest cell."""
    words = max(len(word) for cell in cells for word in cell.split())
    return max(words, min(ENOUGH, max(map(len, cells))))


def _caption(metrics: Set[str], *, exact: bool) -> str:
    measures = [words for metric, words in _MEASURES.items() if metric in metrics]
    told = " Exact: people whose input came back to the last of 8 bits." if exact else ""
    return (
        "The worst-off person (#), the median, and the best guess without any update: "
        f"{', '.join(measures) or _MEASURES['psnr']}.{told}"
    )


def _leak(row: Row) -> Text:
    if not row.people:
        return Text(unscored_words(row), style="yellow")
    above = row.worst - row.baseline
    clear = CLEAR if row.metric == "psnr" else YARDSTICKS[row.metric].margin
    style = "bold red" if above > clear else "yellow" if above > 0 else "green"
    return Text(f"{row.words(row.worst, unit=False)} #{row.worst_person}", style=style)


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def bound_table(found: Sequence[Headroom]) -> Table:
    """One line per bound that speaks, network and defense; `silences` tells of the others."""
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


SHOWN = 20
STYLES = {Direction.worse: "bold red", Direction.better: "green"}


def change_table(found: Sequence[Change]) -> Table:
    """One line per person, defense and attack that changed, the worst first.

    Args:
        found: From `changes`; with many of them the first are shown.
    """
    changed = [change for change in found if change.direction in STYLES]
    left = len(changed) - SHOWN
    table = _start_table("What changed, worst first", f"and {left} more" if left > 0 else None)
    for column in ("person", "defense", "attack"):
        table.add_column(column, overflow="fold")
    for column in ("before", "now", ""):
        table.add_column(column, justify="right", no_wrap=True)
    short = short_names(change.attack for change in found)
    labels = label_setups(change.setup for change in found)
    for change in changed[:SHOWN]:
        table.add_row(
            # As text: a name from a spec may look like markup.
            Text("{} #{}".format(*change.victim)),
            Text(labels[change.setup]),
            Text(short[change.attack]),
            psnr_words(change.before),
            psnr_words(change.after),
            Text(str(change.direction), style=STYLES[change.direction]),
        )
    return table
