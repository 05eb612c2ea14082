"""The papers' tables, recorded: `python -m benchmarks.papers NAME ... [--scale paper] [--page]`.

Each name is made by `seepage reproduce` and kept with command, commit and machine under
results/papers/, its pictures under docs/results/; with `--out FOLDER` both go there. A signal ends
a table with the cells that are done. `--row`, `--column` and `--set steps=3000` make a part of it
or change it; `benchmarks.assemble` puts parts together. `--page` writes docs/results.md and a page
for each paper. Needs SEEPAGE_DATA.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.provenance import save
from benchmarks.results_page import FOLDER, PICTURES, pages
from seepage._signals import raise_on_signals
from seepage.audit._run_spec import pick_device
from seepage.cli._commands import Shown
from seepage_papers.command import Reproduce
from seepage_papers.reading import names
from seepage_papers.reproduce import SPEC, reproduce, what_is_done
from seepage_papers.table import SCALES


def record(
    name: str,
    scale: str,
    device: str,
    keep: Path | None,
    to: Path | None,
    rows: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    values: dict[str, object] | None = None,
) -> int:
    """Make a table and keep it, with its pictures where they say something; 0 if all went well."""
    with tempfile.TemporaryDirectory() as folder:
        out = (keep or Path(folder)) / f"{name}-{scale}"
        began = time.perf_counter(), time.process_time()
        wish = Reproduce(
            name=name,
            scale=scale,
            out=out,
            device=device,
            resume=keep is not None,
            shown=Shown(plain=True),
            row=rows,
            column=columns,
            values=values or {},
        )
        stopped = False
        with raise_on_signals():
            try:
                code = reproduce(wish, Console())
            except KeyboardInterrupt:
                stopped = True
        if stopped and not (out / SPEC).is_file():
            print(f"{name} was ended before a cell of it was done; nothing is kept")
            return 1
        if stopped:
            code = what_is_done(wish, Console())
        wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
        result = json.loads((out / "table.json").read_text(encoding="utf-8"))
        pictures = out / "pictures.png"
        if pictures.is_file() and (to is not None or scale != "smoke"):
            folder = to or PICTURES
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(pictures, folder / f"{name}-{scale}.png")
    content = {"exit_code": code, "wall": round(wall, 1), "cpu": round(cpu, 1), **result}
    if stopped:
        content["stopped"] = "Ended by a time limit; cells without a number were not reached."
    print(save(f"{name}-{scale}", device, content, to or FOLDER))
    return code


def read_values(told: Sequence[str]) -> dict[str, object]:
    """What `--set` says.

    Example:
        >>> read_values(["steps=3000", "rate=1e-3"])
        {'steps': 3000, 'rate': 0.001}
    """
    return {name: json.loads(value) for name, value in (one.split("=", 1) for one in told)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="all if none is given and no --page")
    parser.add_argument("--scale", default="smoke", choices=SCALES)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--keep", type=Path, default=None, help="folder to keep and resume audits")
    parser.add_argument("--out", type=Path, default=None, help="folder for results and pictures")
    parser.add_argument("--row", action="append", default=[], help="make only rows of these labels")
    parser.add_argument("--column", action="append", default=[], help="likewise, columns")
    parser.add_argument("--set", action="append", default=[], help="a value of it, as steps=3000")
    parser.add_argument("--page", action="store_true", help="write the pages of results")
    options = parser.parse_args()
    device = pick_device(options.device)
    values = read_values(options.set)
    failed = 0
    for name in options.names or ([] if options.page else names()):
        chosen = tuple(options.row), tuple(options.column)
        failed |= record(name, options.scale, device, options.keep, options.out, *chosen, values)
    if options.page:
        for path, written in pages().items():
            path.write_text(written, encoding="utf-8")
            print(path)
    return failed


if __name__ == "__main__":
    sys.exit(main())
