"""Tables in files: the verdict and the summary in Markdown, and pivot tables, also in LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from seepage._printable import make_printable
from seepage.audit._words import label_defenses, label_setups, short_names, threat_words
from seepage.report._change import Change, Direction, comparison_verdict
from seepage.report._finding import Verdict
from seepage.report._headroom import COLUMNS, explain_silence, headrooms, tabulate_headrooms
from seepage.report._summary import (
    Row,
    exact_words,
    list_varying,
    name_attacks,
    summarise,
    unscored_words,
)
from seepage.report._unscored import missing
from seepage.report._verdict import audit_verdict

if TYPE_CHECKING:
    from seepage.audit._audit_result import AuditResult


def audit_markdown(audit: AuditResult) -> str:
    """The verdict, what the adversary had, and a table with the worst leak first."""
    found = summarise(audit.results)
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
    bounds = headrooms(audit.results, audit.bounds)
    if not bounds:
        return text
    table = markdown_table(list(COLUMNS), tabulate_headrooms(bounds))
    reasons = [line for reason in explain_silence(bounds) for line in ("", markdown_words(reason))]
    return text + "\n".join(["", "## What theory allows", "", *table, *reasons]) + "\n"


def comparison_markdown(before: str, after: str, found: Sequence[Change]) -> str:
    """What changed between two audits, the worst first, without what stayed the same."""
    labels = label_setups(setup for change in found for setup in change.setups)
    rows = [change.cells(labels) for change in found if change.direction is not Direction.same]
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
    plain = make_printable(" ".join(text.split()))
    for sign in "\\`*_[]<>|":
        plain = plain.replace(sign, f"\\{sign}")
    return plain


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

    A score is that of the worst-off person; the share of people identified is empty without a
    result.
    """

    text: str
    share: str = ""
    identified: bool = False


@dataclass(frozen=True)
class _Pivot:
    """A table of rows by attack, batch size and whatever else varies, and columns by defense.

    Each row has its names, then one cell for each defense, which is None if nothing was planned.
    """

    titles: tuple[str, ...]
    defenses: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[_PivotCell | None, ...]], ...]


def make_pivot(found: Sequence[Row]) -> _Pivot:
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
    return _Pivot(
        tuple(shown), names, tuple((key, tuple(map(cells.get, names))) for key, cells in rows)
    )


def _make_cell(row: Row) -> _PivotCell:
    if row.worst_person is None:
        return _PivotCell(unscored_words(row))
    share = f"{row.identified}/{row.people}"
    return _PivotCell(row.words(row.worst, unit=False), share, row.identified > 0)


def pivot_markdown(pivot: _Pivot, *, missing: str | None = None) -> str:
    """Write a pivot table in Markdown: the worst-off person, and how many were identified."""
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


def pivot_latex(pivot: _Pivot, *, title: str, missing: str | None = None) -> str:
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
    plain = make_printable(" ".join(text.split()))
    return re.sub("|".join(map(re.escape, _LATEX)), lambda match: _LATEX[match[0]], plain)
