"""Measure how the package is built, beside the targets that the next release should reach.

    python scripts/house.py [--make-test SECONDS]

File switches are calls from one file of the package into another, counted while one small audit
runs and while its page is made: what a reader of that path has to open. `--make-test` adds the wall
time of `make test`, which is not measured here.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

PACKAGE = Path(__file__).parents[1] / "src" / "seepage"
OFFICE = ("audit", "results", "report", "cli", "step")
SMALL_AUDIT = {
    "controls": False,
    "scenario": {
        "data": {"name": "photos", "people": 2},
        "models": {"name": "mlp", "hidden": [8]},
        "threats": {"knows_labels": True},
        "attacks": {"name": "analytic_fc"},
    },
}


@dataclass(frozen=True)
class House:
    """The modules of a package, parsed.

    Args:
        folder: Where the package lies.
        texts: The text of each file, by its path within the folder.
    """

    folder: Path
    texts: Mapping[Path, str]

    @classmethod
    def read(cls, folder: Path = PACKAGE) -> House:
        """Read every Python file below a folder."""
        files = sorted(folder.rglob("*.py"))
        return cls(folder, {f.relative_to(folder): f.read_text(encoding="utf-8") for f in files})

    def count_lines(self, *parts: str) -> int:
        """Lines of the whole package, or of some of its parts."""
        kept = [text for at, text in self.texts.items() if not parts or at.parts[0] in parts]
        return sum(len(text.splitlines()) for text in kept)

    def list_definitions(self) -> list[tuple[Path, ast.ClassDef | ast.FunctionDef]]:
        """Every class and function at the top level of a module."""
        return [
            (at, node)
            for at, text in self.texts.items()
            for node in ast.parse(text).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        ]

    def count_public(self) -> int:
        """Classes and functions that can be imported without writing an underscore."""
        return sum(
            not node.name.startswith("_") and not any(map(_is_private, at.parts))
            for at, node in self.list_definitions()
        )

    def find_repeated_classes(self) -> list[str]:
        """Names of classes that more than one module defines."""
        return _find_repeated(
            node.name for _, node in self.list_definitions() if isinstance(node, ast.ClassDef)
        )

    def find_repeated_files(self) -> list[str]:
        """Names of files that more than one folder has, apart from `__init__.py`."""
        return _find_repeated(at.name for at in self.texts if at.name != "__init__.py")


def _is_private(part: str) -> bool:
    return part.startswith("_") and not part.startswith("__")


def _find_repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def count_switches(action: Callable[[], object], folder: Path = PACKAGE) -> int:
    """Run something and count the calls that go from one file of a package into another."""
    prefix, switches = str(folder), 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal switches
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(prefix):
            return
        caller = frame.f_back
        # A call through torch or typer still takes the reader from one file of ours to another.
        while caller is not None and not caller.f_code.co_filename.startswith(prefix):
            caller = caller.f_back
        switches += caller is not None and caller.f_code.co_filename != file

    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
    return switches


def measure_switches() -> tuple[int, int]:
    """File switches while a small audit runs, and while its page is made."""
    sys.path.insert(0, str(PACKAGE.parent))
    import seepage as sp
    from seepage.report import audit_page

    # Once without counting: what is imported late, and caches.
    result = sp.audit.run(SMALL_AUDIT, device="cpu")
    audit_page(result)
    ran = count_switches(lambda: sp.audit.run(SMALL_AUDIT, device="cpu"))
    return ran, count_switches(lambda: audit_page(result))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--make-test", type=float, help="wall time of `make test`, in seconds")
    seconds = parser.parse_args().make_test
    house = House.read()
    ran, page = measure_switches()
    rows: list[tuple[str, str, str]] = [
        ("files of the package", f"{len(house.texts)}", "<= 270"),
        ("lines of the package", f"{house.count_lines()}", "<= 54000"),
        (f"lines of {', '.join(OFFICE)}", f"{house.count_lines(*OFFICE)}", "<= 12500"),
        ("names without an underscore", f"{house.count_public()}", "<= 400"),
        ("file switches: audit of two people", f"{ran}", "<= 450"),
        ("file switches: its page", f"{page}", "<= 300"),
        ("`make test` in seconds", "" if seconds is None else f"{seconds:.0f}", "<= 300"),
    ]
    print(f"{'':42}{'now':>8}{'target':>14}")
    for name, now, target in rows:
        print(f"{name:42}{now:>8}{target:>14}")


if __name__ == "__main__":
    main()
