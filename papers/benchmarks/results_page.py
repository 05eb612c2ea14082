"""The pages of results, from what is recorded: one of all claims, and one for each paper."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.paper_page import (
    RECORD,
    Causes,
    Result,
    because,
    paper_page,
    place_of,
    said,
    table_lines,
)
from benchmarks.provenance import RESULTS
from seepage.report import markdown_table, markdown_words
from seepage_papers.judge import (
    BEATEN,
    FAILS,
    HOLDS,
    NO_PREMISE,
    NOISE,
    NOT_RUN,
    WORDS,
    Claim,
    Verdict,
    claims,
    judged,
)
from seepage_papers.reading import load_table, names
from seepage_papers.shortfall import (
    Shortfall,
    attacks_alone,
    falls_short,
    is_reached,
    shortfalls,
)
from seepage_papers.table import PAPERS, SCALES, PaperTable

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
PICTURES = PAGE.with_suffix("")
FOLDER = RESULTS / "papers"
# A cause that names the record or the table of the experiment that shows it.
SHOWN = re.compile(r"\.json|\d{3}-(fig|table)\d")
# What became of a number that was missed.
ENDS = REACHED, PART, OPEN = "reached", "in part", "open"
TOLD = {
    HOLDS: "hold",
    FAILS: "do not hold",
    NOISE: "are within noise",
    NO_PREMISE: "lack their premise",
    BEATEN: "are beaten",
    NOT_RUN: "not run",
}

OPENING = """# Results

We made the tables and figures of five papers again, and judged by them what the papers say."""
MEANINGS = """A claim is a list of comparisons between numbers. It *holds* if every one turns out as
claimed, at 95 % confidence over people; the people of one batch count as one draw. It *does not
hold* if one is contradicted, at a confidence that allows for how many there are, and is *within
noise* if the people are too few to tell. It is *beaten* if it says what an attack cannot do, and
one here can. Its *premise fails* if what it takes for granted is not so here, mostly that anything
came back at all.

*Ours* and *paper* are the numbers of the comparison that decides, and *margin* says by how much it
turns out as claimed, with a 95 % interval; a single batch or training has none, nor has a median of
fewer than six. Claims link to the page of their paper, with the cells, the people and the runs, and
*why* to the causes there.
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
        "Victims are trained here for the same 1531 steps, in batches of 64 as its checkpoint was, "
        "behind MixUp and InstaHide too.",
    ),
    (
        "a generator trained on CIFAR-10 (Jeon et al.)",
        "001, Table 3",
        "One of three columns, of which no claim is made alone: a row has the half that needs no "
        "training, a search for the weights of a generator at fixed codes.",
    ),
    (
        "20 rounds of InstaHide",
        "000, Table 5 and Figures 8 to 12",
        "The paper decodes over 20 rounds. Figure 8 is decoded over four here, of fewer digits, as "
        "searches on a CPU allow. Table 5 and Figure 9 need a GPU to be run again, and have one "
        "round, so that their rows may leak less than printed.",
    ),
    ("the supplement", "004", "Its scores: claims are judged by order."),
)

Runs = Mapping[str, Mapping[str, Result]]
Found = Sequence[tuple[Claim, Verdict]]


def recorded(name: str) -> dict[str, Result]:
    """What is kept of a table, by scale."""
    paths = {scale: FOLDER / f"{name}-{scale}.json" for scale in SCALES}
    return {
        scale: json.loads(path.read_text(encoding="utf-8"))
        for scale, path in paths.items()
        if path.is_file()
    }


def pages() -> dict[Path, str]:
    """Every page with its text, from what is kept."""
    tables = [load_table(name) for name in names()]
    every = {table.name: recorded(table.name) for table in tables}
    telling = {name: _telling(runs) for name, runs in every.items()}
    found = [(claim, _judge(claim, telling)) for claim in claims()]
    causes = {number: Causes() for number in PAPERS}
    made: dict[Path, str] = {}
    for number in PAPERS:
        own = [table for table in tables if table.name.startswith(number)]
        theirs = [(c, v) for c, v in found if c.table.startswith(number)]
        written = paper_page(number, own, telling, theirs, causes[number])
        made[PICTURES / f"{number}.md"] = written
    lines = [OPENING, *_verdicts(found, causes), "", *_printed(tables, telling, causes)]
    lines += ["", "## What could not be had", ""]
    header = ["what", "where", "what it would change"]
    lines += markdown_table(header, [list(row) for row in MISSING])
    lines += ["", *_runs(tables, every)]
    return {PAGE: "\n".join(lines) + "\n", **made}


def _telling(runs: Mapping[str, Result]) -> dict[str, Result]:
    """The runs whose numbers say something about the paper."""
    return {scale: run for scale, run in runs.items() if scale != "smoke"}


def _judge(claim: Claim, telling: Runs) -> Verdict:
    """Judge a claim by the largest run that has its cells, but of several people if there is one.

    A paper's own figure may be of a single image, of which no interval can be told.
    """
    ranked = {
        name: sorted(runs.values(), key=_worth, reverse=True) for name, runs in telling.items()
    }
    for run in ranked[claim.table]:
        # Another table is compared at the same scale, if it has that.
        others = {
            name: telling[name].get(run["scale"], runs[0]) for name, runs in ranked.items() if runs
        }
        verdict = judged(claim, {**others, claim.table: run})
        if verdict.word != NOT_RUN:
            return verdict
    return Verdict(NOT_RUN)


def _worth(run: Result) -> tuple[bool, int]:
    several = max(line["people"] for line in run["lines"]) > 1
    return several, SCALES.index(run["scale"])


def _verdicts(found: Found, causes: Mapping[str, Causes]) -> Iterator[str]:
    counts = Counter(verdict.word for _, verdict in found)
    told = ", ".join(f"{counts[word]} {words}" for word, words in TOLD.items())
    yield f"Of {len(found)} claims, {told}."
    against = [claim for claim, verdict in found if verdict.word == FAILS]
    shown = sum(_is_shown(claim.because) for claim in against)
    yield (
        f"The cause of {shown} of the {len(against)} that do not hold names an experiment, and "
        "says where that explains a part only."
    )
    yield ""
    yield from markdown_table(["paper", "claims", *WORDS], list(_counts(found)))
    yield ""
    yield MEANINGS
    for number, title in PAPERS.items():
        rows = [
            _claim_row(claim, verdict, causes[number])
            for claim, verdict in found
            if claim.table.startswith(number)
        ]
        yield ""
        yield f"## [{title}](results/{number}.md)"
        yield ""
        yield from table_lines(
            ["verdict", "claim", "ours", "paper", "margin", "scale", "why"], rows
        )


def _counts(found: Found) -> Iterator[list[str]]:
    """How many claims of each paper got each verdict."""
    for number, title in PAPERS.items():
        words = [verdict.word for claim, verdict in found if claim.table.startswith(number)]
        yield [title, str(len(words)), *(str(words.count(word)) for word in WORDS)]


def _is_shown(cause: str) -> bool:
    """Whether a cause names an experiment that supports it, and none that only rules one out."""
    return bool(SHOWN.search(cause)) and not cause.startswith("Not known")


def _claim_row(claim: Claim, verdict: Verdict, causes: Causes) -> list[str]:
    page = f"results/{claim.table[:3]}.md"
    why = causes.number(because(claim, verdict))
    return [
        verdict.word,
        f"[{markdown_words(claim.says)}]({page}#{claim.table})",
        verdict.found,
        verdict.printed,
        "" if verdict.margin is None else verdict.margin.interval(),
        verdict.scale,
        f"[{why}]({page}#causes)" if why.isdigit() else why,
    ]


def _printed(
    tables: Sequence[PaperTable], telling: Runs, causes: Mapping[str, Causes]
) -> Iterator[str]:
    """How many printed numbers of attacks are reached, by table and measure."""
    rows, counts = [], Counter[str]()
    for table in tables:
        counted: set[tuple[str, ...]] = set()
        for scale, run in reversed(telling[table.name].items()):
            # A number that a larger run has is not looked at again.
            new = [line for line in run["lines"] if attacks_alone(line)]
            new = [line for line in new if place_of(line) not in counted]
            places = set(map(place_of, new))
            counted |= places
            short = [one for one in shortfalls(table, run) if place_of(one.line) in places]
            ends = Counter(map(partial(_end, table.name), short))
            counts.update(ends, printed=len(new), short=len(short))
            for measure in dict.fromkeys(str(line["measure"]) for line in new):
                less = [one for one in short if one.line["measure"] == measure]
                ends = Counter(map(partial(_end, table.name), less))
                where = f"[{table.name}](results/{table.name[:3]}.md#{table.name})"
                printed = sum(line["measure"] == measure for line in new)
                numbers = (printed, len(less), *(ends[end] for end in ENDS))
                cells = [where, scale, markdown_words(measure), *map(str, numbers)]
                rows.append([*cells, *_widest(less, causes[table.name[:3]])])
    yield "## Printed numbers of attacks"
    yield ""
    yield (
        f"Of {counts['printed']} numbers that the papers print for attacks, {counts['short']} are "
        "missed by more than 1 dB of PSNR, 0.03 of LPIPS, of GradAttack's RMSE or of a feature, or "
        f"a tenth of any other number. Of these, {counts[REACHED]} are *reached* once what is "
        "named as the cause is changed: by our attack in the same table, in the experiment, or, "
        "where the paper has one image, of one of ours; "
        f"{counts[PART]} have an experiment that shows a part of the cause or was made on other "
        f"cells; the rest, {counts[OPEN]}, is *open*. Each is counted by the largest run that "
        "has it. Shown is the widest gap; *ours* is our strongest attack in the same row or "
        "column, where the table has one. The pages of the papers have every number."
    )
    yield ""
    header = ["table", "scale", "measure", "printed", "missed", *ENDS, "widest", "paper"]
    yield from table_lines([*header, "as published", "ours", "why"], rows)


def _end(table: str, one: Shortfall) -> str:
    """Whether what was missed is reached elsewhere, or a part of the cause is shown at least."""
    others = [other for other in (one.ours, one.single) if other is not None]
    if any(not falls_short({**one.line, "seepage": other}) for other in others):
        return REACHED
    for name in RECORD.findall(one.cause):
        experiment = json.loads((RESULTS / name).read_text(encoding="utf-8"))
        if experiment.get("table") == table and is_reached(one.line, experiment):
            return REACHED
    return PART if _is_shown(one.cause) else OPEN


def _widest(short: Sequence[Shortfall], causes: Causes) -> list[str]:
    """The cell that falls short the most, with its numbers, and the causes of all."""
    if not short:
        return [""] * 5
    widest = max(short, key=lambda one: abs((one.line["seepage"] or 0.0) - one.line["paper"]))
    line = widest.line
    cell = ", ".join(str(line[k]) for k in ("row", "column") if line[k])
    numbers = (line["paper"], line["seepage"], widest.ours)
    why = dict.fromkeys(causes.number(one.cause) for one in short)
    told = ["" if value is None else f"{value:.4g}" for value in numbers]
    return [markdown_words(cell), *told, ", ".join(why)]


def _runs(tables: Sequence[PaperTable], every: Runs) -> Iterator[str]:
    yield "## What was run"
    yield ""
    yield (
        "By `seepage reproduce NAME --scale SCALE`, kept in `benchmarks/results/papers/` with "
        "command, commit, machine and seconds; `python -m benchmarks.papers --page` writes these "
        "pages. *Again* is the same command run from a clean copy of a later commit, "
        "or a part of it, and what came of it."
    )
    yield ""
    header = ["name", "what", *SCALES, "again"]
    yield from markdown_table(header, [_run_row(table, every[table.name]) for table in tables])


def _run_row(table: PaperTable, runs: Mapping[str, Result]) -> list[str]:
    again = [run["rerun"] for run in runs.values() if "rerun" in run]
    told = (said(runs.get(scale)) for scale in SCALES)
    return [table.name, f"{table.title} ({table.place})", *told, " ".join(again)]
