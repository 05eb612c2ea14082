"""A spec: the audit written down, mapping one to one to constructors."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path

import torch

from seepage.audit import entries
from seepage.audit.audit import Audit
from seepage.audit.case import Case
from seepage.audit.entries import Table, located
from seepage.audit.victims import Victims
from seepage.core import Metric
from seepage.core.errors import DataNotFound, InvalidValue

QUICKSTART = Path(__file__).parent / "quickstart.toml"


@dataclass(frozen=True, eq=False)
class Part:
    """One audit and the batches it runs on: a scenario on one data set."""

    audit: Audit
    batches: tuple[Victims, ...]


@dataclass(frozen=True, eq=False)
class Spec:
    """A whole spec, with everything in it built and checked.

    Args:
        title: What it is called.
        text: The file as it was read.
        parts: What to run, in order.
    """

    title: str
    text: str
    parts: tuple[Part, ...]

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """Everything to run, in order; cases that are the same in all that matters are one."""
        listed = [case for part in self.parts for case in part.audit.cases(part.batches)]
        return tuple({case.id: case for case in listed}.values())


def load_spec(path: Path | None = None, *, device: str = "cpu") -> Spec:
    """Read a spec and build all it names; nothing has run when this returns.

    Args:
        path: A TOML file; None takes the bundled quickstart.
        device: Where the networks go.

    Raises:
        SeepageError: One sentence with the file, the place in it, what was expected and what came.
    """
    path = QUICKSTART if path is None else path
    text, table = _read(path)
    with located(path.name):
        entries.only(table, "title", "seeds", "metrics", "scenario")
        metrics = entries.metrics(table.get("metrics"))
        seeds = entries.seeds(table.get("seeds", [0]))
        parts: list[Part] = []
        for number, scenario in enumerate(entries.tables(table, "scenario"), 1):
            with located(f"scenario {number}"):
                parts.extend(_parts(scenario, metrics=metrics, seeds=seeds, device=device))
    return Spec(str(table.get("title", path.stem)), text, tuple(parts))


def _read(path: Path) -> tuple[str, Table]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise DataNotFound(f"cannot read the spec {str(path)!r}: {reason}") from error
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidValue(f"{path.name} is not valid TOML: {error}") from error


def _parts(
    scenario: Table, *, metrics: Sequence[Metric] | None, seeds: Sequence[int], device: str
) -> Iterator[Part]:
    entries.only(scenario, "data", "models", "locals", "defenses", "threats", "attacks")
    for source in entries.tables(scenario, "data"):
        dataset, batches = entries.data(source)
        models = [entries.model(m, dataset) for m in entries.tables(scenario, "models")]
        audit = Audit(
            tasks=[task.to(device=torch.device(device)) for task in models],
            locals=[entries.local(t) for t in entries.tables(scenario, "locals", [{}])],
            defenses=entries.defenses(scenario.get("defenses", [[]])),
            threats=[entries.threat(t) for t in entries.tables(scenario, "threats", [{}])],
            attacks=dict(entries.attack(t) for t in entries.tables(scenario, "attacks")),
            metrics=entries.fitting(metrics, dataset),
            seeds=seeds,
        )
        audit.cases(batches)
        for task, who in product(audit.tasks, batches):
            with entries.trusting_nothing(task.name):
                task.check(who.batch)
        yield Part(audit, batches)
