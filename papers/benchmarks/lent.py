"""As many tables as fit in the minutes for which a GPU is lent, cheapest first.

    python -m benchmarks.lent --limit 560 --out FOLDER [JOB ...]      on the machine with the GPU
    python -m benchmarks.lent --unpack FOLDER/records.json            where the results are kept

A job is a table, or in quotes a part of one: "001-table7 --row 'B = 4' --set people4=24", as
`benchmarks.papers` takes it. Each is a process of its own, a few of them side by side, since one of
small networks leaves a large GPU idle. When the time is up no job begins, and each that runs is
asked to end with the cells it has; with `--keep` the next call goes on with it, from `keep.tar.gz`
if that is all that came back. All lies in `records.json`, with its pictures in `pictures.zip`. Jobs
in `--done FILE` are not made again. Parts are unpacked beside the records, for
`benchmarks.assemble`. Needs SEEPAGE_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_page import FOLDER, PICTURES
from seepage.core._digest import digest
from seepage_papers.reading import names

# What a GPU can do in minutes, cheapest first, and what decides most claims before the rest.
ORDER = (
    "002-fig4",
    "002-fig7",
    "002-fig6",
    "002-fig9",
    "002-fig8",
    "002-fig3",
    "002-fig5",
    "002-table6f",
    "000-fig8",
    "001-table2",
    "004-fig3",
    "004-fig1",
    "004-fig2",
    "001-settings",
    "003-fig4",
    "003-fig5",
    "003-fig2",
    "003-table1",
    "000-fig5",
    "000-fig4",
    "003-fig9",
    "001-table6",
    "001-fig2",
    "000-table5",
    "000-table5a",
    "001-table3",
    "003-fig7",
    "002-fig2",
    "001-fig4",
    "001-table7",
    "001-table8",
    "001-table5",
    "003-fig4d",
    "003-fig10",
    "001-fig3",
)
RECORDS, SHEETS, KEPT = "records.json", "pictures.zip", "keep.tar.gz"
POLL = 0.5
# Seconds in which a table that is asked to end writes what it has.
LAST_WORDS = 60.0


@dataclass(frozen=True, eq=False)
class Running:
    """A job that is being done, and where its records go."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    began: float


def make(options: argparse.Namespace) -> int:
    """Do jobs until they are done or the time is up."""
    ends = time.monotonic() + options.limit
    done = json.loads(options.done.read_text(encoding="utf-8")) if options.done else {}
    todo = [name for name in options.names or ORDER if name not in done]
    options.out.mkdir(parents=True, exist_ok=True)
    running: list[Running] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        while (todo or running) and time.monotonic() < ends:
            while todo and len(running) < options.side:
                running.append(_begin(todo.pop(0), place, options))
            _wait(running, done, place, options)
        for one in running:
            one.process.terminate()
        while running and time.monotonic() < ends + LAST_WORDS:
            _wait(running, done, place, options)
        for one in running:
            one.process.kill()
            one.process.wait()
    if options.keep is not None and options.keep.is_dir():
        with tarfile.open(options.out / KEPT, "w:gz") as packed:
            packed.add(options.keep, ".")
    print(f"{len(done)} done; left: {' '.join([*(one.name for one in running), *todo]) or 'none'}")
    return 0


def _wait(
    running: list[Running], done: dict[str, object], place: Path, options: argparse.Namespace
) -> None:
    """Take what has ended out of what runs, and write its record."""
    time.sleep(POLL)
    for one in [one for one in running if one.process.poll() is not None]:
        running.remove(one)
        print(f"{one.name}: {_word(one)} in {time.monotonic() - one.began:.0f} s", flush=True)
        done |= dict(_collected(one))
        _write(done, place, options.out)


def _begin(name: str, place: Path, options: argparse.Namespace) -> Running:
    # Parts of one table have audits of their own.
    own = re.sub(r"[^\w.=-]+", "_", name)
    command = [sys.executable, "-m", "benchmarks.papers", *shlex.split(name)]
    command += ["--scale", options.scale, "--device", options.device, "--out", str(place / own)]
    command += ["--keep", str(options.keep / own)] if options.keep else []
    log = (options.out / "log.txt").open("ab")
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "2")}
    process = subprocess.Popen(
        command, stdout=log, stderr=log, env={**os.environ, **threads}, cwd=Path.cwd()
    )
    return Running(name, place / own, process, time.monotonic())


def _word(one: Running) -> str:
    return "made" if one.process.returncode == 0 else f"exit code {one.process.returncode}"


def _collected(one: Running) -> Iterator[tuple[str, object]]:
    for path in one.folder.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        if any(line["seepage"] is not None for line in record["lines"]):
            yield one.name, record


def _write(done: dict[str, object], place: Path, out: Path) -> None:
    """All at once and small, so that a machine may take few files back."""
    partial = out / f"{RECORDS}.partial"
    partial.write_text(json.dumps(done, separators=(",", ":")), encoding="utf-8")
    partial.replace(out / RECORDS)
    with zipfile.ZipFile(out / SHEETS, "w") as sheets:
        for path in sorted(place.glob("*/*.png")):
            sheets.write(path, path.relative_to(place))


def unpack(path: Path) -> None:
    """Put records and pictures where the page reads them, and parts beside what came back."""
    for job, record in json.loads(path.read_text(encoding="utf-8")).items():
        table, *part = shlex.split(job)
        if table not in names():
            raise SystemExit(f"expected names of tables in {path.name}, got {table!r}")
        file = f"{table}-{record['scale']}.json"
        kept = path.with_name(f"{digest(job)[:8]}-{file}") if part else FOLDER / file
        kept.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        print(f"{kept.name}: {job}")
    sheets = path.with_name(SHEETS)
    if sheets.is_file():
        with zipfile.ZipFile(sheets) as archive:
            for name in archive.namelist():
                job, _, sheet = name.rpartition("/")
                if job in names():
                    (PICTURES / sheet).write_bytes(archive.read(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="jobs instead of all tables, in this order")
    parser.add_argument("--limit", type=float, default=560.0, help="seconds")
    parser.add_argument("--out", type=Path, default=Path("build/lent"), help="folder")
    parser.add_argument("--done", type=Path, default=None, help="records.json of earlier calls")
    parser.add_argument("--keep", type=Path, default=None, help="folder of audits to go on with")
    parser.add_argument("--side", type=int, default=4, help="jobs at a time")
    parser.add_argument("--scale", default="small", choices=["smoke", "small", "paper"])
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--unpack", type=Path, default=None, help="records.json to keep")
    options = parser.parse_args()
    if options.unpack is not None:
        unpack(options.unpack)
        return 0
    return make(options)


if __name__ == "__main__":
    sys.exit(main())
