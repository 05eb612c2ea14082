"""Pivot tables: attacks down, defenses across, for every batch size; in Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from seepage.report.leak_table import list_varying, name_attacks
from seepage.report.summary import Row, unscored_words
from seepage.report.tables import markdown_table
from seepage.report.words import label_defenses, short_names

# Special characters of LaTeX, and signs that its fonts lack in text.
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
    "\N{GREEK SMALL LETTER SIGMA}": r"$\sigma$",
    "\N{GREEK SMALL LETTER EPSILON}": r"$\varepsilon$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
}


@dataclass(frozen=True)
class _PivotCell:
    """What one attack got through one defense.

    Args:
        text: The score of the worst-off person, or why there is none.
        share: People identified, of how many; empty without a result.
        identified: Whether anybody was.
    """

    text: str
    share: str = ""
    identified: bool = False


@dataclass(frozen=True)
class Pivot:
    """A table of rows by attack, batch size and whatever else varies, and columns by defense.

    Args:
        titles: Of the columns that name a row.
        defenses: Short labels, in the order of the audit.
        rows: The names of each row, then one cell for each defense; None if nothing was planned.
    """

    titles: tuple[str, ...]
    defenses: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[_PivotCell | None, ...]], ...]


def make_pivot(found: Sequence[Row]) -> Pivot:
    """Turn the rows of `summarise` into a pivot table."""
    varying = {title: cells for title, cells in list_varying(found).items() if title != "batch"}
    data, networks = (short_names(getattr(r, n) for r in found) for n in ("data", "model"))
    attacks = name_attacks(row.attack for row in found)
    labels = label_defenses(row.defense for row in found)
    columns = {
        "data": [data[row.data] for row in found] if len(data) > 1 else None,
        "network": [networks[row.model] for row in found] if len(networks) > 1 else None,
        "attack": [attacks[row.attack] for row in found],
        "batch": [str(row.batch_size) for row in found],
        **varying,
    }
    shown = {title: cells for title, cells in columns.items() if cells is not None}
    ordered = sorted(labels, key=lambda defense: (bool(defense), labels[defense]))
    table: dict[tuple[str, ...], dict[str, _PivotCell]] = {}
    for number, row in enumerate(found):
        key = tuple(cells[number] for cells in shown.values())
        table.setdefault(key, {})[labels[row.defense]] = _make_cell(row)
    names = tuple(labels[defense] for defense in ordered)
    rows = sorted(
        table.items(),
        key=lambda item: [(int(w), "") if w.isdecimal() else (-1, w) for w in item[0]],
    )
    return Pivot(
        tuple(shown), names, tuple((key, tuple(map(cells.get, names))) for key, cells in rows)
    )


def _make_cell(row: Row) -> _PivotCell:
    if row.worst_person is None:
        return _PivotCell(unscored_words(row))
    share = f"{row.identified}/{row.people}"
    return _PivotCell(row.words(row.worst, unit=False), share, row.identified > 0)


def pivot_markdown(pivot: Pivot, *, missing: str | None = None) -> str:
    """Write a pivot table in Markdown: the worst-off person, and how many were identified.

    Args:
        pivot: From `make_pivot`.
        missing: What the audit lacks, if anything.
    """
    rows = [
        [
            *names,
            *("-" if c is None else f"{c.text} ({c.share})" if c.share else c.text for c in row),
        ]
        for names, row in pivot.rows
    ]
    lines = markdown_table([*pivot.titles, *pivot.defenses], rows)
    return "\n".join([*lines, "", " ".join(filter(None, [missing, _EXPLAINED])), ""])


_EXPLAINED = (
    "Worst-off person (PSNR in dB, or the share of columns or words), and people identified of "
    "those attacked; n/a: the attack cannot take these cases."
)


def pivot_latex(pivot: Pivot, *, title: str, missing: str | None = None) -> str:
    """Write a pivot table for a paper: booktabs, people identified in bold."""
    told = _escape_latex(" ".join(filter(None, [f"{title}.", missing, _EXPLAINED])))
    body = [
        " & ".join([*map(_escape_latex, names), *map(_write_latex_cell, row)]) + r" \\"
        for names, row in pivot.rows
    ]
    head = " & ".join(map(_escape_latex, [*pivot.titles, *pivot.defenses]))
    columns = "l" * len(pivot.titles) + "r" * len(pivot.defenses)
    lines = [
        "% Needs \\usepackage{booktabs}.",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{told} Bold: somebody was.}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        rf"    {head} \\",
        r"    \midrule",
        *(f"    {line}" for line in body),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _write_latex_cell(cell: _PivotCell | None) -> str:
    if cell is None:
        return "--"
    text = _escape_latex(f"{cell.text} ({cell.share})" if cell.share else cell.text)
    return rf"\textbf{{{text}}}" if cell.identified else text


def _escape_latex(text: str) -> str:
    r"""Escape text from a spec, so that LaTeX prints it and runs nothing.

    Example:
        >>> _escape_latex("50% of a_b")
        '50\\% of a\\_b'
    """
    plain = " ".join(text.split())
    return re.sub("|".join(map(re.escape, _LATEX)), lambda match: _LATEX[match[0]], plain)
