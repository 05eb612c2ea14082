"""The page of results, from what is recorded: verdicts, shortfalls, tables and pictures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.provenance import RESULTS
from seepage.report import markdown_table, markdown_words
from seepage_papers.judge import (
    BEATEN,
    FAILS,
    HOLDS,
    NO_PREMISE,
    NOISE,
    NOT_RUN,
    Claim,
    Verdict,
    claims,
    judged,
)
from seepage_papers.measures import MEASURES
from seepage_papers.reading import load_table, names
from seepage_papers.reproduction import different
from seepage_papers.shortfall import UNKNOWN, shortfalls
from seepage_papers.table import SCALES, PaperTable

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
PICTURES = PAGE.with_suffix("")
FOLDER = RESULTS / "papers"
Result = dict[str, Any]
TOLD = {
    HOLDS: "hold",
    FAILS: "do not hold",
    NOISE: "are within noise",
    NO_PREMISE: "lack their premise",
    BEATEN: "are beaten",
    NOT_RUN: "were not run",
}

OPENING = """# Results

The tables and figures of five papers, made again by `seepage reproduce NAME --scale SCALE`. This
page is written by `python -m benchmarks.papers --page` from `benchmarks/results/papers/`, where
each run is kept with its command, commit, machine and seconds. What was not run is listed as not
run. A run at `smoke` shows that a table can be made, and its numbers say nothing about the paper,
so they are not shown.

Each claim of a paper is put as comparisons of cells, and its verdict is computed from the largest
run there is, by differences over people with 95 % intervals. It *holds* where all of it does,
and it *does not hold* where one comparison is contradicted, allowing for how many there are.
Between the two it is *within noise*. Where it says what an attack cannot do and a stronger one
can, it is *beaten*. Where its *premise fails*, mostly since nothing came back at all, it says
nothing.

In the tables, *difference* is ours less the paper's in the paper's own convention, *usual* is the
same result in the convention of the field, and *95 %* is a bootstrap interval of the mean over
images and seeds. "Not printed" means that the paper shows a curve or pictures without values.
Pictures are of the first eight people of each cell, with the PSNR of images in [0, 1] below them.
"""


def recorded(name: str) -> dict[str, Result]:
    """What is kept of a table, by scale."""
    paths = {scale: FOLDER / f"{name}-{scale}.json" for scale in SCALES}
    return {
        scale: json.loads(path.read_text(encoding="utf-8"))
        for scale, path in paths.items()
        if path.is_file()
    }


def page() -> str:
    """The document, from what is kept."""
    tables = [load_table(name) for name in names()]
    every = {table.name: recorded(table.name) for table in tables}
    lines = [OPENING, *_verdicts(tables, _largest(every)), "", *_shortfalls(tables, every)]
    lines += ["", "## What was run", ""]
    header = ["name", "what", *SCALES]
    rows = [
        [t.name, f"{t.title} ({t.place})", *(_said(every[t.name].get(scale)) for scale in SCALES)]
        for t in tables
    ]
    lines += markdown_table(header, rows)
    for table in tables:
        for scale, run in _telling(every[table.name]).items():
            lines += ["", *_section(table, scale, run)]
    return "\n".join(lines) + "\n"


def _telling(runs: Mapping[str, Result]) -> dict[str, Result]:
    """The runs whose numbers say something about the paper."""
    return {scale: run for scale, run in runs.items() if scale != "smoke"}


def _largest(every: Mapping[str, Mapping[str, Result]]) -> dict[str, Result]:
    """The run that claims are judged by: the largest, but of several people if there is one.

    A paper's own figure may be of a single image, of which no interval can be told.
    """
    telling = {name: _telling(runs) for name, runs in every.items()}
    return {name: max(runs.values(), key=_worth) for name, runs in telling.items() if runs}


def _worth(run: Result) -> tuple[bool, int]:
    several = max(line["people"] for line in run["lines"]) > 1
    return several, SCALES.index(run["scale"])


def _verdicts(tables: list[PaperTable], runs: Mapping[str, Result]) -> Iterator[str]:
    found = [(claim, judged(claim, runs)) for claim in claims()]
    counts = Counter(verdict.word for _, verdict in found)
    said = ", ".join(f"{counts[word]} {words}" for word, words in TOLD.items())
    yield "## What the papers say, and what was found"
    yield ""
    yield f"Of {len(found)} claims, {said}."
    papers = dict.fromkeys(table.paper for table in tables)
    for paper in papers:
        theirs = [table.name for table in tables if table.paper == paper]
        rows = [
            [
                claim.table,
                claim.says,
                verdict.word,
                verdict.numbers,
                verdict.scale,
                _because(claim, verdict),
            ]
            for claim, verdict in found
            if claim.table in theirs
        ]
        yield ""
        yield f"### {paper}"
        yield ""
        header = ["name", "claim", "verdict", "decided by", "scale", "why"]
        yield from markdown_table(header, rows)


def _because(claim: Claim, verdict: Verdict) -> str:
    """What is known about a verdict; one against the paper needs a cause."""
    if verdict.word == NOT_RUN:
        return ""
    return claim.because or (UNKNOWN if verdict.word in (FAILS, NO_PREMISE) else "")


def _shortfalls(
    tables: list[PaperTable], every: Mapping[str, Mapping[str, Result]]
) -> Iterator[str]:
    rows = []
    for table in tables:
        for scale, run in _telling(every[table.name]).items():
            for short in shortfalls(table, run):
                cell = ", ".join(str(short.line[k]) for k in ("row", "column") if short.line[k])
                what = f"{short.line['measure']}, {short.line['statistic']}"
                pair = (_number(short.line[k]) for k in ("paper", "seepage"))
                rows.append([table.name, scale, cell, what, *pair, short.cause])
    yield "## Where less came back than was printed"
    yield ""
    yield (
        "By more than 2 dB of PSNR, 0.05 of LPIPS, of GradAttack's RMSE or of a feature, 2 % of "
        "accuracy, or a tenth of any other number."
        if rows
        else "Nowhere in what was run, by more than 2 dB of PSNR or 0.05 of LPIPS."
    )
    yield ""
    header = ["name", "scale", "cell", "measure", "paper", "Seepage", "cause"]
    yield from markdown_table(header, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _said(run: Result | None) -> str:
    if run is None:
        return "not run"
    failed = " with failures" if run["failed"] else ""
    computing = f", {run['cpu']:.0f} of them computing," if run["cpu"] is not None else ""
    seconds = f"{run['wall']:.0f} s{computing}"
    return f"{seconds} on {run['machine']['device']}{failed}"


def _section(table: PaperTable, scale: str, run: Result) -> Iterator[str]:
    yield f"## {table.name}, {scale}: {table.title}"
    yield ""
    yield markdown_words(f"{table.place} of {table.paper}. {table.claim}")
    yield ""
    for note in (*different(table, run["values"]), *_conventions(run), *_reasons(table)):
        yield f"- {markdown_words(note)}"
    yield ""
    yield f"`{run['command']}`, commit {run['commit']}, {_said(run)}."
    yield ""
    yield from markdown_table(run["header"], run["rows"])
    pictures = PICTURES / f"{table.name}-{scale}.png"
    if pictures.is_file():
        yield ""
        yield f"![The people of {table.name} and what came back]({PICTURES.name}/{pictures.name})"


def _conventions(run: Result) -> list[str]:
    named = dict.fromkeys(line["measure"] for line in run["lines"])
    return [f"{name}: {MEASURES[name].words}." for name in named]


def _reasons(table: PaperTable) -> list[str]:
    """Why numbers may differ, as far as it is known by now."""
    return list(dict.fromkeys(block.why for block in table.published if block.why))
