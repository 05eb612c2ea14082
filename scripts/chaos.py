"""Break audits in every way that can be made here, and count what is lost.

    python -m scripts.chaos --minutes 5 --executor serial

A small audit is begun, ended by a fault, gone on with, ended again, and gone on with to the end.
Faults: a kill at a system call that writes, in turn each of them; a kill at a random moment; a disk
that takes no more; a clock that jumps; a byte of an artifact or checkpoint that flips; a lost
worker. In the end the records must be those of an audit that nobody disturbed, and whatever was
recorded before a fault must still be there.

The same process then runs whole audits for a tenth of the time, to see that memory and open files
do not grow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from scripts.write_calls import Tracer, run_to_the_end

import seepage as sp
from seepage.audit import Record, load_audit
from seepage.audit.verify import find_damage
from seepage.core.errors import SeepageError

REFUSED = 2
Spec = dict[str, object]
OPTIONS = {"serial": {}, "workers": {"workers": 2}, "ray": {"executor": "ray", "workers": 2}}


def write_spec(place: Path) -> Spec:
    """Write data for a small audit, and return its spec: four cases in a fifth of a second."""
    drawn = np.random.default_rng(0)
    path = place / "data.npz"
    np.savez(path, inputs=drawn.random((12, 1, 8), dtype=np.float32), labels=np.arange(12) % 3)
    return {
        "title": "Chaos",
        "metrics": ["psnr"],
        "controls": False,
        "scenario": {
            "data": {"name": f"npz:{path}", "people": 2, "batch_size": 1},
            "models": {"name": "mlp", "hidden": [8], "classes": 3},
            "threats": {"knows_labels": True},
            "attacks": [
                {"name": "analytic_fc"},
                {"name": "inverting_gradients", "steps": 3, "restarts": 1},
            ],
        },
    }


@dataclass
class Tally:
    """What faults did.

    Args:
        faults: How many of each kind.
        lost: Records that were there before a fault and not after it.
        doubled: Cases with more than one record.
        unusable: Folders that could not be gone on with to the end.
        different: Folders whose records differ from those of an undisturbed audit.
        damaged: Folders with an artifact missing or altered in the end.
        tracebacks: Runs that ended without a sentence.
        audits: Audits that were brought to their end.
    """

    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    unusable: int = 0
    different: int = 0
    damaged: int = 0
    tracebacks: int = 0
    audits: int = 0
    kept: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        wrong = self.lost + self.doubled + self.unusable + self.different
        return wrong + self.damaged + self.tracebacks == 0


def go_on(
    spec: Spec, out: Path, executor: str, *, step: float = 0.0, room: int | None = None
) -> int:
    """Begin an audit or go on with it; the exit code says how it ended.

    Args:
        spec: Of the audit.
        out: Its folder.
        executor: A key of `OPTIONS`.
        step: Seconds by which the clock is off.
        room: Bytes that a file may have; beyond that, writing fails as on a full disk.
    """
    if step:
        clock = time.time
        time.time = lambda: clock() + step
    if room is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    said = os.open(out.with_suffix(".said"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        sp.audit.run(spec, out, device="cpu", resume=True, **OPTIONS[executor])
    except SeepageError as error:
        print(" ".join(str(error).splitlines()), file=sys.stderr, flush=True)
        return REFUSED
    return 0


def read(out: Path) -> dict[str, Record]:
    """The records of a folder, by case; none if the audit was not begun."""
    if not (out / "audit.sqlite").exists():
        return {}
    return {record.case: timeless(record) for record in load_audit(out).records}


def timeless(record: Record) -> Record:
    """A record without the times that differ from run to run."""
    return replace(record, effort={k: v for k, v in record.effort.items() if k != "seconds"})


class Chaos:
    """Audits, and the faults that they meet.

    Args:
        place: Where audits are written.
        executor: A key of `OPTIONS`.
        seed: Of the faults.
    """

    def __init__(self, place: Path, executor: str, seed: int) -> None:
        """Run an audit that nobody disturbs."""
        self.place, self.executor, self.random = place, executor, random.Random(seed)
        self.tally, self.point, self.points = Tally(), 0, set[int]()
        self.spec, whole = write_spec(place), place / "whole"
        # In this process first, so that those forked from it have nothing left to import.
        sp.audit.run(self.spec, place / "first", device="cpu")
        began = time.monotonic()
        code, self.writes = Tracer(lambda: go_on(self.spec, whole, executor)).run()
        self.seconds = time.monotonic() - began
        if code:
            raise SystemExit(f"the undisturbed audit ended with {code}: {said(whole)}")
        self.truth = read(whole)
        self.largest = max(p.stat().st_size for p in whole.rglob("*") if p.is_file())
        self.faults: list[Callable[[Path], int]] = [
            *([self.kill_at_write] * 12),
            *([self.kill_at_moment] * 4),
            self.fill_disk,
            self.step_clock,
            self.flip_byte,
        ]
        if executor != "serial":
            self.faults += [self.lose_worker] * 4

    def run_audit(self, number: int) -> None:
        """Run one audit through two faults to its end, and look at what is left."""
        out = self.place / f"audit{number}"
        before: dict[str, Record] = {}
        for _ in range(2):
            fault = self.random.choice(self.faults)
            self.tally.faults[fault.__name__] += 1
            code = fault(out)
            if code not in (0, REFUSED, -signal.SIGKILL):
                self.note("tracebacks", out, f"{fault.__name__} ended with {code}")
            before = self.check_kept(out, before)
        code = self.run_child(lambda: go_on(self.spec, out, self.executor))
        if code:
            self.note("unusable", out, f"ended with {code}")
            return
        self.tally.audits += 1
        if self.check_kept(out, before) != self.truth:
            self.note("different", out, "records differ")
        elif find_damage(out):
            self.note("damaged", out, find_damage(out)[0])
        else:
            shutil.rmtree(out)

    def check_kept(self, out: Path, before: dict[str, Record]) -> dict[str, Record]:
        """Count what was recorded before and is not any more; return what is recorded now."""
        try:
            now = read(out)
        except SeepageError as error:
            self.note("unusable", out, str(error))
            return before
        for case, record in before.items():
            if now.get(case) != record:
                self.note("lost", out, f"{record} became {now.get(case)}")
        if (out / "audit.sqlite").exists():
            self.tally.doubled += len(load_audit(out).records) - len(now)
        return now

    def note(self, what: str, out: Path, words: str) -> None:
        """Count something that went wrong, and keep its folder."""
        setattr(self.tally, what, getattr(self.tally, what) + 1)
        self.tally.kept.append(f"{what}: {out.name}: {words}: {said(out)}")

    def run_child(self, body: Callable[[], int]) -> int:
        """Run a function in a process of its own, to its end."""
        pid = os.fork()
        if not pid:
            run_to_the_end(body)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def kill_at_write(self, out: Path) -> int:
        """Kill at the next write point in turn if the audit is new, else at a random one."""
        if out.exists():
            point = self.random.randint(1, self.writes)
        else:
            self.point = point = self.point % self.writes + 1
            self.points.add(point)
        return Tracer(lambda: go_on(self.spec, out, self.executor)).run(kill_at=point)[0]

    def kill_at_moment(self, out: Path) -> int:
        """Kill at a random moment."""
        pid = os.fork()
        if not pid:
            run_to_the_end(lambda: go_on(self.spec, out, self.executor))
        time.sleep(self.random.random() * self.seconds)
        os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def fill_disk(self, out: Path) -> int:
        """Let no file grow beyond a random size."""
        room = self.random.randint(0, self.largest)
        return self.run_child(lambda: go_on(self.spec, out, self.executor, room=room))

    def step_clock(self, out: Path) -> int:
        """Put the clock forward or back by up to a year, and kill at a random write point."""
        step = self.random.uniform(-1, 1) * 365 * 86400
        point = self.random.randint(1, self.writes)
        return Tracer(lambda: go_on(self.spec, out, self.executor, step=step)).run(kill_at=point)[0]

    def flip_byte(self, out: Path) -> int:
        """Kill at a write point, then change a byte of an artifact or a checkpoint."""
        code = self.kill_at_write(out)
        held = [p for part in ("artifacts", "checkpoints") for p in (out / part).glob("*")]
        files = sorted(p for p in held if p.is_file() and p.stat().st_size)
        if files:
            path = self.random.choice(files)
            data = bytearray(path.read_bytes())
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            path.write_bytes(data)
        return code

    def lose_worker(self, out: Path) -> int:
        """Kill a process that the audit has started, at a random moment."""
        pid = os.fork()
        if not pid:
            run_to_the_end(lambda: go_on(self.spec, out, self.executor))
        time.sleep(self.random.random() * self.seconds)
        if started := descendants(pid):
            os.kill(self.random.choice(started), signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def said(out: Path) -> str:
    """The last line that a run printed."""
    path = out.with_suffix(".said")
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1][:200] if lines else "nothing"


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [one for child in map(int, children) for one in (child, *descendants(child))]


def soak(spec: Spec, place: Path, seconds: float) -> list[tuple[float, int, int, int]]:
    """Run whole audits in this process; list time, audits, kilobytes in memory and open files."""
    seen: list[tuple[float, int, int, int]] = []
    began, audits = time.monotonic(), 0
    while (spent := time.monotonic() - began) < seconds or audits < 20:
        out = place / "soak"
        for _ in range(2):
            sp.audit.run(spec, out, device="cpu", resume=True)
        audits += 1
        if find_damage(out):
            raise SystemExit(f"an audit that nobody disturbed is damaged: {find_damage(out)[0]}")
        shutil.rmtree(out)
        memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        seen.append((spent, audits, memory // 1024, len(list(Path("/proc/self/fd").iterdir()))))
    return seen


def print_soak(seen: list[tuple[float, int, int, int]]) -> None:
    """Compare the first audits after a warm-up with the last."""
    start, end = seen[len(seen) // 4], seen[-1]
    audits = max(1, end[1] - start[1])
    growth = (end[2] - start[2]) / audits
    a_day = growth * audits / max(1.0, end[0] - start[0]) * 86400 / 1024
    print(f"soak: {end[1]} audits in {end[0]:.0f} s, in one process")
    print(f"  memory      {start[2]} kB after {start[1]}, {end[2]} kB in the end")
    print(f"              {growth:+.2f} kB an audit, {a_day:+.0f} MB in 24 hours at this rate")
    print(f"  open files  {start[3]} after {start[1]}, {end[3]} in the end")


def _write_counts(out: Path, options: argparse.Namespace, chaos: Chaos) -> None:
    """Write what was done, on which commit, and what it did."""
    asked = ("git", "describe", "--always", "--dirty", "--exclude=*")
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    told = {
        "command": f"python -m scripts.chaos --minutes {options.minutes:g} "
        f"--executor {options.executor} --seed {options.seed}",
        "commit": commit,
        "machine": {"cores": os.cpu_count(), "architecture": platform.machine()},
        "writes": chaos.writes,
        "points": len(chaos.points),
        **{name: value for name, value in vars(chaos.tally).items() if name != "kept"},
    }
    out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run faults for some minutes, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--audits", type=int, help="stop after so many audits, if that is sooner")
    parser.add_argument("--executor", choices=list(OPTIONS), default="serial")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--soak", type=float, default=0.1, help="share of the time for the soak")
    parser.add_argument("--out", type=Path, help="write the counts to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    place = Path(tempfile.mkdtemp(prefix="seepage-chaos-"))
    chaos = Chaos(place, options.executor, options.seed)
    print(f"{options.executor}: one audit writes {chaos.writes} times in {chaos.seconds:.1f} s")
    ends = time.monotonic() + 60 * options.minutes * (1 - options.soak)
    number = 0
    while time.monotonic() < ends and number != options.audits:
        chaos.run_audit(number := number + 1)
    tally = chaos.tally
    for name, count in sorted(tally.faults.items()):
        print(f"  {name.replace('_', ' '):22}{count}")
    print(f"  audits brought to their end  {tally.audits}")
    print(f"  write points killed at       {len(chaos.points)} of {chaos.writes}, in new audits")
    for name in ("lost", "doubled", "unusable", "different", "damaged", "tracebacks"):
        print(f"  {name:22}{getattr(tally, name)}")
    print("\n".join(f"  kept in {place}: {line}" for line in tally.kept[:20]))
    if options.out is not None:
        _write_counts(options.out, options, chaos)
    if options.soak:
        print_soak(soak(chaos.spec, place, 60 * options.minutes * options.soak))
    if tally.clean:
        shutil.rmtree(place)
    raise SystemExit(0 if tally.clean else 1)


if __name__ == "__main__":
    main()
