"""What a long run found, as a file: with its command, the commit and the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch


@cache
def find_commit() -> str:
    """The commit of this tree, marked if the tree was changed; asked before the run is long."""
    asked = ("git", "describe", "--always", "--dirty", "--exclude=*")
    found = subprocess.run(
        asked, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else "unreleased"


def write_record(out: Path, content: dict[str, object]) -> None:
    """Write what a run found."""
    module = sys.modules["__main__"].__spec__
    words = sys.argv[1:]
    if "--out" in words:  # a path of this machine
        del words[(at := words.index("--out")) : at + 2]
    origin = {
        "command": " ".join(["python -m", module.name if module else sys.argv[0], *words]),
        "commit": find_commit(),
        "machine": {
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "architecture": platform.machine(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(origin | content, indent=1) + "\n", encoding="utf-8")
