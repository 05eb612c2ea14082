"""Where a benchmark ran, kept with every result."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@cache
def commit() -> str:
    """The commit that ran, marked if the tree had changed, or what SEEPAGE_COMMIT says.

    Asked once, before the first result: written into the tree, a result would change it.
    """
    named = os.environ.get("SEEPAGE_COMMIT")
    if named:
        return named
    asked = ("git", "describe", "--always", "--dirty", "--exclude=*")
    found = subprocess.run(asked, cwd=RESULTS.parent, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else "unreleased"


def machine(device: str) -> dict[str, object]:
    """Enough to judge the numbers by; nothing that names the machine."""
    on_card = device.startswith("cuda")
    return {
        "device": torch.cuda.get_device_name() if on_card else "cpu",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if on_card else None,
    }


def origin(device: str, name: str = "") -> dict[str, object]:
    """The command that runs, its commit and the machine."""
    module = getattr(sys.modules["__main__"].__spec__, "name", name)
    return {
        "command": " ".join(["python -m", module, *_without_folder(sys.argv[1:])]),
        "commit": commit(),
        "machine": machine(device),
    }


def save(name: str, device: str, content: dict[str, object], out: Path | None = None) -> Path:
    """Write a result with its command, commit and machine."""
    result = origin(device, name) | content
    path = (out or RESULTS) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return path


def continue_rows(name: str, device: str, out: Path | None = None) -> list[dict[str, object]]:
    """Rows of the same command at the same commit, if it was ended before its last one."""
    path = (out or RESULTS) / f"{name}.json"
    if not path.exists():
        return []
    before, now = json.loads(path.read_text(encoding="utf-8")), origin(device, name)
    same = all(before[part] == now[part] for part in ("command", "commit"))
    return list(before["rows"]) if same else []


def parse_options(purpose: str | None, **defaults: object) -> argparse.Namespace:
    """Read a benchmark's options: `--out`, and one for each default, whose type it has.

    A tuple holds the choices, the default first.
    """
    parser = argparse.ArgumentParser(description=purpose)
    for name, default in defaults.items():
        choices = default if isinstance(default, tuple) else None
        first = default if choices is None else choices[0]
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=type(first), default=first, choices=choices)
    parser.add_argument("--out", type=Path, help="folder of the result")
    return parser.parse_args()


def record(name: str, purpose: str | None, measure: Callable[[int], dict[str, object]]) -> None:
    """Be the command of a benchmark on one core: measure with the given seed, and save."""
    options = parse_options(purpose, seed=0)
    torch.set_num_threads(1)
    commit()
    print(save(name, "cpu", measure(options.seed), options.out))


# Options whose value is a path of one machine; the last take several.
_FOLDERS, _SEVERAL = ("--out", "--keep", "--sheets"), ("--sources", "--audits")


def _without_folder(arguments: list[str]) -> list[str]:
    """The arguments less `--out FOLDER` and its like."""
    kept: list[str] = []
    skipping = 0.0
    for argument in arguments:
        if argument.startswith("--"):
            skipping = 0.0
        if argument in _FOLDERS:
            skipping = 1.0
        elif argument in _SEVERAL:
            skipping = float("inf")
        elif skipping:
            skipping -= 1
        else:
            kept.append(argument)
    return kept
