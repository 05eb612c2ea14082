"""The summary as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from rich import box
from rich.table import Table
from rich.text import Text

from seepage.audit.grid import UNAWARE
from seepage.report.bound_rows import COLUMNS, bound_rows
from seepage.report.change import Change, Direction
from seepage.report.headroom import Headroom
from seepage.report.leak import YARDSTICKS, Attempt
from seepage.report.summary import Row, exact_words, unscored_words
from seepage.report.words import behind, decibels, defense_words, short_names

# A guess this far above the best one made without any update is shown in red, in dB of PSNR; of
# shares it is the margin of their yardstick.
CLEAR = 10.0
WIDE = 110
# The most that a name of several words gets of a narrow terminal.
ENOUGH = 16
_MEASURES: Mapping[str, str] = {
    "psnr": "PSNR in dB",
    "feature_accuracy": "of tables the share of columns that are right",
    "token_accuracy": "of texts the share of words that are right",
}


def leak_table(rows: Sequence[Row], *, width: int = WIDE) -> Table:
    """One line per attack and defense, the worst-off person first.

    Args:
        rows: From `summarise`.
        width: Columns of the terminal; what is not needed to judge a leak is shown where it fits,
            and a network also where lines would be the same without it. What clients compute and
            what the adversary knows is shown where it varies.
    """
    exact = any(row.exact is not None for row in rows)
    table = Table(
        title="What leaked, worst first",
        caption=_caption({row.metric for row in rows}, exact=exact),
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    wide = width >= WIDE
    extra = [n for n in ("ssim", "lpips") if wide and any(n in row.other for row in rows)]
    # Of an attack that is called unaware, its name says what its threat would.
    aware = [row for row in rows if not row.attack.startswith(UNAWARE)]
    varying = [name for name in ("local", "threat") if len({getattr(r, name) for r in aware}) > 1]
    told_apart = {(r.data, r.attack, r.local, r.threat, r.defense) for r in rows}
    network = ["model"] * (wide or len(told_apart) < len(rows))
    data = {row.data: row.data for row in rows} if wide else short_names(r.data for r in rows)
    attacks = [row.attack.partition("(")[0] for row in rows]
    defenses = [defense_words(row.defense) for row in rows]
    # On a narrow terminal these are broken between words, and defenses get what is left.
    names = {} if wide else {"data": data.values(), "attack": attacks}
    fixed = {name: _room([name, *cells]) for name, cells in names.items()}
    for column in ("data", *network, "attack", *varying, "behind"):
        table.add_column(column, overflow="fold", width=fixed.get(column))
    shown = (*extra, *["exact"] * exact, *["seconds"] * wide)
    for column in ("worst-off", "median", "no update", *shown):
        table.add_column(column, justify="right", no_wrap=True)
    for row, attack, defense in zip(rows, attacks, defenses, strict=True):
        table.add_row(
            # As text: a name from a spec may look like markup.
            Text(data[row.data]),
            *(Text(row.model) for _ in network),
            Text(attack),
            *(Text(getattr(row, name)) for name in varying),
            Text(defense),
            _leak(row),
            row.words(row.median, unit=False),
            row.words(row.baseline, unit=False),
            *(_score(row.other.get(name)) for name in extra),
            *[exact_words(row, of="/")] * exact,
            *([f"{row.seconds:.1f}"] * wide),
        )
    return table


def _room(cells: Sequence[str]) -> int:
    """What a column needs for its longest word, and up to `ENOUGH` for its longest cell."""
    words = max(len(word) for cell in cells for word in cell.split())
    return max(words, min(ENOUGH, max(map(len, cells))))


def _caption(metrics: Set[str], *, exact: bool) -> str:
    measures = [words for metric, words in _MEASURES.items() if metric in metrics]
    told = " Exact: people whose input came back to the last of 8 bits." if exact else ""
    return (
        "The worst-off person (#), the median, and the best guess made without any update: "
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
    table = Table(
        title="What theory allows",
        caption="Of the person in the middle: the error per entry that no attack the bound speaks "
        "of goes below, and the PSNR it means. The report has the assumptions.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in COLUMNS:
        numeric = column in ("error at least", "PSNR at most")
        table.add_column(
            column,
            justify="right" if numeric else "left",
            overflow="fold",
            max_width=8 if numeric else None,
        )
    rows = bound_rows([headroom for headroom in found if headroom.speaks])
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
    table = Table(
        title="What changed, worst first",
        caption=f"and {left} more" if left > 0 else None,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in ("person", "behind", "attack"):
        table.add_column(column, overflow="fold")
    for column in ("before", "now", ""):
        table.add_column(column, justify="right", no_wrap=True)
    short = short_names(change.attack for change in found)
    for change in changed[:SHOWN]:
        table.add_row(
            # As text: a name from a spec may look like markup.
            Text("{} #{}".format(*change.victim)),
            Text(behind(change.defense)),
            Text(short[change.attack]),
            _psnr(change.before),
            _psnr(change.after),
            Text(str(change.direction), style=STYLES[change.direction]),
        )
    return table


def _psnr(attempt: Attempt | None) -> str:
    return decibels(None if attempt is None else attempt.psnr)
