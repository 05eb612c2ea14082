"""Every table and figure at its smallest, two at a time: `python -m benchmarks.smoke [NAME ...]`.

Each name is a process of its own, so that one that fails stops no other; what went wrong is told
at the end, and by the exit code. Needs SEEPAGE_DATA.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from benchmarks.provenance import commit
from benchmarks.results_page import FOLDER
from seepage_papers.cost import cost
from seepage_papers.reading import load_table, names

BUILD = Path(__file__).parents[2] / "build" / "smoke"


@dataclass(frozen=True)
class Made:
    """What came of one name.

    Args:
        name: Of the table or figure.
        code: Of its process.
        seconds: It took.
        said: The last lines that it wrote.
    """

    name: str
    code: int
    seconds: float
    said: str


def make(name: str, out: Path | None) -> Made:
    """Make one table on one core."""
    asked = ["--scale", "smoke", "--device", "cpu"]
    folder = [] if out is None else ["--out", str(out)]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.papers", name, *asked, *folder],
        cwd=Path(__file__).parents[1],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            # Asked before the first result is written, which would mark the tree as changed.
            "SEEPAGE_COMMIT": commit(),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return Made(name, done.returncode, time.perf_counter() - began, "\n".join(said[-3:]))


def longest_first(wanted: Sequence[str]) -> list[str]:
    """The names with the most to do first, so that no core ends up waiting for one of them."""

    def todo(name: str) -> tuple[int, int]:
        table = load_table(name)
        counted = cost(table, "smoke")
        # What is counted rather than attacked has cells all the same.
        return max(counted.cases, len(table.cells("smoke"))) + counted.epochs, counted.steps

    return sorted(wanted, key=todo, reverse=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="all if none is given")
    parser.add_argument("--at-once", type=int, default=2, help="processes")
    parser.add_argument("--record", action="store_true", help=f"keep results in {FOLDER.name}/")
    options = parser.parse_args()
    wanted = longest_first(options.names or names())
    out = None if options.record else BUILD
    began = time.perf_counter()
    failed: list[Made] = []
    with ThreadPoolExecutor(options.at_once) as pool:
        running = [pool.submit(make, name, out) for name in wanted]
        for number, future in enumerate(as_completed(running), 1):
            made = future.result()
            word = "failed" if made.code else "made"
            print(
                f"{number:2} of {len(wanted)}  {made.name:12} {word} in {made.seconds:.0f} s",
                flush=True,
            )
            failed += [made] if made.code else []
    for made in failed:
        print(f"\n{made.name} failed with exit code {made.code}:\n{made.said}")
    taken = time.perf_counter() - began
    print(f"\n{len(wanted) - len(failed)} of {len(wanted)} made in {taken:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
