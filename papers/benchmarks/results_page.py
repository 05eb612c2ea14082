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
    NOT_RUN: "not run",
}

OPENING = """# Results

What five papers say, judged by their tables and figures made again. Each claim is put as
comparisons of cells, of the largest run there is; *decided by* is the one that contradicts it most
or is the least sure, *paper* has the printed numbers of the same cells, and *margin* is by how much
it turns out as claimed, with the 95 % interval over people. *Paired* compares each person with
themselves; older runs kept no people and have the wider interval of independent means.

A claim *holds* where all of it does, and *does not hold* where one comparison is contradicted,
allowing for how many there are. Between the two it is *within noise*. Where it says what an attack
cannot do and a stronger one can, it is *beaten*. Where its *premise fails*, mostly since nothing
came back at all, it says nothing. Attacks are the authors' where a row or column says *as
published*. Numbers in the last column are causes, listed once [below](#causes).
"""
DETAILS = """## Tables

Made by `seepage reproduce NAME --scale SCALE` and kept in `benchmarks/results/papers/` with
command, commit, machine and seconds; `python -m benchmarks.papers --page` writes this page.
*Difference* is ours less the paper's in the paper's own convention, *usual* is the same result in
the convention of the field, and *95 %* is a bootstrap interval of the mean over images and seeds.
"Not printed" means that the paper shows a curve or pictures without values. Pictures are of the
first eight people of each cell, with the PSNR of images in [0, 1] below them. Runs at `smoke`
show that a table can be made and are not shown.
"""
# What the papers had and this project has not, and what it would change.
MISSING = (
    (
        "LPIPS by VGG",
        "000 and 001",
        "Absolute LPIPS only: AlexNet's stands for it, so that rows and columns of ours compare, "
        "and neither does with a printed number.",
    ),
    (
        "50 000 images of CIFAR-10",
        "000, 001, 003 and 004",
        "Victims learn from 20 000, for as many steps as the papers say: accuracies are lower, and "
        "gradients of trained networks larger.",
    ),
    (
        "ResNet-18 trained on ImageNet",
        "003, Figures 1 and 7",
        "The half of Figure 7 from a trained network; the untrained half can be made.",
    ),
    (
        "GradAttack's checkpoints",
        "000, Table 5",
        "Victims are trained here for the same 1531 steps, behind MixUp and InstaHide too.",
    ),
    (
        "a generator trained on CIFAR-10 (Jeon et al.)",
        "001, Table 3",
        "One of three columns, of which no claim is made alone: a row has the half that needs no "
        "training, a search for the weights of a generator at fixed codes.",
    ),
    (
        "updates of several rounds in one observation",
        "000, Table 5 and Figures 8 to 12",
        "InstaHide is decoded over 20 rounds there and over one here, so that its rows may leak "
        "less than printed.",
    ),
    ("the supplement", "004", "Its scores: claims are judged by order."),
    (
        "the network of Wang et al., max pooling in a ResNet, reversible blocks",
        "003, Figure 2 and Section 4",
        "One panel of Figure 2 and two remarks, of which no claim is kept here.",
    ),
)


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
    causes = Causes()
    lines = [OPENING, *_verdicts(tables, every, causes), ""]
    lines += _shortfalls(tables, every, causes)
    lines += ["", "## Causes", "", *(f"{n}. {markdown_words(why)}" for n, why in causes.listed())]
    lines += ["", "## What could not be had", ""]
    lines += markdown_table(
        ["what", "where", "what it would change"], [list(row) for row in MISSING]
    )
    lines += ["", "## What was run", ""]
    header = ["name", "what", *SCALES]
    rows = [
        [t.name, f"{t.title} ({t.place})", *(_said(every[t.name].get(scale)) for scale in SCALES)]
        for t in tables
    ]
    lines += [*markdown_table(header, rows), "", DETAILS]
    for table in tables:
        for scale, run in _telling(every[table.name]).items():
            lines += ["", *_section(table, scale, run)]
    return "\n".join(lines) + "\n"


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


def _telling(runs: Mapping[str, Result]) -> dict[str, Result]:
    """The runs whose numbers say something about the paper."""
    return {scale: run for scale, run in runs.items() if scale != "smoke"}


def _judge(claim: Claim, every: Mapping[str, Mapping[str, Result]]) -> Verdict:
    """Judge a claim by the largest run that has its cells, but of several people if there is one.

    A paper's own figure may be of a single image, of which no interval can be told.
    """
    ranked = {
        name: sorted(_telling(runs).values(), key=_worth, reverse=True)
        for name, runs in every.items()
    }
    largest = {name: runs[0] for name, runs in ranked.items() if runs}
    for run in ranked[claim.table]:
        verdict = judged(claim, {**largest, claim.table: run})
        if verdict.word != NOT_RUN:
            return verdict
    return Verdict(NOT_RUN)


def _worth(run: Result) -> tuple[bool, int]:
    several = max(line["people"] for line in run["lines"]) > 1
    return several, SCALES.index(run["scale"])


def _verdicts(
    tables: list[PaperTable], every: Mapping[str, Mapping[str, Result]], causes: Causes
) -> Iterator[str]:
    found = [(claim, _judge(claim, every)) for claim in claims()]
    counts = Counter(verdict.word for _, verdict in found)
    said = ", ".join(f"{counts[word]} {words}" for word, words in TOLD.items())
    yield f"Of {len(found)} claims, {said}."
    for paper in dict.fromkeys(table.paper for table in tables):
        theirs = [table.name for table in tables if table.paper == paper]
        rows = [
            _claim_row(claim, verdict, causes) for claim, verdict in found if claim.table in theirs
        ]
        yield ""
        yield f"## {paper}"
        yield ""
        header = ["verdict", "claim", "name", "decided by", "paper", "margin", "scale", "why"]
        yield from markdown_table(header, rows)


def _claim_row(claim: Claim, verdict: Verdict, causes: Causes) -> list[str]:
    margin = "" if verdict.margin is None else str(verdict.margin)
    if verdict.other:
        margin += f"; {verdict.other}"
    why = causes.number(_because(claim, verdict))
    numbers = [verdict.numbers, verdict.printed, margin, verdict.scale]
    return [verdict.word, claim.says, claim.table, *numbers, why]


def _because(claim: Claim, verdict: Verdict) -> str:
    """What is known about a verdict; one against the paper needs a cause."""
    if verdict.word == NOT_RUN:
        return ""
    return claim.because or (UNKNOWN if verdict.word in (FAILS, NO_PREMISE) else "")


def _shortfalls(
    tables: list[PaperTable], every: Mapping[str, Mapping[str, Result]], causes: Causes
) -> Iterator[str]:
    rows = []
    for table in tables:
        for scale, run in _telling(every[table.name]).items():
            for short in shortfalls(table, run):
                cell = ", ".join(str(short.line[k]) for k in ("row", "column") if short.line[k])
                what = f"{short.line['measure']}, {short.line['statistic']}"
                pair = (_number(short.line[k]) for k in ("paper", "seepage"))
                ours = "" if short.ours is None else _number(short.ours)
                rows.append(
                    [table.name, scale, cell, what, *pair, ours, causes.number(short.cause)]
                )
    yield "## Where less came back than was printed"
    yield ""
    yield (
        "By more than 2 dB of PSNR, 0.05 of LPIPS, of GradAttack's RMSE or of a feature, 2 % of "
        "accuracy, or a tenth of any other number. *Ours* is our strongest attack in the same "
        "column or row, where the table has one."
        if rows
        else "Nowhere in what was run, by more than 2 dB of PSNR or 0.05 of LPIPS."
    )
    yield ""
    header = ["name", "scale", "cell", "measure", "paper", "as published", "ours", "cause"]
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
    for more in ("note", "stopped"):
        if more in run:
            yield markdown_words(run[more])
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
