"""Golden records: numbers that a change of the code's structure must not change.

    python scripts/golden.py record golden.json [--device cuda] [--only contracts]
    python scripts/golden.py compare before.json after.json [--tolerance 1e-6]

Four kinds: the quickstart, the scores of every attack on its scenario of the contract tests, an
audit of a captured update, and three reproduced tables at their smallest. Only public names and
commands are used, so that the same file runs before and after a move. Compare on one machine: two
machines round differently.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

import seepage as sp
from seepage.core import ActiveAttack
from seepage.scoring import METRICS

ROOT = Path(__file__).resolve().parent.parent
TABLES = ("002-fig1", "003-table1", "004-fig1")
# What differs from run to run whatever the code.
UNSTEADY = {"seconds", "device", "id", "started", "finished"}

Numbers = dict[str, Any]


def run_seepage(*words: str) -> None:
    """Run the command line as a user would."""
    command = [sys.executable, "-m", "seepage", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def scores_of(folder: Path) -> list[Numbers]:
    """The scores of every case of an audit, in the order of the audit."""
    out = folder.with_suffix(".json")
    run_seepage("report", str(folder), "--format", "json", "--out", str(out))
    content = json.loads(out.read_text())
    kept = ("people", "scores", "baselines")
    return [{key: record[key] for key in kept} for record in content["records"]]


def quickstart(folder: Path, device: str) -> list[Numbers]:
    """What `seepage audit` without a spec finds."""
    run_seepage("audit", "--out", str(folder / "quick"), "--device", device, "--plain")
    return scores_of(folder / "quick")


def contracts(folder: Path, device: str) -> Numbers:
    """PSNR of every attack on its scenario of the contract tests."""
    path = ROOT / "tests" / "contracts" / "test_contracts.py"
    found = importlib.util.spec_from_file_location("contract_rows", path)
    assert found is not None
    assert found.loader is not None
    rows = importlib.util.module_from_spec(found)
    found.loader.exec_module(rows)
    return {
        name: psnr_on(row[0], row[1], device)
        for name, row in sorted({**rows.ATTACKED, **rows.PLANTED}.items())
    }


def psnr_on(attack: Any, scenario: Numbers, device: str) -> list[float]:  # noqa: ANN401
    """PSNR per person of one attack on one scenario."""
    task, batch = scenario["task"].to(device=device), scenario["batch"].to(device=device)
    if isinstance(attack, ActiveAttack):
        task = attack.plant(task, rng=sp.rng(2))
    threat = scenario.get("threat", sp.Threat(knows_labels=True))
    seen = threat.observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    guess = attack(seen, rng=sp.rng(1))
    low, high = task.domain.bounds
    values = sp.score(guess, batch, metrics=(METRICS["psnr"],), low=low, peak=high - low)["psnr"]
    return [float(value) for value in values]


def captured(folder: Path, device: str) -> list[Numbers]:
    """An audit of an update that was captured and saved."""
    batch = sp.data.bundled("photos", size=2)
    task = sp.zoo.cnn(variant="cnn2-v1")
    seen = sp.Threat().observe(sp.Client(sp.Gradient()), task, batch, rng=sp.rng(0))
    # The broadcast network travels in the capture, so that the audit needs no other file.
    setting = sp.capture.Setting(batch_size=2, shape=tuple(task.domain.shape))
    capture = sp.capture.Capture.of(
        task.model, dict(seen.update.tensors), form="gradient", setting=setting
    )
    sp.capture.save(capture, folder / "update.safetensors")
    truth = {"inputs": batch.inputs, "labels": batch.labels}
    save_file(truth, folder / "truth.safetensors")
    words = ["--capture", str(folder / "update.safetensors"), "--model", "cnn2-v1"]
    words += ["--truth", str(folder / "truth.safetensors")]
    words += ["--steps", "100", "--labels", ",".join(str(int(x)) for x in batch.labels)]
    run_seepage("audit", *words, "--out", str(folder / "captured"), "--device", device, "--plain")
    return scores_of(folder / "captured")


def tables(folder: Path, device: str) -> Numbers:
    """Three tables of the papers, at their smallest."""
    found = {}
    for name in TABLES:
        out = folder / name
        run_seepage(
            "reproduce", name, "--scale", "smoke", "--out", str(out), "--device", device, "--plain"
        )
        content = json.loads((out / "table.json").read_text())
        keys = ("row", "column", "seepage", "standard")
        found[name] = [{key: line.get(key) for key in keys} for line in content["lines"]]
    return found


PARTS: dict[str, Callable[[Path, str], Any]] = {
    "quickstart": quickstart,
    "contracts": contracts,
    "captured": captured,
    "tables": tables,
}


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Every number and word of nested data, with where it is."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in UNSTEADY:
                yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{index}")
    else:
        yield path, value


def difference(a: Any, b: Any) -> float:  # noqa: ANN401
    """How far apart two leaves are: relative for numbers, infinite for other words."""
    if a == b:
        return 0.0
    try:
        first, second = float(a), float(b)
    except (TypeError, ValueError):
        return math.inf
    if math.isnan(first) and math.isnan(second):
        return 0.0
    return abs(first - second) / max(abs(first), abs(second), 1.0)


def compare(before: Path, after: Path, tolerance: float) -> int:
    """Print what differs; the exit code is 1 where anything does."""
    old, new = json.loads(before.read_text()), json.loads(after.read_text())
    code = 0
    for part in sorted({*old, *new} - {"device"}):
        first, second = dict(leaves(old.get(part))), dict(leaves(new.get(part)))
        apart = {key: difference(first.get(key), second.get(key)) for key in {*first, *second}}
        worst = max(apart.values(), default=0.0)
        equal = sum(value == 0 for value in apart.values())
        print(f"{part}: {len(apart)} values, {equal} equal, largest difference {worst:.3g}")
        for key in sorted(key for key, value in apart.items() if value > tolerance)[:12]:
            print(f"  {key}: {first.get(key)} -> {second.get(key)}")
            code = 1
    return code


def main() -> None:
    """Record, or compare two records."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("out", type=Path)
    record.add_argument("--device", default="cpu")
    record.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--tolerance", type=float, default=1e-6)
    wanted = parser.parse_args()
    if wanted.command == "compare":
        raise SystemExit(compare(wanted.before, wanted.after, wanted.tolerance))
    with tempfile.TemporaryDirectory() as folder:
        found: Numbers = {"device": wanted.device}
        for part in wanted.only:
            found[part] = PARTS[part](Path(folder), wanted.device)
            wanted.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
