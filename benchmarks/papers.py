"""The papers' tables, recorded: `python -m benchmarks.papers NAME ... [--scale paper] [--page]`.

Each name is made by `seepage reproduce` and kept with command, commit and machine under
results/papers/, its pictures under docs/results/; with `--out FOLDER` both go there. `--page`
writes docs/results.md from what is there. Needs SEEPAGE_DATA.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.provenance import RESULTS, save
from seepage.cli.audit import pick_device
from seepage.cli.reproduce import Wish, reproduce
from seepage.report import markdown_table, markdown_words
from seepage.reproduce import MEASURES, SCALES, PaperTable, load_table, names

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
PICTURES = PAGE.with_suffix("")
FOLDER = RESULTS / "papers"
Result = dict[str, Any]

OPENING = """# Results

The tables and figures of five papers, made again by `seepage reproduce NAME --scale SCALE`. This
page is written by `python -m benchmarks.papers --page` from `benchmarks/results/papers/`, where
each run is kept with its command, commit, machine and seconds. What was not run is listed as not
run. A run at `smoke` shows that a table can be made, and its numbers say nothing about the paper,
so they are not shown.

In the tables, *difference* is ours less the paper's in the paper's own convention, *usual* is the
same result in the convention of the field, and *95 %* is a bootstrap interval of the mean over
images and seeds. "Not printed" means that the paper shows a curve or pictures without values.
"""


def record(name: str, scale: str, device: str, keep: Path | None, to: Path | None) -> None:
    """Make a table and keep it, with its pictures where they say something."""
    with tempfile.TemporaryDirectory() as folder:
        out = (keep or Path(folder)) / f"{name}-{scale}"
        began = time.perf_counter(), time.process_time()
        code = reproduce(
            Wish(
                name=name,
                scale=scale,
                out=out,
                device=device,
                workers=None,
                resume=keep is not None,
                overwrite=False,
                dry_run=False,
                plain=True,
                quiet=True,
            ),
            Console(),
        )
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        result = json.loads((out / "table.json").read_text(encoding="utf-8"))
        pictures = out / "pictures.png"
        if pictures.is_file() and (to is not None or scale != "smoke"):
            folder = to or PICTURES
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(pictures, folder / f"{name}-{scale}.png")
    content = {"exit_code": code, "wall": round(wall, 1), "cpu": round(cpu, 1), **result}
    print(save(f"{name}-{scale}", device, content, to or FOLDER))


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
    lines = [OPENING, "## What was run", ""]
    header = ["name", "what", *SCALES]
    rows = [
        [t.name, f"{t.title} ({t.place})", *(_said(every[t.name].get(scale)) for scale in SCALES)]
        for t in tables
    ]
    lines += markdown_table(header, rows)
    for table in tables:
        kept = {scale: run for scale, run in every[table.name].items() if scale != "smoke"}
        for scale, run in kept.items():
            lines += ["", *_section(table, scale, run)]
    return "\n".join(lines) + "\n"


def _said(run: Result | None) -> str:
    if run is None:
        return "not run"
    failed = " with failures" if run["failed"] else ""
    seconds = f"{run['wall']:.0f} s, {run['cpu']:.0f} of them computing,"
    return f"{seconds} on {run['machine']['device']}{failed}"


def _section(table: PaperTable, scale: str, run: Result) -> Iterator[str]:
    yield f"## {table.name}, {scale}: {table.title}"
    yield ""
    yield markdown_words(f"{table.place} of {table.paper}. {table.claim}")
    yield ""
    for note in (*_conventions(run), *_reasons(table)):
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="all if none is given and no --page")
    parser.add_argument("--scale", default="smoke", choices=SCALES)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--keep", type=Path, default=None, help="folder to keep and resume audits")
    parser.add_argument("--out", type=Path, default=None, help="folder for results and pictures")
    parser.add_argument("--page", action="store_true", help="write docs/results.md")
    options = parser.parse_args()
    device = pick_device(options.device)
    for name in options.names or ([] if options.page else names()):
        record(name, options.scale, device, options.keep, options.out)
    if options.page:
        PAGE.write_text(page(), encoding="utf-8")
        print(PAGE)


if __name__ == "__main__":
    main()
