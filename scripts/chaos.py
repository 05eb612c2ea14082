"""Break audits in every way that can be made here, and count what is lost.

    python -m scripts.chaos --executor serial --kills 1000 --minutes 30

A small audit is begun, ended by one to four faults (eight on Ray), gone on with after each, and at
last gone on with to the end. Faults: a kill at a system call that writes, in turn each of them; a
kill at a random moment; a full disk; a limit on the size of files; a clock that jumps; a byte of a
case or checkpoint that flips; a lost worker or raylet. In the end the records must be those of
an audit that nobody disturbed, and whatever was recorded before a fault must still be there.

Audits run in forks of this process, which has imported everything. Their workers are forked too;
with `--spawn` they are new interpreters, as for users, which takes seconds each. A cluster of Ray
stays up over many audits; its workers are forks that import Ray alone.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from scripts.run_record import find_commit, write_record
from scripts.warm_ray import WarmRay, adopt_orphans, find_started
from scripts.write_calls import Tracer, run_to_the_end

import seepage as sp
from seepage.audit import Record, load_audit
from seepage.audit import _workers as workers
from seepage.audit._folder import find_damage
from seepage.core.errors import SeepageError

REFUSED = 2
Spec = dict[str, object]
OPTIONS = {"serial": {}, "workers": {"workers": 2}, "ray": {"executor": "ray", "workers": 2}}
WRONG = ("lost", "doubled", "unusable", "different", "damaged", "hangs", "tracebacks")


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
                {"name": "inverting_gradients", "steps": 2, "restarts": 1},
            ],
        },
    }


@dataclass
class Tally:
    """What faults did.

    Args:
        faults: How many of each kind fell; a kill after the end of a run does not count.
        lost: Records that were there before a fault and not after it.
        doubled: Cases with more than one record.
        unusable: Folders that could not be gone on with to the end.
        different: Folders whose records differ from those of an undisturbed audit.
        damaged: Folders with a file missing or altered in the end.
        hangs: Runs that did not end by themselves.
        tracebacks: Runs that ended without a sentence.
        audits: Audits that were brought to their end.
    """

    faults: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    doubled: int = 0
    unusable: int = 0
    different: int = 0
    damaged: int = 0
    hangs: int = 0
    tracebacks: int = 0
    audits: int = 0
    kept: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        return not any(getattr(self, name) for name in WRONG)


def go_on(
    spec: Spec, out: Path, executor: str, *, step: float = 0.0, room: int | None = None
) -> int:
    """Begin an audit or go on with it; the exit code says how it ended.

    Args:
        spec: Of the audit.
        out: Its folder.
        executor: A key of `OPTIONS`.
        step: Seconds by which the clock is off.
        room: Bytes that a file may have; beyond that, writing fails.
    """
    if step:
        clock = time.time
        time.time = lambda: clock() + step
    if room is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    said = os.open(_find_said(out), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        sp.audit.run(spec, out, device="cpu", resume=True, **OPTIONS[executor])
    except SeepageError as error:
        # What is printed here goes into a file too.
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(" ".join(str(error).splitlines()), file=sys.stderr, flush=True)
        return REFUSED
    return 0


def read(out: Path) -> list[Record]:
    """The records of a folder; none if the audit was not begun."""
    if not (out / "plan.json").exists():
        return []
    return [timeless(record) for record in load_audit(out).records]


def timeless(record: Record) -> Record:
    """A record without the times that differ from run to run."""
    return replace(record, effort={k: v for k, v in record.effort.items() if k != "seconds"})


class Chaos:
    """Audits, and the faults that they meet.

    Args:
        place: Where audits are written.
        executor: A key of `OPTIONS`.
        seed: Of the faults.
        kills: Most kills at write points; a quarter as many fall at random moments.
    """

    def __init__(self, place: Path, executor: str, seed: int, kills: int) -> None:
        """Run an audit that nobody disturbs."""
        # Orphans of a killed audit come to this process, which waits for their end.
        adopt_orphans()
        self.place, self.executor, self.random = place, executor, random.Random(seed)
        self.tally, self.point, self.points = Tally(), 0, set[int]()
        self.wanted = {"kill_at_write": kills, "kill_at_moment": kills // 4}
        self.spec, whole = write_spec(place), place / "whole"
        # In this process first, so that those forked from it have nothing left to import.
        sp.audit.run(self.spec, place / "first", device="cpu")
        # Forks then share the memory of all that was imported.
        gc.collect()
        gc.freeze()
        self.ray = WarmRay(place, 2) if executor == "ray" else None
        began = time.monotonic()
        code, self.writes = self.trace(whole)
        self.seconds = time.monotonic() - began
        if code:
            raise SystemExit(f"the undisturbed audit ended with {code}: {read_said(whole)}")
        self.truth = {record.case: record for record in read(whole)}
        self.largest = max(p.stat().st_size for p in whole.rglob("*") if p.is_file())
        self.faults: list[Callable[[Path], tuple[int, bool]]] = [
            *([self.kill_at_write] * 16),
            *([self.kill_at_moment] * 4),
            *(self.fill_disk, self.limit_files, self.step_clock, self.flip_byte),
        ]
        if executor != "serial":
            self.faults += [self.lose_worker] * 2

    @property
    def is_enough(self) -> bool:
        """Whether as many kills have fallen as were asked for."""
        return all(self.tally.faults[name] >= count for name, count in self.wanted.items())

    def run_audit(self, number: int) -> None:
        """Run one audit through some faults to its end, and look at what is left."""
        out = self.place / f"audit{number}"
        before: dict[str, Record] = {}
        # The end of an audit takes longest on Ray.
        for _ in range(self.random.randint(1, 4 if self.ray is None else 8)):
            fault = self.random.choice(self.faults)
            code, fell = fault(out)
            self._wait_for_orphans()
            self.tally.faults[fault.__name__] += fell
            if code == -signal.SIGALRM:
                self.note("hangs", out, fault.__name__)
            elif code not in (0, REFUSED, -signal.SIGKILL):
                self.note("tracebacks", out, f"{fault.__name__} ended with {code}")
            if self.ray is not None:
                self.ray.mend()
            # A byte that flips costs the record in its file at once; it is made again.
            before = self.check_kept(out, {} if fault == self.flip_byte else before)
        code = self.run_child(lambda: go_on(self.spec, out, self.executor))
        self._wait_for_orphans()
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
            _find_said(out).unlink()

    def check_kept(self, out: Path, before: dict[str, Record]) -> dict[str, Record]:
        """Count what was recorded before and is not any more; return what is recorded now."""
        try:
            found = read(out)
        except SeepageError as error:
            self.note("unusable", out, str(error))
            return before
        now = {record.case: record for record in found}
        self.tally.doubled += len(found) - len(now)
        for case, record in before.items():
            if now.get(case) != record:
                self.note("lost", out, f"{record} became {now.get(case)}")
        return now

    def note(self, what: str, out: Path, words: str) -> None:
        """Count something that went wrong, and keep its folder."""
        setattr(self.tally, what, getattr(self.tally, what) + 1)
        self.tally.kept.append(f"{what}: {out.name}: {words}: {read_said(out)}")

    def trace(
        self, out: Path, *, step: float = 0.0, kill_at: int | None = None, full: int | None = None
    ) -> tuple[int, int]:
        """Go on with an audit, traced; return how it ended and how often it wrote."""
        tracer = Tracer(lambda: go_on(self.spec, out, self.executor, step=step), out)
        return tracer.run(kill_at=kill_at, full_from=full)

    def run_child(self, body: Callable[[], int], *, wait: float | None = None) -> int:
        """Run a function in a process of its own, to its end or for some seconds."""
        pid = os.fork()
        if not pid:
            run_to_the_end(body)
        if wait is not None:
            time.sleep(wait)
            os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _wait_for_orphans(self) -> None:
        ends = time.monotonic() + 60
        kept = set() if self.ray is None else {self.ray.pid, self.ray.nursery}
        while left := set(find_started(os.getpid(), besides=kept)):
            for pid in left:
                if time.monotonic() > ends:
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):  # a child of a child
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.005)

    def kill_at_write(self, out: Path) -> tuple[int, bool]:
        """Kill at the next write point in turn if the audit is new, else at a random one."""
        if out.exists():
            point = self.random.randint(1, self.writes)
        else:
            self.point = point = self.point % self.writes + 1
            self.points.add(point)
        code = self.trace(out, kill_at=point)[0]
        return code, code == -signal.SIGKILL

    def kill_at_moment(self, out: Path) -> tuple[int, bool]:
        """Kill at a random moment."""
        wait = self.random.random() * self.seconds
        code = self.run_child(lambda: go_on(self.spec, out, self.executor), wait=wait)
        return code, code == -signal.SIGKILL

    def fill_disk(self, out: Path) -> tuple[int, bool]:
        """Let every call that needs space fail from a random one on, as on a full disk."""
        point = self.random.randint(1, self.writes)
        code, writes = self.trace(out, full=point)
        return code, writes >= point

    def limit_files(self, out: Path) -> tuple[int, bool]:
        """Let no file grow beyond a random size."""
        room = self.random.randint(0, self.largest)
        return self.run_child(lambda: go_on(self.spec, out, self.executor, room=room)), True

    def step_clock(self, out: Path) -> tuple[int, bool]:
        """Put the clock forward or back by up to a year, and kill at a random write point."""
        step = self.random.uniform(-1, 1) * 365 * 86400
        return self.trace(out, step=step, kill_at=self.random.randint(1, self.writes))[0], True

    def flip_byte(self, out: Path) -> tuple[int, bool]:
        """Kill at a write point, then change a byte of a case, of inputs or of a checkpoint."""
        code, _ = self.kill_at_write(out)
        self._wait_for_orphans()
        held = [p for part in ("cases", "inputs", "checkpoints") for p in (out / part).glob("*")]
        files = sorted(p for p in held if p.is_file() and p.stat().st_size)
        if files:
            path = self.random.choice(files)
            data = bytearray(path.read_bytes())
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
            path.write_bytes(data)
        return code, bool(files)

    def lose_worker(self, out: Path) -> tuple[int, bool]:
        """Kill a process that the audit has started, at a random moment."""
        pid = os.fork()
        if not pid:
            run_to_the_end(lambda: go_on(self.spec, out, self.executor))
        time.sleep(self.random.random() * self.seconds)
        if self.ray is not None:
            fell = self.ray.lose(self.random.randrange(4))
        elif fell := bool(started := find_started(pid)):
            os.kill(self.random.choice(started), signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), fell


def _find_said(out: Path) -> Path:
    return out.with_name(f"{out.name}.said")


def read_said(out: Path) -> str:
    """The last line that a run printed."""
    path = _find_said(out)
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return lines[-1][:200] if lines else "nothing"


def print_table(chaos: Chaos) -> None:
    """Print how many faults fell, and what went wrong."""
    tally = chaos.tally
    for name, count in sorted(tally.faults.items()):
        print(f"  {name.replace('_', ' '):28}{count:>6}")
    print(f"  {'audits brought to their end':28}{tally.audits:>6}")
    print(f"  {'write points of new audits':28}{len(chaos.points):>6} of {chaos.writes}")
    for name in WRONG:
        print(f"  {name:28}{getattr(tally, name):>6}")
    print("\n".join(f"  kept in {chaos.place}: {line}" for line in tally.kept[:20]), flush=True)


def main() -> None:
    """Run faults until enough kills have fallen or the time is over, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="end after the audit at work")
    parser.add_argument(
        "--kills", type=int, default=10**9, help="at write points; a quarter at random moments"
    )
    parser.add_argument("--executor", choices=list(OPTIONS), default="serial")
    parser.add_argument("--spawn", action="store_true", help="start workers as new interpreters")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--out", type=Path, help="write the counts to this file as well")
    options = parser.parse_args()
    began = told = time.monotonic()
    torch.set_num_threads(1)
    find_commit()
    if not options.spawn:
        workers.get_context = lambda _: multiprocessing.get_context("fork")
    place = Path(tempfile.mkdtemp(prefix="seepage-chaos-"))
    chaos = Chaos(place, options.executor, options.seed, options.kills)
    print(f"{options.executor}: {chaos.writes} writes in {chaos.seconds:.1f} s", flush=True)
    number = 0
    while time.monotonic() < began + 60 * options.minutes and not chaos.is_enough:
        chaos.run_audit(number := number + 1)
        if time.monotonic() > told + 30:
            told = time.monotonic()
            print(f"  {told - began:.0f} s: {sum(chaos.tally.faults.values())} faults", flush=True)
    if chaos.ray is not None:
        chaos.ray.end()
    print_table(chaos)
    if options.out is not None:
        counted = {name: value for name, value in vars(chaos.tally).items() if name != "kept"}
        about = {"seconds": round(time.monotonic() - began), "writes": chaos.writes}
        write_record(options.out, about | {"points": len(chaos.points)} | counted)
    if chaos.tally.clean:
        shutil.rmtree(place)
    raise SystemExit(0 if chaos.tally.clean else 1)


if __name__ == "__main__":
    main()
