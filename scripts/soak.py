"""Run whole audits in one process for a long time, and see whether memory and open files grow.

    python -m scripts.soak --minutes 60

Each round begins an audit, resumes it, verifies it and writes its page. After a warm-up, a quarter
of the time, the rounds are put into twenty blocks. The slope over the means of these blocks has an
interval, from which follows what a day would add.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scripts.chaos import Spec, write_spec
from scripts.run_record import find_commit, write_record

import seepage as sp
from seepage.audit import load_audit
from seepage.audit._folder import find_damage
from seepage.cli._report_command import save_page

BLOCKS = 20
DAY = 86400


def measure(spec: Spec, place: Path, seconds: float) -> np.ndarray:
    """Run audits; return rows of seconds, kilobytes in memory and open files."""
    seen: list[tuple[float, float, float]] = []
    began = told = time.monotonic()
    while (spent := time.monotonic() - began) < seconds or len(seen) < 2 * BLOCKS:
        out = place / "soak"
        for _ in range(2):
            sp.audit.run(spec, out, device="cpu", resume=True)
        if damage := find_damage(out):
            raise SystemExit(f"an audit that nobody disturbed is damaged: {damage[0]}")
        save_page(load_audit(out))
        shutil.rmtree(out)
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no object per entry
        seen.append((spent, pages * resource.getpagesize() / 1024, files))
        if time.monotonic() > told + 60:
            told = time.monotonic()
            print(f"  {spent:.0f} s: {len(seen)} audits, {seen[-1][1]:.0f} kB", flush=True)
    return np.array(seen)


def fit_slope(seconds: np.ndarray, values: np.ndarray) -> tuple[float, float, float]:
    """Fit a line through block means; return its slope per second and the 95 % interval.

    Example:
        >>> slope, low, high = fit_slope(np.arange(100.0), 2 * np.arange(100.0))
        >>> round(slope, 6), round(low, 6), round(high, 6)
        (2.0, 2.0, 2.0)
    """
    from scipy.stats import linregress, t

    blocks = min(BLOCKS, len(seconds))
    x = np.array([part.mean() for part in np.array_split(seconds, blocks)])
    y = np.array([part.mean() for part in np.array_split(values, blocks)])
    fitted = linregress(x, y)
    slope, margin = float(fitted.slope), float(t.ppf(0.975, blocks - 2) * fitted.stderr)
    return slope, slope - margin, slope + margin


def main() -> None:
    """Measure for some minutes, and print the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="write what was measured to this file as well")
    options = parser.parse_args()
    torch.set_num_threads(1)
    find_commit()
    with tempfile.TemporaryDirectory(prefix="seepage-soak-") as folder:
        seen = measure(write_spec(Path(folder)), Path(folder), 60 * options.minutes)
    late = seen[seen[:, 0] >= seen[-1, 0] / 4]
    kilobytes = fit_slope(late[:, 0], late[:, 1])
    an_audit = len(late) / float(late[-1, 0] - late[0, 0])
    found: dict[str, object] = {
        "audits": len(seen),
        "seconds": round(seen[-1, 0]),
        "warm_up_audits": len(seen) - len(late),
        "memory_kb": [round(late[0, 1]), round(late[-1, 1])],
        "kb_an_audit": [round(value / an_audit, 3) for value in kilobytes],
        "mb_in_a_day": [round(value * DAY / 1024, 1) for value in kilobytes],
        "open_files": [int(late[:, 2].min()), int(late[:, 2].max())],
        "block_means_kb": [round(part.mean()) for part in np.array_split(late[:, 1], BLOCKS)],
    }
    for name, value in found.items():
        print(f"  {name:18}{value}")
    if options.out is not None:
        write_record(options.out, found)


if __name__ == "__main__":
    main()
