"""Measure how the package is built, and compare it with the targets.

    python scripts/house.py [FOLDER] [--chain] [--single]

The import chain follows imports that Python runs on `import`: those at the top of a module, not
those inside a function or under `TYPE_CHECKING`. `from package import name` points at the module
`name` if there is one, otherwise at the package's `__init__`.

A module has a single user if exactly one other module imports it, at any level, and that module
lies in the same folder. Helpers like that usually belong beside their caller. A module that only
its package's `__init__` re-exports is counted too, and listed apart.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

Modules = Mapping[str, Path]
Graph = Mapping[str, frozenset[str]]

# What the package should keep to: tests/test_house.py holds it to these.
TARGETS = {
    "files": 300,
    "lines": 38_000,
    "public names": 450,
    "longest import chain": 20,
    "single-user modules": 30,
    "repeated file names": 0,
    "repeated class names": 0,
}


@dataclass(frozen=True)
class House:
    """The measurements of one package.

    Attributes:
        files: Number of Python files.
        lines: Lines in all of them.
        median: Lines of the median file.
        public: Public functions and classes at the top level of a module.
        chain: The longest chain of imports, importer first.
        single: Modules with a single user, and that user.
        repeated_files: File names that occur more than once, apart from `__init__.py`.
        repeated_classes: Class names that are defined more than once.
    """

    files: int
    lines: int
    median: float
    public: int
    chain: Sequence[str]
    single: Mapping[str, str]
    repeated_files: Sequence[str]
    repeated_classes: Sequence[str]

    def counts(self) -> dict[str, int]:
        """The measurements that have a target, under the target's name."""
        return {
            "files": self.files,
            "lines": self.lines,
            "public names": self.public,
            "longest import chain": len(self.chain),
            "single-user modules": len(self.single),
            "repeated file names": len(self.repeated_files),
            "repeated class names": len(self.repeated_classes),
        }


def measure_house(folder: Path) -> House:
    """Measure the package in a folder."""
    modules = find_modules(folder)
    texts = {name: path.read_text(encoding="utf-8") for name, path in modules.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    lines = [len(text.splitlines()) for text in texts.values()]
    definitions = [node for tree in trees.values() for node in _find_definitions(tree)]
    files = [path.name for path in modules.values() if path.name != "__init__.py"]
    classes = [node.name for node in definitions if isinstance(node, ast.ClassDef)]
    executed = {name: _resolve(_walk_executed(tree.body), modules) for name, tree in trees.items()}
    everywhere = {name: _resolve(ast.walk(tree), modules) for name, tree in trees.items()}
    return House(
        files=len(modules),
        lines=sum(lines),
        median=statistics.median(lines),
        public=sum(not node.name.startswith("_") for node in definitions),
        chain=find_longest_chain(executed),
        single=find_single_users(everywhere, modules),
        repeated_files=_find_repeated(files),
        repeated_classes=_find_repeated(classes),
    )


def find_modules(folder: Path) -> dict[str, Path]:
    """Find every module below a package's folder, by its dotted name."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def find_longest_chain(graph: Graph) -> list[str]:
    """Find the longest path of imports; a circle is an error."""
    unfinished: set[str] = set()

    @cache
    def descend(name: str) -> tuple[str, ...]:
        if name in unfinished:
            raise SystemExit(f"expected imports without a circle, got one through {name}")
        unfinished.add(name)
        others = sorted(graph[name] - {name})
        longest = max((descend(other) for other in others), key=len, default=())
        unfinished.discard(name)
        return (name, *longest)

    return list(max((descend(name) for name in sorted(graph)), key=len))


def find_single_users(graph: Graph, modules: Modules) -> dict[str, str]:
    """Find the modules that exactly one module imports, which lies in the same folder."""
    found = {}
    for name, path in modules.items():
        users = [user for user, others in graph.items() if name in others and user != name]
        if path.name != "__init__.py" and len(users) == 1:
            (user,) = users
            if modules[user].parent == path.parent:
                found[name] = user
    return found


def _walk_executed(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the statements that run when a module is imported."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If) and "TYPE_CHECKING" not in ast.unparse(statement.test):
            yield from _walk_executed([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try | ast.ClassDef | ast.With):
            yield from _walk_executed(statement.body)


def _resolve(nodes: Iterable[ast.AST], modules: Modules) -> frozenset[str]:
    """The modules of the package that some statements import."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in modules else str(node.module))
    return frozenset(found)


def _find_definitions(tree: ast.Module) -> list[ast.ClassDef | ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]


def _find_repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def main() -> None:
    """Print the table, and on request the chain and the modules with a single user."""
    parser = argparse.ArgumentParser(description="Measure how the package is built.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("src/seepage"))
    parser.add_argument("--chain", action="store_true", help="list the longest import chain")
    parser.add_argument("--single", action="store_true", help="list modules with a single user")
    wanted = parser.parse_args()
    if not wanted.folder.is_dir():
        parser.error(f"expected the folder of a package, got {wanted.folder}")
    house = measure_house(wanted.folder)
    print(f"{'':24}{'measured':>10}{'target':>10}")
    for name, value in house.counts().items():
        print(f"{name:24}{value:>10}{f'<= {TARGETS[name]}':>10}")
    print(f"{'median file':24}{house.median:>10.0f}{'120-180':>10}")
    modules = find_modules(wanted.folder)
    exported = [name for name, user in house.single.items() if modules[user].stem == "__init__"]
    print(f"re-exported by their package only: {len(exported)} of the single-user modules")
    for kind, names in (("file", house.repeated_files), ("class", house.repeated_classes)):
        if names:
            print(f"repeated {kind} names: {', '.join(names)}")
    if wanted.chain:
        print("\n".join(["", "longest import chain:", *house.chain]))
    if wanted.single:
        print("\n".join(["", "single users:"]))
        print("\n".join(f"{name} <- {user}" for name, user in house.single.items()))


if __name__ == "__main__":
    main()
