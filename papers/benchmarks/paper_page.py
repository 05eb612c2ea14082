"""The page of one paper: its claims in full, its tables beside ours, pictures and causes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.provenance import RESULTS
from seepage.report import markdown_words
from seepage_papers.judge import FAILS, NO_PREMISE, NOT_RUN, Claim, Verdict
from seepage_papers.measures import MEASURES
from seepage_papers.reproduction import different, reasons
from seepage_papers.shortfall import UNKNOWN, shortfalls
from seepage_papers.table import PAPERS, PaperTable

Result = dict[str, Any]
CODE = re.compile(r"`([^`]+)`")
RECORD = re.compile(r"\b([\w+-]+\.json)")
# Columns that a table may have before it is turned, and cells that a note names.
FEW = 6
OPENING = """[All papers](../results.md). A cell reads *our mean ± half of its 95 % interval over
people / the paper's number*, in the paper's own convention, and *usual* is the same result in the
convention of the field. Where less came back than the paper prints, a number in brackets leads to
the [cause](#causes). Pictures show the first eight people of each cell, with the PSNR of images in
[0, 1] below them. Scale `paper` has the paper's settings as far as it prints them, and counts of
people that we chose. Runs at `smoke` only test that a table can be made, and are left out.
"""


class Causes:
    """Causes by number, each said once."""

    def __init__(self) -> None:
        """Begin without any."""
        self._numbers: dict[str, int] = {}

    def number(self, why: str) -> str:
        """The number of a cause; that it is not known is said in place."""
        if not why or why == UNKNOWN:
            return why
        return str(self._numbers.setdefault(why, len(self._numbers) + 1))

    def listed(self) -> list[tuple[int, str]]:
        """Every cause with its number."""
        return [(number, why) for why, number in self._numbers.items()]


def because(claim: Claim, verdict: Verdict) -> str:
    """What is known about a verdict; one against the paper needs a cause."""
    if verdict.word == NOT_RUN:
        return ""
    return claim.because or (UNKNOWN if verdict.word in (FAILS, NO_PREMISE) else "")


def table_lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table whose cells are Markdown already."""
    for row in (header, ["---"] * len(header), *rows):
        yield f"| {' | '.join(row)} |"


def paper_page(
    number: str,
    tables: Sequence[PaperTable],
    runs: Mapping[str, Mapping[str, Result]],
    found: Sequence[tuple[Claim, Verdict]],
    causes: Causes,
) -> str:
    """The page of a paper.

    Args:
        number: Of the paper.
        tables: Of the paper.
        runs: What is recorded of each table that says something about the paper, by scale.
        found: Its claims with their verdicts.
        causes: Where the causes of this paper are counted.
    """
    lines = [f"# {PAPERS[number]}", "", OPENING, "## Claims", ""]
    rows = (_claim_row(claim, verdict, causes) for claim, verdict in found)
    lines += table_lines(["verdict", "claim", "table", "decided by", "margin", "cause"], rows)
    for table in tables:
        lines += ["", f"## {table.name}", "", *_section(table, runs[table.name], causes)]
    listed = causes.listed()
    lines += ["", "## Causes", "", *(f"{n}. {_cited(why)}" for n, why in listed)] if listed else []
    return "\n".join(lines) + "\n"


def _claim_row(claim: Claim, verdict: Verdict, causes: Causes) -> list[str]:
    margin = "" if verdict.margin is None else str(verdict.margin)
    if verdict.other:
        margin += f"; {verdict.other}"
    words = (verdict.word, claim.says, claim.table, verdict.numbers, margin)
    cells = [markdown_words(word) for word in words]
    cells[2] = f"[{claim.table}](#{claim.table})"
    return [*cells, causes.number(because(claim, verdict))]


def _section(table: PaperTable, runs: Mapping[str, Result], causes: Causes) -> Iterator[str]:
    yield f"{markdown_words(table.title)} ({table.place}). {markdown_words(table.claim)}"
    for why in reasons(table):
        yield ""
        yield _with_code(why)
    for scale, run in runs.items():
        yield ""
        yield f"**Scale `{scale}`.** {markdown_words(' '.join(different(table, run['values'])))}"
        yield ""
        yield from _origin(run)
        yield from _matrices(table, run, causes)
        pictures = f"{table.name}-{scale}.png"
        if (RESULTS.parents[1] / "docs" / "results" / pictures).is_file():
            yield ""
            yield f"![The people of {table.name} and what came back]({pictures})"


def _with_code(text: str) -> str:
    """The text in Markdown; what stands between backticks stays code.

    Example:
        >>> _with_code("782 steps (`schooled`) of a_b")
        '782 steps (`schooled`) of a\\\\_b'
    """
    parts = CODE.split(text)
    return "".join(f"`{p}`" if odd % 2 else _escaped(p) for odd, p in enumerate(parts))


def _escaped(text: str) -> str:
    """Markdown of a part of a sentence, with the spaces at its ends."""
    before, after = text[:1].isspace(), text[-1:].isspace() and bool(text.strip())
    return " " * before + markdown_words(text) + " " * after


def _origin(run: Result) -> Iterator[str]:
    """The command of a run and what else is told of it, folded: it can be long."""
    first = f"`{run['command']}`, commit {run['commit']}, {said(run)}."
    told = [first, *(run[more] for more in ("note", "stopped", "rerun") if more in run)]
    yield "<details><summary>How this was made</summary>"
    for words in told:
        yield "<p>" + CODE.sub(r"<code>\1</code>", html.escape(words, quote=False)) + "</p>"
    yield "</details>"


def said(run: Result | None) -> str:
    """How long a run took, and where."""
    if run is None:
        return "not run"
    failed = " with failures" if run["failed"] else ""
    return f"{run['wall']:.0f} s on {run['machine']['device']}{failed}"


def _matrices(table: PaperTable, run: Result, causes: Causes) -> Iterator[str]:
    """One table for each measure, rows and columns as in the paper."""
    short = {place_of(one.line): causes.number(one.cause) for one in shortfalls(table, run)}
    lines = {place_of(line): line for line in run["lines"]}
    for kind in dict.fromkeys(place[:2] for place in lines):
        rows, columns = (
            list(dict.fromkeys(place[axis] for place in lines if place[:2] == kind))
            for axis in (2, 3)
        )
        turned = len(columns) > max(len(rows), FEW)
        statistic = "" if kind[1] == "mean" else f", {kind[1]}"

        def cell(down: str, across: str, kind: tuple[str, ...], turned: bool) -> str:
            place = (*kind, across, down) if turned else (*kind, down, across)
            return _cell(lines[place], short.get(place, "")) if place in lines else ""

        if turned:
            rows, columns = columns, rows
        yield ""
        yield markdown_words(f"{MEASURES[kind[0]].words}{statistic}:")
        yield ""
        yield from table_lines(
            ["", *(markdown_words(column) or "ours / paper" for column in columns)],
            [[markdown_words(r), *(cell(r, c, kind, turned) for c in columns)] for r in rows],
        )
    yield from _notes(run["lines"])


def place_of(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Where a number stands in its table."""
    return (line["measure"], line["statistic"], line["row"], line["column"])


def _cell(line: Mapping[str, Any], cause: str) -> str:
    """Ours, the interval, the paper's number, the usual convention and the cause."""
    digits = MEASURES[line["measure"]].digits
    if line["seepage"] is None:
        # A network that has no such layer, or an attack that brought nothing back.
        told = "-" if line["measure"] == "rank" else "nothing"
    else:
        # Reports write what JSON has no number for, an exact PSNR, as a word.
        told = f"{float(line['seepage']):.{digits}f}"
        if line["interval"]:
            low, high = line["interval"]
            told += f" ±{(high - low) / 2:.{digits}f}"
    if line["paper"] is not None:
        told += f" / {line['paper']:.{digits}f}"
    if line["standard"] is not None:
        told += f" (usual {float(line['standard']):.{digits}f})"
    return told + f" \\[{cause}\\]" * bool(cause)


def _notes(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is said of rows and columns, once each."""
    notes: dict[str, list[str]] = {}
    for line in lines:
        if line["why"]:
            cell = ", ".join(label for label in (line["row"], line["column"]) if label)
            notes.setdefault(line["why"], []).append(cell)
    for number, (why, where) in enumerate(notes.items()):
        if not number:
            yield ""
        cells = list(dict.fromkeys(where))
        told = "; ".join(cells) if len(cells) <= FEW else f"{len(cells)} cells"
        yield f"- {markdown_words(f'{told}: {why}')}"


def _cited(why: str) -> str:
    """A cause, with links to the records that it names."""
    return RECORD.sub(r"[\1](../../benchmarks/results/\1)", markdown_words(why).replace("\\_", "_"))
