"""Kill an audit again and again, resume it each time: `python -m benchmarks.kill_test`.

Sixty cases, twenty kills at random moments, each run a process of its own. In the end the records
must equal those of an undisturbed run, and no case that was finished may have run again.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.provenance import save
from seepage.audit import Record, load_audit

SPEC = """
title = "Kill test"
metrics = ["psnr", "exact"]
seeds = [0, 1, 2]
[[scenario]]
data = { name = "digits", people = 5 }
models = { name = "mlp", hidden = [32] }
threats = { knows_labels = true }
attacks = [
  { name = "inverting_gradients", steps = 40, restarts = 1 },
  { name = "inverting_gradients", steps = 80, restarts = 1 },
]
defenses = [[], { name = "AddGaussian", std = 0.001 }]
"""

# The command, noting every case as it begins.
COUNTED = """
import sys
from seepage.audit import execution
from seepage.cli import main

run = execution.run_case

def counted(case):
    with open("begun", "a") as begun:
        begun.write(case.id + "\\n")
    return run(case)

execution.run_case = counted
main()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "spec.toml").write_text(SPEC)
        result = torture(place, options.kills, random.Random(options.seed))
    print(save("kill_test", "cpu", result))


def torture(place: Path, kills: int, moments: random.Random) -> dict[str, object]:
    began = time.perf_counter()
    start(place, "undisturbed", counted=False).wait()
    undisturbed = time.perf_counter() - began
    truths = [timeless(record) for record in load_audit(place / "undisturbed").records]

    finished: set[str] = set()
    again, done_at_kill = 0, []
    for _ in range(kills):
        before = len(begun(place))
        process = start(place, "out")
        # A few cases further, so that all kills fall into the audit; then at any moment.
        further = before + moments.randint(1, max(1, len(truths) // kills))
        while len(begun(place)) < further and process.poll() is None:
            time.sleep(0.002)
        time.sleep(moments.random() * undisturbed / len(truths))
        process.kill()
        process.wait()
        again += len(finished.intersection(begun(place)[before:]))
        finished = {record.case for record in load_audit(place / "out").records}
        done_at_kill.append(len(finished))
        print(f"killed at {len(finished)} of {len(truths)} cases", flush=True)
    before = len(begun(place))
    code = start(place, "out").wait()
    again += len(finished.intersection(begun(place)[before:]))
    read = load_audit(place / "out")
    same = [timeless(record) for record in read.records] == truths
    amid = sum(count < len(truths) for count in done_at_kill)
    assert code == 0, f"the last run ended with {code}"
    assert same, "the records differ from those of an undisturbed run"
    assert again == 0, f"{again} finished cases ran again"
    return {
        "cases": len(truths),
        "kills": kills,
        "kills_amid_the_audit": amid,
        "done_at_kill": done_at_kill,
        "begun": len(begun(place)),
        "finished_cases_run_again": again,
        "records_equal_an_undisturbed_run": same,
        "damaged_artifacts": len(read.damaged),
        "seconds_undisturbed": round(undisturbed, 1),
    }


def start(place: Path, out: str, *, counted: bool = True) -> subprocess.Popen[bytes]:
    code = COUNTED if counted else "from seepage.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "audit", "spec.toml", "--out", out, "--resume", "--quiet"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        stdout=subprocess.DEVNULL,
    )


def begun(place: Path) -> list[str]:
    path = place / "begun"
    return path.read_text().split() if path.exists() else []


def timeless(record: Record) -> Record:
    return replace(record, effort={k: v for k, v in record.effort.items() if k != "seconds"})


if __name__ == "__main__":
    main()
