"""Check an installed Seepage as its user meets it: it starts, refuses a bad command, and audits.

    python scripts/check_install.py

Runs the `seepage` that lies beside this Python, in an empty folder. `make fresh` calls it in an
environment that has the newest of everything but torch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

PROGRAM = Path(sys.executable).with_name("seepage")
SMALL = [
    *("--model", "mlp", "--data", "digits", "--people", "1", "--steps", "20"),
    *("--device", "cpu", "--plain", "--out", "audit"),
]


def run(folder: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the program in a folder; raise `SystemExit` if it ends otherwise than it should."""
    print("$ seepage", *arguments, flush=True)
    done = subprocess.run(
        [PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    require(done.returncode == code, f"expected exit code {code}, got {done.returncode}", done)
    return done


def require(holds: bool, expected: str, done: subprocess.CompletedProcess[str]) -> None:
    """Raise `SystemExit` with what was printed if something does not hold."""
    if not holds:
        raise SystemExit(f"{expected}:\n{done.stdout}{done.stderr}")


def check(folder: Path) -> None:
    """Check each command."""
    shown = run(folder, "--version")
    require(shown.stdout == f"seepage {version('seepage')}\n", "expected the version", shown)
    shown = run(folder, "--help")
    require("audit" in shown.stdout, "expected the help", shown)
    for wrong in (["audit", "--stepz", "9"], ["adit"], ["report"], ["audit", "--people", "few"]):
        refused = run(folder, *wrong, code=2)
        told = refused.stderr.splitlines()
        is_sentence = len(told) == 1 and told[0].startswith("seepage: ") and not refused.stdout
        require(is_sentence, "expected one sentence on standard error", refused)
    audited = run(folder, "audit", *SMALL)
    page = folder / "audit" / "report.html"
    require(page.is_file() and not audited.stderr, "expected a report and no warnings", audited)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        check(Path(place))
    print("the installed program works")
