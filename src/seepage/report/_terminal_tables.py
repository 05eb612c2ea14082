"""Tables on a terminal: what leaked, in the width there is; what theory allows; what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.table import Table
from rich.text import Text

from seepage.audit._words import defense_words, label_setups, short_names
from seepage.core._scale import DECIBELS
from seepage.report._change import Change, Direction
from seepage.report._headroom import COLUMNS, Headroom, tabulate_headrooms
from seepage.report._summary import Row, exact_words, list_varying, name_attacks, unscored_words
from seepage.report.wording import Kind
from seepage.scoring._scores import find_scale

# An optional column is shown if all columns of names keep at least this many characters.
ENOUGH, COMFORTABLE = 12, 28
_NARROWEST = 4
# The most changes that are listed.
_CHANGES = 20
_STYLES = {Direction.worse: "bold red", Direction.better: "green"}


@dataclass(frozen=True)
class _Column:
    """A column of names, which may be broken into lines, or of numbers, which may not."""

    title: str
    cells: Sequence[Text | str]
    is_number: bool = False
    widest: int = field(init=False)
    longest_word: int = field(init=False)

    def __post_init__(self) -> None:
        texts = [self.title, *map(str, self.cells)]
        words = texts if self.is_number else [word for text in texts for word in text.split()]
        object.__setattr__(self, "widest", max(map(len, texts)))
        object.__setattr__(self, "longest_word", max(map(len, words)))

    def least(self, enough: int) -> int:
        """The least width: that of the longest word, or of the longest cell up to `enough`."""
        return max(self.longest_word, min(self.widest, enough))


def leak_table(rows: Sequence[Row], *, width: int = 110) -> Table:
    """One line per attack and setup, the worst-off person first.

    The batch size, what clients compute, what the adversary knows, how people were drawn and the
    steps of an attack are shown if they vary, the network if two lines would be the same without
    it, the data set if there are several. Other columns are added as long as there is room, and
    numbers are never cut.

    Args:
        rows: From `summarise`.
        width: Columns of the terminal.
    """
    names = _name_columns(rows)
    found = _Column("found", [_write_identified(row) for row in rows], is_number=True)
    worst = _Column("worst-off", [_write_leak(row) for row in rows], is_number=True)
    numbers = [found, worst]
    for column, enough in _list_optional(rows, names):
        more = [*names, column] if not column.is_number else names
        counted = [*numbers, column] if column.is_number else numbers
        if sum(c.least(enough) for c in (*more, *counted)) + _gaps(more, counted) <= width:
            names, numbers = more, counted
    names.sort(key=lambda column: column.title == "defense")
    only = {row.data for row in rows} if len({row.data for row in rows}) == 1 else set[str]()
    title = " of ".join(["What leaked", *only])
    table = start_table(f"{title}, worst first", _write_caption(rows, numbers))
    room = width - sum(column.widest for column in numbers) - _gaps(names, numbers)
    for column, fitted in zip(names, _share_room(names, room), strict=True):
        table.add_column(column.title, overflow="fold", width=fitted)
    for column in numbers:
        table.add_column(column.title, justify="right", no_wrap=True, width=column.widest)
    for cells in zip(*(column.cells for column in (*names, *numbers)), strict=True):
        # As text: a name from a spec may look like markup.
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def _name_columns(rows: Sequence[Row]) -> list[_Column]:
    """The columns that tell the lines apart."""
    data = short_names(row.data for row in rows)
    columns = [_Column("data", [data[row.data] for row in rows])] if len(data) > 1 else []
    if len({(r.data, r.attack, r.threat, r.sampling, r.setup) for r in rows}) < len(rows):
        columns.append(_name_networks(rows))
    attacks = name_attacks(row.attack for row in rows)
    columns.append(_Column("attack", [attacks[row.attack] for row in rows]))
    columns += [_Column(title, cells) for title, cells in list_varying(rows).items()]
    return [*columns, _Column("defense", [defense_words(row.defense) for row in rows])]


def _name_networks(rows: Sequence[Row], *, full: bool = False) -> _Column:
    short = short_names(row.model for row in rows)
    return _Column("network", [row.model if full else short[row.model] for row in rows])


def _list_optional(rows: Sequence[Row], names: Sequence[_Column]) -> list[tuple[_Column, int]]:
    """Optional columns, the most useful first, each with the width that names must keep."""

    def number(title: str, cells: list[str]) -> _Column:
        return _Column(title, cells, is_number=True)

    scores = [n for n in ("ssim", "lpips") if any(n in row.other for row in rows)]
    listed = [
        (number("no update", [row.words(row.baseline, unit=False) for row in rows]), ENOUGH),
        (number("median", [row.words(row.median, unit=False) for row in rows]), ENOUGH),
    ]
    if not any(column.title == "network" for column in names):
        listed.append((_name_networks(rows, full=True), COMFORTABLE))
    if any(row.exact is not None for row in rows):
        listed.append((number("exact", [exact_words(row, of="/") for row in rows]), COMFORTABLE))
    for name in scores:
        values = [row.other.get(name) for row in rows]
        cells = ["-" if value is None else f"{value:.3f}" for value in values]
        listed.append((number(name, cells), COMFORTABLE))
    listed.append((number("seconds", [f"{row.seconds:.1f}" for row in rows]), COMFORTABLE))
    return listed


def _gaps(names: Sequence[_Column], numbers: Sequence[_Column]) -> int:
    return 2 * (len(names) + len(numbers))


def _share_room(columns: Sequence[_Column], room: int) -> list[int]:
    """Widths that fit the room; the widest columns are narrowed first."""
    widths = [column.widest for column in columns]
    for least in ([column.longest_word for column in columns], [_NARROWEST] * len(columns)):
        while sum(widths) > room:
            spare = [(width, i) for i, width in enumerate(widths) if width > least[i]]
            if not spare:
                break
            widths[max(spare)[1]] -= 1
    return widths


def start_table(title: str, caption: str | None) -> Table:
    """An empty table in our style."""
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _write_caption(rows: Sequence[Row], numbers: Sequence[_Column]) -> str:
    scales = sorted(
        {find_scale(row.metric) for row in rows} or {DECIBELS}, key=lambda scale: scale.of
    )
    measures = [
        f"for {one.inputs}, the share of {one.of} that are right" if one.of else "PSNR in dB"
        for one in scales
    ]
    shown = [column.title for column in numbers]
    said = ["the worst-off person (#)", *["the median"] * ("median" in shown)]
    said += ["the best guess without any update"] * ("no update" in shown)
    listed = " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
    if all(row.residual is not None and not row.people for row in rows):
        return (
            "Residual: how far the update recomputed at the guess is from the captured one, as a "
            "share of its length. No truth was given, so nobody can be counted as found."
        )
    text = (
        f"Found: people identified among strangers. {listed[0].upper()}{listed[1:]}: "
        f"{', '.join(measures)}."
    )
    return text + " n/a: the attack cannot take these cases." * any(row.unfit for row in rows)


def _write_leak(row: Row) -> Text:
    if row.worst_person is None:
        return Text(unscored_words(row), style="dim" if row.unfit else "yellow")
    return Text(f"{row.words(row.worst, unit=False)} #{row.worst_person}")


def _write_identified(row: Row) -> Text:
    if not row.people:
        return Text("-")
    style = "bold red" if row.identified else "green"
    return Text(f"{row.identified}/{row.people}", style=style)


def bound_table(found: Sequence[Headroom]) -> Table:
    """One line per bound that says something; `explain_silence` explains the others."""
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
    shown = [headroom for headroom in found if headroom.informative]
    rows = tabulate_headrooms(shown)
    networks = short_names(row[0] for row in rows)
    for headroom, (network, *row) in zip(shown, rows, strict=True):
        beaten = headroom.standing.kind is Kind.bound_contradicted
        style = "bold red" if beaten else ""
        table.add_row(*(Text(cell, style=style) for cell in (networks[network], *row)))
    return table


def change_table(found: Sequence[Change]) -> Table:
    """One line per person and setup that changed, the worst first; at most 20."""
    changed = [change for change in found if change.direction in _STYLES]
    left = len(changed) - _CHANGES
    table = start_table("What changed, worst first", f"and {left} more" if left > 0 else None)
    for column in ("person", "defense", "attack"):
        table.add_column(column, overflow="fold")
    for column in ("before", "now", ""):
        table.add_column(column, justify="right", no_wrap=True)
    labels = label_setups(setup for change in found for setup in change.setups)
    for change in changed[:_CHANGES]:
        *cells, direction = change.cells(labels)
        table.add_row(*map(Text, cells), Text(direction, style=_STYLES[change.direction]))
    return table
